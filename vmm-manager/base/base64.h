#pragma once

#include <stddef.h>

/* Base64 with the standard alphabet and padding. */

/* The string is malloc'd, owned by the caller; NULL: out of memory. */
char *base64_encode(const void *data, size_t size);
/* Strict: what base64_encode() would write and nothing else, or -EINVAL. The bytes are malloc'd and
 * followed by a NUL that does not count. */
int base64_decode(const char *text, size_t size, char **ret_data, size_t *ret_size);
