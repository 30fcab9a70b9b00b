#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of guests and clients as JSON, which holds valid UTF-8 only. */

/* True for well-formed UTF-8: no overlong form, no surrogate, nothing above U+10FFFF. NUL counts.
 */
bool utf8_is_valid(const void *data, size_t size);

/*
 * A string when the bytes are UTF-8 without a NUL, which readers of stored JSON refuse, else
 * {"base64": "…"}. New reference, NULL: out of memory.
 */
json_t *json_bytes(const void *data, size_t size);

/*
 * Reads what json_bytes() wrote. On success *ret_data points into `json` or to *ret_owned, which
 * the caller frees. -EINVAL when it is neither form.
 */
int json_bytes_get(const json_t *json, const char **ret_data, size_t *ret_size, char **ret_owned);

/*
 * Sets KEY to a string, or KEY_base64 to its base64 when the bytes are not UTF-8, in an object: the
 * form of captured output and paths in answers. 0 or -ENOMEM.
 */
int json_object_set_bytes(json_t *object, const char *key, const void *data, size_t size);

/* Text for people that may hold foreign bytes: what is not UTF-8 becomes '?'. NULL: out of memory.
 */
json_t *json_text(const char *s);
