#include "api/e2b/reply-head.h"

#include <string.h>
#include <strings.h>

#include "base/strv.h"

bool header_is_hop(const char *name)
{
    static const char *const hop[] = {"Connection", "Keep-Alive",        "Proxy-Authenticate",
                                      "TE",         "Transfer-Encoding", "Proxy-Authorization",
                                      "Trailer",    "Upgrade",           "Proxy-Connection"};

    for (size_t i = 0; i < ARRAY_SIZE(hop); i++) {
        if (strcasecmp(hop[i], name) == 0)
            return true;
    }
    return false;
}

static int status_line(const char *line, unsigned *ret, struct error *err)
{
    if (strncmp(line, "HTTP/1.", 7) != 0 || (line[7] != '0' && line[7] != '1') || line[8] != ' ' ||
        line[9] < '1' || line[9] > '9' || line[10] < '0' || line[10] > '9' || line[11] < '0' ||
        line[11] > '9' || (line[12] != ' ' && line[12] != '\0'))
        return error_set(err, EPROTO, "the answer is not HTTP");
    *ret = (unsigned)((line[9] - '0') * 100 + (line[10] - '0') * 10 + (line[11] - '0'));
    return 0;
}

static int take_header(struct reply_head *h, const char *name, const char *value, struct error *err)
{
    uint64_t length;

    if (strcasecmp(name, "Content-Length") == 0) {
        if (parse_u64(value, 0, INT64_MAX, &length) < 0 ||
            (h->length != UINT64_MAX && h->length != length))
            return error_set(err, EPROTO, "the answer's length is wrong");
        h->length = length;
        return 0;
    }
    if (strcasecmp(name, "Transfer-Encoding") == 0) {
        if (strcasecmp(value, "chunked") != 0)
            return error_set(err, EPROTO, "the answer's transfer encoding is not known");
        h->chunked = true;
    }
    if (strcasecmp(name, "Upgrade") == 0)
        h->upgrade = value;
    if (header_is_hop(name))
        return 0;
    if (strcasecmp(name, "Content-Type") == 0 && !h->type) {
        h->type = value;
        return 0;
    }
    if (h->n_headers >= REPLY_HEADERS_MAX)
        return error_set(err, EPROTO, "the answer has more than %u headers", REPLY_HEADERS_MAX);
    h->headers[h->n_headers++] = (struct reply_header){name, value};
    return 0;
}

int reply_head_parse(char *text, struct reply_head *ret, struct error *err)
{
    bool first = true;
    int r = 0;

    *ret = (struct reply_head){.length = UINT64_MAX};
    while (*text && r >= 0) {
        size_t length = strcspn(text, "\r\n");
        char *line = text, *colon;

        text += length;
        text += *text == '\r';
        text += *text == '\n';
        line[length] = '\0';
        if (first) {
            r = status_line(line, &ret->status, err);
            first = false;
            continue;
        }
        if (length == 0)
            break;
        colon = strchr(line, ':');
        if (!colon || colon == line || line[0] == ' ' || line[0] == '\t')
            return error_set(err, EPROTO, "the answer has a header that is none");
        *colon++ = '\0';
        colon += strspn(colon, " \t");
        for (size_t n = strlen(colon); n > 0 && (colon[n - 1] == ' ' || colon[n - 1] == '\t'); n--)
            colon[n - 1] = '\0';
        r = take_header(ret, line, colon, err);
    }
    if (first)
        return error_set(err, EPROTO, "the answer is empty");
    if (ret->chunked)
        ret->length = UINT64_MAX;
    return r;
}

static int take_size(struct unchunk *u, uint8_t c)
{
    int digit = hex_digit(c);

    if (digit >= 0) {
        if (++u->digits > 15)
            return -EPROTO;
        u->left = u->left * 16 + (uint64_t)digit;
        return 0;
    }
    if (u->digits == 0)
        return -EPROTO;
    if (c == '\n')
        u->at = u->left > 0 ? UNCHUNK_DATA : UNCHUNK_TRAILER;
    else if (c == ';' || c == ' ' || c == '\t' || c == '\r')
        u->at = UNCHUNK_EXT;
    else
        return -EPROTO;
    u->line = 0;
    return 0;
}

static int take_byte(struct unchunk *u, uint8_t c)
{
    switch (u->at) {
    case UNCHUNK_SIZE:
        return take_size(u, c);
    case UNCHUNK_EXT:
        if (c == '\n') {
            u->at = u->left > 0 ? UNCHUNK_DATA : UNCHUNK_TRAILER;
            u->line = 0;
        } else if (++u->line > 4096) {
            return -EPROTO;
        }
        return 0;
    case UNCHUNK_END:
        if (c == '\n') {
            u->at = UNCHUNK_SIZE;
            u->digits = 0;
            u->left = 0;
        } else if (c != '\r') {
            return -EPROTO;
        }
        return 0;
    case UNCHUNK_TRAILER:
        if (c == '\n') {
            if (u->line == 0)
                u->at = UNCHUNK_DONE;
            u->line = 0;
        } else if (c != '\r' && ++u->line > 16384) {
            return -EPROTO;
        }
        return 0;
    default:
        return -EPROTO;
    }
}

ssize_t unchunk(struct unchunk *u, const uint8_t *data, size_t size, const uint8_t **ret_data,
                size_t *ret_size)
{
    size_t i = 0;

    *ret_data = NULL;
    *ret_size = 0;
    while (i < size && u->at != UNCHUNK_DONE) {
        if (u->at == UNCHUNK_DATA) {
            size_t n = (size_t)MIN((uint64_t)(size - i), u->left);

            *ret_data = data + i;
            *ret_size = n;
            u->left -= n;
            if (u->left == 0)
                u->at = UNCHUNK_END;
            return (ssize_t)(i + n);
        }
        if (take_byte(u, data[i++]) < 0)
            return -EPROTO;
    }
    return u->at == UNCHUNK_DONE ? (ssize_t)size : (ssize_t)i;
}
