#include "cli/base64.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/strv.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static char *encode(const uint8_t *data, size_t size)
{
    char *text = malloc((size + 2) / 3 * 4 + 1), *p = text;

    for (size_t i = 0; text && i < size; i += 3) {
        size_t left = size - i;
        uint32_t bits = (uint32_t)data[i] << 16 | (left > 1 ? (uint32_t)data[i + 1] << 8 : 0) |
                        (left > 2 ? data[i + 2] : 0);

        *p++ = digits[bits >> 18 & 63];
        *p++ = digits[bits >> 12 & 63];
        *p++ = left > 1 ? digits[bits >> 6 & 63] : '=';
        *p++ = left > 2 ? digits[bits & 63] : '=';
    }
    if (text)
        *p = '\0';
    return text;
}

json_t *bytes_to_json(const void *data, size_t size)
{
    json_t *string = memchr(data, '\0', size) ? NULL : json_stringn(data, size);
    _cleanup_free_ char *text = NULL;

    if (string)
        return string;
    text = encode(data, size);
    return text ? json_pack("{s:s}", "base64", text) : NULL;
}

static int decode(const char *text, struct buf *to)
{
    size_t size = strlen(text);

    if (size % 4 != 0)
        return -EINVAL;
    for (size_t i = 0; i < size; i += 4) {
        uint32_t bits = 0;
        unsigned n = 0;
        uint8_t out[3];

        for (; n < 4 && text[i + n] != '='; n++) {
            const char *digit = strchr(digits, text[i + n]);

            if (!digit)
                return -EINVAL;
            bits |= (uint32_t)(digit - digits) << (18 - 6 * n);
        }
        if (n < 2 || (n < 4 && i + 4 < size))
            return -EINVAL;
        out[0] = (uint8_t)(bits >> 16);
        out[1] = (uint8_t)(bits >> 8);
        out[2] = (uint8_t)bits;
        int r = buf_append(to, out, n - 1);
        if (r < 0)
            return r;
    }
    return 0;
}

int bytes_from_json(const json_t *object, const char *key, struct buf *to)
{
    const json_t *plain = json_object_get(object, key);
    _cleanup_free_ char *other = string_printf("%s_base64", key);
    const char *text;

    if (!other)
        return -ENOMEM;
    if (json_is_string(plain))
        return buf_append(to, json_string_value(plain), json_string_length(plain));
    text = json_string_value(json_object_get(object, other));
    return text ? decode(text, to) : -EINVAL;
}
