#include "model/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/macros.h"
#include "base/strv.h"

/* Length of the well-formed sequence at p, or 0. */
static size_t utf8_sequence(const uint8_t *p, size_t left)
{
    uint8_t lead = p[0];
    uint8_t low = 0x80, high = 0xbf; /* range of the second byte */
    size_t length;

    if (lead < 0x80)
        return 1;
    if (lead >= 0xc2 && lead <= 0xdf)
        length = 2;
    else if (lead >= 0xe0 && lead <= 0xef)
        length = 3;
    else if (lead >= 0xf0 && lead <= 0xf4)
        length = 4;
    else
        return 0;
    if (left < length)
        return 0;

    if (lead == 0xe0)
        low = 0xa0; /* overlong */
    else if (lead == 0xed)
        high = 0x9f; /* surrogates */
    else if (lead == 0xf0)
        low = 0x90; /* overlong */
    else if (lead == 0xf4)
        high = 0x8f; /* above U+10FFFF */
    if (p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++) {
        if (p[i] < 0x80 || p[i] > 0xbf)
            return 0;
    }
    return length;
}

bool utf8_is_valid(const void *data, size_t size)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < size;) {
        size_t length = utf8_sequence(p + i, size - i);
        if (length == 0)
            return false;
        i += length;
    }
    return true;
}

json_t *json_bytes(const void *data, size_t size)
{
    if (utf8_is_valid(data, size) && (size == 0 || !memchr(data, '\0', size)))
        return json_stringn_nocheck(size > 0 ? data : "", size);

    _cleanup_free_ char *text = base64_encode(data, size);
    if (!text)
        return NULL;
    return json_pack("{s:s}", "base64", text);
}

int json_bytes_get(const json_t *json, const char **ret_data, size_t *ret_size, char **ret_owned)
{
    if (json_is_string(json)) {
        *ret_data = json_string_value(json);
        *ret_size = json_string_length(json);
        *ret_owned = NULL;
        return 0;
    }
    const json_t *text = json_object_get(json, "base64");
    if (!json_is_string(text) || json_object_size(json) != 1)
        return -EINVAL;

    char *data;
    int r = base64_decode(json_string_value(text), json_string_length(text), &data, ret_size);
    if (r < 0)
        return r;
    *ret_data = *ret_owned = data;
    return 0;
}

int json_object_set_bytes(json_t *object, const char *key, const void *data, size_t size)
{
    if (utf8_is_valid(data, size)) {
        json_t *text = json_stringn_nocheck(size > 0 ? data : "", size);
        return json_object_set_new(object, key, text) < 0 ? -ENOMEM : 0;
    }
    _cleanup_free_ char *text = base64_encode(data, size);
    _cleanup_free_ char *long_key = string_printf("%s_base64", key);
    if (!text || !long_key)
        return -ENOMEM;
    return json_object_set_new(object, long_key, json_string_nocheck(text)) < 0 ? -ENOMEM : 0;
}

json_t *json_text(const char *s)
{
    size_t size = strlen(s);
    _cleanup_free_ char *copy = strdup(s);

    if (!copy)
        return NULL;
    for (size_t i = 0; i < size;) {
        size_t length = utf8_sequence((const uint8_t *)copy + i, size - i);
        if (length == 0)
            copy[i] = '?';
        i += MAX(length, (size_t)1);
    }
    return json_stringn_nocheck(copy, size);
}
