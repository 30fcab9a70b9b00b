#pragma once

#include <stdbool.h>

#include "base/macros.h"

enum log_level {
    LOG_LEVEL_ERROR,   /* a request failed */
    LOG_LEVEL_WARNING, /* something odd, going on */
    LOG_LEVEL_NOTICE,  /* a state changed */
    LOG_LEVEL_INFO,
    LOG_LEVEL_DEBUG,
};

/*
 * One event a line to stderr: text on a terminal, JSON otherwise. Foreign strings in the message
 * are quoted by the caller with '…'; control bytes are escaped here. Never log secrets, tokens or
 * guest data.
 */
void log_set_level(enum log_level level);
void log_set_json(bool json);
bool log_enabled(enum log_level level);
int log_level_from_string(const char *s); /* negative errno when unknown */

/* `sandbox` and `session` become fields of the line; NULL leaves them out. Returns -errnum. */
int log_full(enum log_level level, int errnum, const char *sandbox, const char *session,
             const char *format, ...) _printf_(5, 6);

#define log_error(...) log_full(LOG_LEVEL_ERROR, 0, NULL, NULL, __VA_ARGS__)
#define log_warning(...) log_full(LOG_LEVEL_WARNING, 0, NULL, NULL, __VA_ARGS__)
#define log_notice(...) log_full(LOG_LEVEL_NOTICE, 0, NULL, NULL, __VA_ARGS__)
#define log_info(...) log_full(LOG_LEVEL_INFO, 0, NULL, NULL, __VA_ARGS__)
#define log_debug(...) log_full(LOG_LEVEL_DEBUG, 0, NULL, NULL, __VA_ARGS__)

/* r is a negative errno; its text is appended to the message. Returns r. */
#define log_error_errno(r, ...) log_full(LOG_LEVEL_ERROR, -(r), NULL, NULL, __VA_ARGS__)
#define log_warning_errno(r, ...) log_full(LOG_LEVEL_WARNING, -(r), NULL, NULL, __VA_ARGS__)

#define log_sandbox(level, id, ...) log_full(level, 0, id, NULL, __VA_ARGS__)
#define log_session(level, id, session, ...) log_full(level, 0, id, session, __VA_ARGS__)
