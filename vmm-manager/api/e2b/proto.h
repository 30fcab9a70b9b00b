#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

/*
 * Protobuf's wire format to and from its JSON form (lowerCamelCase names, bytes in base64, 64-bit
 * numbers as texts), by tables that describe the messages. No message holds one of its own kind, so
 * the tables bound the depth.
 */
enum proto_kind {
    PROTO_STRING,
    PROTO_BYTES,
    PROTO_BOOL,
    PROTO_UINT32,
    PROTO_SINT32,
    PROTO_INT64,
    PROTO_ENUM, /* read as its number, written from number or name */
    PROTO_MESSAGE,
    PROTO_TIME, /* google.protobuf.Timestamp, written only */
};

enum proto_shape {
    PROTO_ONE,
    PROTO_LIST, /* of texts or messages */
    PROTO_MAP,  /* of texts, by texts */
};

/* The names of an enumeration, by number; NULL: a gap. */
struct proto_enum {
    const char *const *names;
    size_t n_names;
};

struct proto_message;
struct proto_field {
    uint32_t number; /* 1 to 15 */
    const char *name;
    enum proto_kind kind;
    enum proto_shape shape;
    bool oneof; /* of the fields of a message that have it one is set at most */
    const struct proto_message *message;
    const struct proto_enum *names;
};

struct proto_message {
    const struct proto_field *fields;
    size_t n_fields;
};

#define PROTO_VALUES_MAX (128u * 1024u)                /* of one message, nested ones included */
#define PROTO_ENCODED_MAX (UINT32_C(64) * 1024 * 1024) /* bytes of one */

/* A new object. -EINVAL for what is not such a message; unknown fields are skipped. */
int proto_decode(const struct proto_message *message, const void *data, size_t size, json_t **ret,
                 struct error *err);
/* Appends to `out`. -EINVAL when the object does not fit the message. */
int proto_encode(const struct proto_message *message, const json_t *object, struct buf *out,
                 struct error *err);
