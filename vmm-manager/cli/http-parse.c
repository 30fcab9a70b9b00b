#include "cli/http-parse.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/macros.h"
#include "base/strv.h"

#define CHUNK_LINE_MAX 256u
#define TRAILER_MAX 8192u

static int malformed(struct error *err, const char *what)
{
    return error_set_errno(err, ERR_INTERNAL, EPROTO, "the daemon's answer is not HTTP: %s", what);
}

static int parse_length(const char *s, size_t size, uint64_t *ret)
{
    uint64_t value = 0;

    if (size == 0 || size > 19)
        return -EINVAL;
    for (size_t i = 0; i < size; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -EINVAL;
        value = value * 10 + (uint64_t)(s[i] - '0');
    }
    *ret = value;
    return 0;
}

static bool field_is(const char *line, size_t colon, const char *name)
{
    return strlen(name) == colon && strncasecmp(line, name, colon) == 0;
}

static bool value_has(const char *value, size_t size, const char *token)
{
    size_t n = strlen(token);

    for (size_t i = 0; i + n <= size; i++)
        if (strncasecmp(value + i, token, n) == 0)
            return true;
    return false;
}

static void copy_text(char *to, size_t to_size, const char *from, size_t size)
{
    size = MIN(size, to_size - 1);
    memcpy(to, from, size);
    to[size] = '\0';
    for (char *c = to; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f)
            *c = '?';
}

static int parse_field(const char *line, size_t size, struct http_head *head, struct error *err)
{
    const char *colon = memchr(line, ':', size), *value;
    size_t name_size, value_size;

    if (!colon || colon == line)
        return malformed(err, "a header line without a name");
    name_size = (size_t)(colon - line);
    value = colon + 1;
    value_size = size - name_size - 1;
    while (value_size > 0 && (*value == ' ' || *value == '\t')) {
        value++;
        value_size--;
    }
    while (value_size > 0 && (value[value_size - 1] == ' ' || value[value_size - 1] == '\t'))
        value_size--;
    if (field_is(line, name_size, "content-length")) {
        uint64_t length;

        if (parse_length(value, value_size, &length) < 0 ||
            (head->has_length && head->length != length))
            return malformed(err, "bad content-length");
        head->has_length = true;
        head->length = length;
    } else if (field_is(line, name_size, "transfer-encoding")) {
        if (!value_has(value, value_size, "chunked"))
            return malformed(err, "unknown transfer-encoding");
        head->chunked = true;
    } else if (field_is(line, name_size, "connection")) {
        head->close = head->close || value_has(value, value_size, "close");
    } else if (field_is(line, name_size, "upgrade")) {
        head->upgraded = head->status == 101 && value_has(value, value_size, "hearth-stream");
    } else if (field_is(line, name_size, "content-type")) {
        copy_text(head->content_type, sizeof(head->content_type), value, value_size);
    }
    return 0;
}

/* "HTTP/1.1 200 OK" */
static int parse_status(const char *line, size_t size, struct http_head *head, struct error *err)
{
    if (size < 12 || memcmp(line, "HTTP/1.", 7) != 0 || (line[7] != '0' && line[7] != '1') ||
        line[8] != ' ')
        return malformed(err, "no status line");
    for (int i = 9; i < 12; i++) {
        if (line[i] < '0' || line[i] > '9')
            return malformed(err, "no status");
        head->status = head->status * 10 + (line[i] - '0');
    }
    if (head->status < 100 || (size > 12 && line[12] != ' '))
        return malformed(err, "no status");
    head->close = line[7] == '0';
    if (size > 13)
        copy_text(head->reason, sizeof(head->reason), line + 13, size - 13);
    return 0;
}

ssize_t http_head_parse(const char *data, size_t size, struct http_head *ret, struct error *err)
{
    const char *end = memmem(data, MIN(size, (size_t)HTTP_HEAD_MAX), "\r\n\r\n", 4);
    struct http_head head = {0};
    size_t head_size, at = 0;

    if (!end) {
        if (size >= HTTP_HEAD_MAX)
            return malformed(err, "endless header");
        if (size > 0 && memcmp(data, "HTTP/", MIN(size, (size_t)5)) != 0)
            return malformed(err, "no status line");
        return 0;
    }
    head_size = (size_t)(end - data) + 4;
    while (at < head_size - 2) {
        const char *line = data + at;
        const char *line_end = memmem(line, head_size - at, "\r\n", 2);
        size_t line_size;
        int r;

        if (!line_end)
            return malformed(err, "a header line without an end");
        line_size = (size_t)(line_end - line);
        r = at == 0 ? parse_status(line, line_size, &head, err)
                    : parse_field(line, line_size, &head, err);
        if (r < 0)
            return r;
        at += line_size + 2;
    }
    if (head.chunked && head.has_length)
        return malformed(err, "both a length and chunks");
    *ret = head;
    return (ssize_t)head_size;
}

