#include "cli/json-bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/strv.h"

json_t *bytes_to_json(const void *data, size_t size)
{
    json_t *string = memchr(data, '\0', size) ? NULL : json_stringn(data, size);
    _cleanup_free_ char *text = NULL;

    if (string)
        return string;
    text = base64_encode(data, size);
    return text ? json_pack("{s:s}", "base64", text) : NULL;
}

int bytes_from_json(const json_t *object, const char *key, struct buf *to)
{
    const json_t *plain = json_object_get(object, key);
    _cleanup_free_ char *other = string_printf("%s_base64", key), *data = NULL;
    const char *text;
    size_t size;
    int r;

    if (!other)
        return -ENOMEM;
    if (json_is_string(plain))
        return buf_append(to, json_string_value(plain), json_string_length(plain));
    text = json_string_value(json_object_get(object, other));
    r = text ? base64_decode(text, strlen(text), &data, &size) : -EINVAL;
    return r < 0 ? r : buf_append(to, data, size);
}
