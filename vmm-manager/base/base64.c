#include "base/base64.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *base64_encode(const void *data, size_t size)
{
    const uint8_t *from = data;
    char *text = malloc((size + 2) / 3 * 4 + 1), *p = text;

    for (size_t i = 0; text && i < size; i += 3) {
        size_t left = size - i;
        uint32_t bits = (uint32_t)from[i] << 16 | (left > 1 ? (uint32_t)from[i + 1] << 8 : 0) |
                        (left > 2 ? from[i + 2] : 0);

        *p++ = digits[bits >> 18 & 63];
        *p++ = digits[bits >> 12 & 63];
        *p++ = left > 1 ? digits[bits >> 6 & 63] : '=';
        *p++ = left > 2 ? digits[bits & 63] : '=';
    }
    if (text)
        *p = '\0';
    return text;
}

/* Up to three bytes of four characters: how many, or -EINVAL. */
static int decode_four(const char *text, bool last, uint8_t out[static 3])
{
    uint32_t bits = 0;
    int n = 0;

    for (; n < 4 && text[n] != '='; n++) {
        const char *digit = memchr(digits, text[n], sizeof(digits) - 1);

        if (!digit)
            return -EINVAL;
        bits |= (uint32_t)(digit - digits) << (18 - 6 * n);
    }
    if (n < 2 || (n < 4 && (!last || text[3] != '=')))
        return -EINVAL;
    if (bits & (0xffffffu >> (8 * (n - 1)))) /* bits of a byte that is not there */
        return -EINVAL;
    for (int i = 0; i < 3; i++)
        out[i] = (uint8_t)(bits >> (16 - 8 * i));
    return n - 1;
}

int base64_decode(const char *text, size_t size, char **ret_data, size_t *ret_size)
{
    _cleanup_free_ char *data = malloc(size / 4 * 3 + 1);
    size_t got = 0;

    if (!data)
        return -ENOMEM;
    if (size % 4 != 0)
        return -EINVAL;
    for (size_t i = 0; i < size; i += 4) {
        uint8_t out[3];
        int n = decode_four(text + i, i + 4 == size, out);

        if (n < 0)
            return n;
        memcpy(data + got, out, (size_t)n);
        got += (size_t)n;
    }
    data[got] = '\0';
    *ret_data = TAKE_PTR(data);
    *ret_size = got;
    return 0;
}
