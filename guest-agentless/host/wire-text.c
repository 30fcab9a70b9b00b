#include "host/wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Length of the well-formed UTF-8 sequence at p that is no control character; 0 if there is none.
 */
static size_t utf8_length(const uint8_t *p, size_t left)
{
    uint32_t value, least;
    size_t length;

    if (p[0] < 0x80)
        return p[0] < 0x20 || p[0] == 0x7f ? 0 : 1;
    if ((p[0] & 0xe0) == 0xc0) {
        length = 2, value = p[0] & 0x1fu, least = 0xa0; /* U+0080 to U+009F are controls */
    } else if ((p[0] & 0xf0) == 0xe0) {
        length = 3, value = p[0] & 0x0fu, least = 0x800;
    } else if ((p[0] & 0xf8) == 0xf0) {
        length = 4, value = p[0] & 0x07u, least = 0x10000;
    } else {
        return 0;
    }
    if (left < length)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (p[i] & 0x3fu);
    }
    if (value < least || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
        return 0;
    return length;
}

size_t wire_escape(char *to, size_t to_size, const void *from, size_t from_size)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = from;
    size_t used = 0;

    if (to_size == 0)
        return 0;
    for (size_t i = 0; i < from_size;) {
        size_t length = utf8_length(p + i, from_size - i);
        bool escape = length == 0 || p[i] == '\\';
        size_t need = escape ? 4 : length;

        if (need > to_size - 1 - used)
            break;
        if (escape) {
            to[used++] = '\\';
            to[used++] = 'x';
            to[used++] = digits[p[i] >> 4];
            to[used++] = digits[p[i] & 0xf];
            i++;
        } else {
            memcpy(to + used, p + i, length);
            used += length;
            i += length;
        }
    }
    to[used] = '\0';
    return used;
}

size_t wire_escape_string(char *to, size_t to_size, const char *from)
{
    return wire_escape(to, to_size, from, from ? strlen(from) : 0);
}
