#include "cli/rex-head.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/macros.h"
#include "base/strv.h"

#define METHOD_MAX 16u
#define TARGET_MAX 2048u

/* Takes as long for a wrong one as for the right one. */
static bool token_equals(const char *given, size_t size, const char *token)
{
    size_t wanted = strlen(token);
    unsigned char difference = size != wanted;

    for (size_t i = 0; i < size; i++)
        difference |= (unsigned char)(given[i] ^ token[wanted > 0 ? i % wanted : 0]);
    return difference == 0;
}

static bool is_token_char(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

/* METHOD SP TARGET SP HTTP/1.x */
static int take_request_line(const char *line, size_t size, const char *sandbox, struct buf *to)
{
    const char *target = memchr(line, ' ', size);
    size_t method = target ? (size_t)(target - line) : 0, length;
    const char *end;

    if (method == 0 || method > METHOD_MAX)
        return -EPROTO;
    for (size_t i = 0; i < method; i++) {
        if (!is_token_char(line[i]))
            return -EPROTO;
    }
    target++;
    end = memchr(target, ' ', size - method - 1);
    length = end ? (size_t)(end - target) : 0;
    if (length == 0 || length > TARGET_MAX || target[0] != '/')
        return -EPROTO;
    for (size_t i = 0; i < length; i++) {
        if (target[i] <= ' ' || target[i] >= 0x7f)
            return -EPROTO;
    }
    if (size - method - 1 - length - 1 != strlen("HTTP/1.1") || strncmp(end + 1, "HTTP/1.", 7) != 0)
        return -EPROTO;
    return buf_printf(to, "%.*s /rex/%s%.*s HTTP/1.1\r\nHost: hearth\r\nConnection: close\r\n",
                      (int)method, line, sandbox, (int)length, target);
}

static bool name_is(const char *line, size_t size, const char *name)
{
    return size == strlen(name) && strncasecmp(line, name, size) == 0;
}

static int take_length(const char *value, size_t size, struct http_head *body)
{
    char text[24];
    uint64_t length;

    if (size >= sizeof(text) || body->has_length)
        return -EPROTO;
    memcpy(text, value, size);
    text[size] = '\0';
    if (parse_u64(text, 0, INT64_MAX, &length) < 0)
        return -EPROTO;
    body->has_length = true;
    body->length = length;
    return 0;
}

static int take_header(const char *line, size_t size, const char *token, struct buf *to,
                       struct rex_head *head)
{
    static const char *const passed[] = {"Accept", "Content-Length",    "Content-Type",
                                         "Expect", "Transfer-Encoding", "User-Agent"};
    const char *colon = memchr(line, ':', size);
    size_t name = colon ? (size_t)(colon - line) : 0, length;
    const char *value;
    int r = 0;

    if (name == 0)
        return -EPROTO;
    for (size_t i = 0; i < name; i++) {
        if (!is_token_char(line[i])) /* also a line that goes on, and a blank before the colon */
            return -EPROTO;
    }
    value = colon + 1;
    length = size - name - 1;
    for (; length > 0 && (*value == ' ' || *value == '\t'); length--)
        value++;
    for (; length > 0 && (value[length - 1] == ' ' || value[length - 1] == '\t');)
        length--;
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)value[i] < ' ' && value[i] != '\t')
            return -EPROTO;
    }
    if (name_is(line, name, "X-API-Key")) {
        head->token_is_right = !head->has_token && token_equals(value, length, token);
        head->has_token = true;
    } else if (name_is(line, name, "Content-Length")) {
        r = take_length(value, length, &head->body);
    } else if (name_is(line, name, "Transfer-Encoding")) {
        if (head->body.chunked || !name_is(value, length, "chunked"))
            return -EPROTO;
        head->body.chunked = true;
    }
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(passed); i++) {
        if (name_is(line, name, passed[i]))
            r = buf_printf(to, "%s: %.*s\r\n", passed[i], (int)length, value);
    }
    return r;
}

ssize_t rex_head_rewrite(const char *data, size_t size, const char *sandbox, const char *token,
                         struct buf *to, struct rex_head *ret, struct error *err)
{
    const char *end = memmem(data, size, "\r\n\r\n", 4);
    size_t head = end ? (size_t)(end - data) + 2 : 0;
    int r = 0;

    *ret = (struct rex_head){.body = {.status = 200}};
    if ((!end && size >= HTTP_HEAD_MAX) || head > HTTP_HEAD_MAX)
        return error_set(err, EPROTO, "the request's head is larger than %zu bytes", HTTP_HEAD_MAX);
    if (!end)
        return 0;
    for (size_t at = 0; r == 0 && at < head;) {
        const char *line = data + at, *stop = memmem(line, head - at, "\r\n", 2);
        size_t length = (size_t)(stop - line);

        r = at == 0 ? take_request_line(line, length, sandbox, to)
                    : take_header(line, length, token, to, ret);
        at += length + 2;
    }
    if (r == 0 && ret->body.chunked && ret->body.has_length)
        r = -EPROTO; /* which of the two counts is where smuggling begins */
    if (r == 0)
        r = buf_append(to, "\r\n", 2);
    if (!ret->body.chunked && !ret->body.has_length) {
        ret->body.has_length = true; /* a request without either has no body */
        ret->body.length = 0;
    }
    if (r < 0)
        return error_set(err, EPROTO, "not a request of HTTP/1.1");
    return (ssize_t)head + 2;
}
