#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"

/* NULL-terminated arrays of strings that own their strings. */
char **strv_free(char **v);
static inline void strv_cleanup(char ***v)
{
    *v = strv_free(*v);
}
#define _cleanup_strv_ _cleanup_(strv_cleanup)

size_t strv_length(char *const *v);
int strv_append(char ***v, const char *s);
int strv_copy(char *const *v, char ***ret);

/* printf into a fresh string; NULL when out of memory. */
char *string_printf(const char *format, ...) _printf_(1, 2);
/* Replaces *s by a copy of value (NULL clears). */
int string_set(char **s, const char *value);
bool string_starts_with(const char *s, const char *prefix);

/* Whole-string decimal within [min, max]; -EINVAL or -ERANGE. */
int parse_u64(const char *s, uint64_t min, uint64_t max, uint64_t *ret);
/* "512", "512M", "2G", "1GiB": bytes are counted in unit_bytes (e.g. 1 MiB) when no suffix. */
int parse_size(const char *s, uint64_t unit_bytes, uint64_t *ret_bytes);
/* "90", "90s", "15m", "2h", "1500ms" to microseconds. */
int parse_duration(const char *s, uint64_t *ret_usec);

/* The value of a hex digit, or -1. */
int hex_digit(int c);
/* Lower-case hex of data; text holds 2 * size + 1 bytes. */
void hex_encode(const void *data, size_t size, char *text);

/* A name that is safe as a path component and on the wire: [a-z0-9][a-z0-9._-]{0,62}. */
bool name_is_valid(const char *s);
/* `count` random characters of [a-z0-9], first one a letter; text holds count + 1 bytes. */
int random_id(char *text, size_t count);
