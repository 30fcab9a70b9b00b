#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* What a client asks code_run to do: a program in one of these languages. */
#define CODE_DIR "/sandbox"
#define CODE_FILES_MAX 64u
#define CODE_PATH_MAX 255u /* of a file, below CODE_DIR */
#define CODE_TIMEOUT_MSEC_DEFAULT 30000u
#define CODE_TIMEOUT_MSEC_MAX (600u * 1000u)

enum code_language {
    CODE_PYTHON,
    CODE_JAVASCRIPT,
    CODE_TYPESCRIPT,
    CODE_BASH,
};
#define CODE_LANGUAGE_COUNT (CODE_BASH + 1)

struct code_file {
    char *path; /* owned; NULL of input */
    char *data; /* owned, may be NULL */
    size_t size;
};

struct code_request {
    enum code_language language;
    uint32_t timeout_msec;
    struct code_file input;
    struct code_file files[CODE_FILES_MAX + 1]; /* the program itself is the first */
    size_t n_files;
};

/*
 * Keys: language code timeout_ms stdin files{}. Strict, as all bodies; `req` is zeroed by the
 * caller, who calls code_request_done() in any case.
 */
int code_request_from_json(const json_t *json, struct code_request *req, struct error *err);
void code_request_done(struct code_request *req);

/* The command that runs the program, in CODE_DIR. Weak, NULL-terminated. */
char *const *code_language_argv(enum code_language language);
const char *code_language_name(enum code_language language);
