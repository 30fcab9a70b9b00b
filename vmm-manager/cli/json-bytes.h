#pragma once

#include <jansson.h>
#include <stddef.h>

#include "base/buf.h"

/* Bytes that may not be text, as JSON has them: see docs/API.md. */

/* A string, or {"base64": …} when the bytes are not UTF-8. New reference; NULL: out of memory. */
json_t *bytes_to_json(const void *data, size_t size);
/* Appends the bytes under KEY, or under KEY_base64. -EINVAL when they are neither text nor base64.
 */
int bytes_from_json(const json_t *object, const char *key, struct buf *to);
