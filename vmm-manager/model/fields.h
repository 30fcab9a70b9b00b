#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/*
 * Strict decoding of a JSON object into a struct by a table. An unknown key, a wrong type, a value
 * out of range, a missing key each give an error that names the key and what was expected. null
 * counts as absent. Strings may be given as {"base64": "…"} and never hold a NUL.
 */
enum field_type {
    FIELD_STRING, /* char *: owned, replaces what is there; min and max are bytes */
    FIELD_PATH,   /* the same, and absolute */
    FIELD_NAME,   /* the same, and name_is_valid() */
    FIELD_BOOL,   /* bool */
    FIELD_U16,    /* uint16_t, within min and max */
    FIELD_U32,    /* uint32_t */
    FIELD_U64,    /* uint64_t */
    FIELD_STRV,   /* char **: owned, from an array; min and max are elements */
    FIELD_ENV,    /* char **: owned, from an object of strings, as "K=V" */
    FIELD_JSON,   /* const json_t *: borrowed, the caller looks at it */
};

struct field {
    const char *key;
    enum field_type type;
    size_t offset; /* of the member in the target */
    uint64_t min, max;
    bool required;
};

/*
 * Members of absent keys stay as they are. On failure the target may hold some of the new values;
 * its owner frees it as always.
 */
int fields_decode(const json_t *json, const struct field *fields, size_t count, void *target,
                  struct error *err);
