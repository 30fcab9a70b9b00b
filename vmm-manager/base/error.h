#pragma once

#include <errno.h>

#include "base/error-codes.h"
#include "base/macros.h"

enum error_code {
#define X(suffix, text, errnum, status) ERR_##suffix,
    ERROR_CODE_TABLE(X)
#undef X
};
#define ERROR_CODE_COUNT (ERR_RANGE_NOT_SATISFIABLE + 1) /* the last one */

/*
 * Why something failed, in words for a person. Caller-owned, on the stack, no allocation: nothing
 * to leak on the error path. Functions take `struct error *err` last; NULL is allowed everywhere.
 */
struct error {
    int errnum;           /* positive errno, 0 when unset */
    enum error_code code; /* what clients act on */
    char text[512];       /* one line, no trailing newline; over-long text is cut */
};

/* Sets the error and returns -errnum. The code is derived from errnum. */
int error_set(struct error *err, int errnum, const char *format, ...) _printf_(3, 4);

/* Sets the error with a stable code of its own and returns minus the errno of that code. */
int error_set_code(struct error *err, enum error_code code, const char *format, ...) _printf_(3, 4);

/* Like error_set_code, with the errno that really happened kept; returns -errnum. */
int error_set_errno(struct error *err, enum error_code code, int errnum, const char *format, ...)
    _printf_(4, 5);

/* Puts "context: " before the text, as the error travels up. Does nothing on an unset error. */
void error_wrap(struct error *err, const char *format, ...) _printf_(2, 3);

/* If err is unset, fills it from a negative errno `r` with a generic text; returns r. */
int error_fill(struct error *err, int r, const char *format, ...) _printf_(3, 4);

void error_clear(struct error *err);
void error_copy(struct error *to, const struct error *from);

const char *error_code_name(enum error_code code);
int error_code_errno(enum error_code code);
int error_code_http_status(enum error_code code);
/* Code for a name on the wire; ERR_INTERNAL when unknown. */
enum error_code error_code_from_name(const char *name);
enum error_code error_code_from_errno(int errnum);

/* Thread-safe text of an errno, never NULL. */
const char *errno_text(int errnum);
