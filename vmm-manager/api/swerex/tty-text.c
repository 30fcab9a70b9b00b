#include "api/swerex/tty-text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "model/text.h"

#define TEXT_MAX (256u * 1024u * 1024u)

/* Length of the escape sequence at p: ESC, @ to _, parameters, intermediates, a final byte. */
static size_t escape_length(const unsigned char *p, size_t size)
{
    size_t i = 2;

    if (size < 2 || p[0] != 0x1b || p[1] < '@' || p[1] > '_')
        return 0;
    while (i < size && p[i] >= '0' && p[i] <= '?')
        i++;
    while (i < size && p[i] >= ' ' && p[i] <= '/')
        i++;
    return i < size && p[i] >= '@' && p[i] <= '~' ? i + 1 : 0;
}

/* Length of the UTF-8 sequence at p, 0 when it is none. */
static size_t utf8_length(const unsigned char *p, size_t size)
{
    for (size_t n = 1; n <= 4 && n <= size; n++) {
        if (utf8_is_valid(p, n))
            return n;
    }
    return 0;
}

static char *convert(const void *data, size_t size, bool tty)
{
    const unsigned char *p = data, *end = p + size;
    struct buf out;
    int r = 0;

    buf_init(&out, TEXT_MAX);
    while (p < end && r >= 0) {
        size_t left = (size_t)(end - p), skip = tty ? escape_length(p, left) : 0, n;

        if (skip > 0) {
            p += skip;
            continue;
        }
        if (tty && left >= 2 && p[0] == '\r' && p[1] == '\n') {
            p++;
            continue;
        }
        n = utf8_length(p, left);
        if (n > 0 && *p != '\0')
            r = buf_append(&out, p, n);
        else
            r = buf_printf(&out, "\\x%02x", *p);
        p += n > 0 ? n : 1;
    }
    char *text = r >= 0 ? strdup(buf_string(&out)) : NULL;
    buf_done(&out);
    return text;
}

char *tty_text(const void *data, size_t size)
{
    return convert(data, size, /* tty= */ true);
}

char *text_backslashed(const void *data, size_t size)
{
    return convert(data, size, /* tty= */ false);
}

char *text_strip(char *text)
{
    size_t n;

    while (isspace((unsigned char)*text))
        text++;
    n = strlen(text);
    while (n > 0 && isspace((unsigned char)text[n - 1]))
        text[--n] = '\0';
    return text;
}

char *text_repr(const char *text)
{
    char quote = strchr(text, '\'') && !strchr(text, '"') ? '"' : '\'';
    struct buf out;
    int r;

    buf_init(&out, 4 * strlen(text) + 16);
    r = buf_append(&out, &quote, 1);
    for (const unsigned char *p = (const unsigned char *)text; *p && r >= 0; p++) {
        if (*p == '\n')
            r = buf_append_string(&out, "\\n");
        else if (*p == '\r')
            r = buf_append_string(&out, "\\r");
        else if (*p == '\t')
            r = buf_append_string(&out, "\\t");
        else if (*p == '\\' || *p == (unsigned char)quote)
            r = buf_printf(&out, "\\%c", *p);
        else if (*p < ' ' || *p == 0x7f)
            r = buf_printf(&out, "\\x%02x", *p);
        else
            r = buf_append(&out, p, 1);
    }
    if (r >= 0)
        r = buf_append(&out, &quote, 1);
    char *copy = r >= 0 ? strdup(buf_string(&out)) : NULL;
    buf_done(&out);
    return copy;
}