void http_body_init(struct http_body *b, const struct http_head *head)
{
    *b = (struct http_body){0};
    if (head->status < 200 || head->status == 204 || head->status == 304) {
        b->state = HTTP_BODY_END;
    } else if (head->chunked) {
        b->state = HTTP_CHUNK_SIZE;
    } else if (head->has_length) {
        b->left = head->length;
        b->state = head->length > 0 ? HTTP_BODY_LENGTH : HTTP_BODY_END;
    } else {
        b->state = HTTP_BODY_UNTIL_EOF;
    }
}

/* A line "SIZE[;extension]" byte by byte; `line` counts its bytes, the top bit marks the extension.
 */
#define IN_EXTENSION (1u << 31)

static int chunk_size_byte(struct http_body *b, uint8_t c, struct error *err)
{
    unsigned count = b->line & ~IN_EXTENSION;
    int digit = hex_digit(c);

    if (count >= CHUNK_LINE_MAX)
        return malformed(err, "endless chunk size");
    if (c == '\n') {
        if (count == 0)
            return malformed(err, "empty chunk size");
        b->line = 0;
        b->state = b->left > 0 ? HTTP_CHUNK_DATA : HTTP_TRAILER;
        return 0;
    }
    if (!(b->line & IN_EXTENSION) && digit >= 0) {
        if (b->left >> 58)
            return malformed(err, "chunk size out of range");
        b->left = b->left * 16 + (uint64_t)digit;
    } else if (count == 0 || !(c == '\r' || c == ';' || c == ' ' || (b->line & IN_EXTENSION))) {
        return malformed(err, "bad chunk size");
    } else {
        b->line |= IN_EXTENSION;
    }
    b->line++;
    return 0;
}

/* After the last chunk: lines up to an empty one. `left` counts all bytes, `line` those of the
 * line. */
static int trailer_byte(struct http_body *b, uint8_t c, struct error *err)
{
    if (++b->left > TRAILER_MAX)
        return malformed(err, "endless trailer");
    if (c == '\n') {
        if (b->line == 0)
            b->state = HTTP_BODY_END;
        b->line = 0;
    } else if (c != '\r') {
        b->line++;
    }
    return 0;
}

/* Control bytes of the chunked coding; data is handled by the caller. */
static int chunk_control_byte(struct http_body *b, uint8_t c, struct error *err)
{
    if (b->state == HTTP_CHUNK_SIZE)
        return chunk_size_byte(b, c, err);
    if (b->state == HTTP_TRAILER)
        return trailer_byte(b, c, err);
    if (c == '\n') {
        b->state = HTTP_CHUNK_SIZE;
        b->line = 0;
        return 0;
    }
    if (c != '\r' || b->line++ > 0)
        return malformed(err, "a chunk without an end");
    return 0;
}

int http_body_next(struct http_body *b, const uint8_t *data, size_t size, size_t *ret_used,
                   const uint8_t **ret_payload, size_t *ret_size, struct error *err)
{
    size_t used = 0;

    *ret_used = 0;
    *ret_payload = data;
    *ret_size = 0;
    while (used < size && b->state != HTTP_BODY_END) {
        uint64_t take = size - used;
        int r;

        if (b->state != HTTP_BODY_LENGTH && b->state != HTTP_CHUNK_DATA &&
            b->state != HTTP_BODY_UNTIL_EOF) {
            r = chunk_control_byte(b, data[used], err);
            if (r < 0)
                return r;
            used++;
            continue;
        }
        if (b->state != HTTP_BODY_UNTIL_EOF) {
            take = MIN(take, b->left);
            b->left -= take;
            if (b->left == 0)
                b->state = b->state == HTTP_CHUNK_DATA ? HTTP_CHUNK_END : HTTP_BODY_END;
        }
        *ret_payload = data + used;
        *ret_size = (size_t)take;
        used += (size_t)take;
        break;
    }
    *ret_used = used;
    return 0;
}
