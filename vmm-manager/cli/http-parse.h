#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

/* Decoders of HTTP/1.1 answers. Pure: bytes in, meaning out. Every byte is foreign. */
#define HTTP_HEAD_MAX ((size_t)32 * 1024)

struct http_head {
    int status;
    bool chunked;
    bool close;    /* the connection ends after the body */
    bool upgraded; /* status 101 to hearth-stream */
    bool has_length;
    uint64_t length;
    char reason[64];
    char content_type[64];
};

/*
 * Reads a head from the front of `data`. Returns its size with the empty line, 0 when it is not
 * complete yet, -EPROTO when it is none or is longer than HTTP_HEAD_MAX.
 */
ssize_t http_head_parse(const char *data, size_t size, struct http_head *ret, struct error *err);

enum http_body_state {
    HTTP_BODY_LENGTH,    /* `left` bytes to come */
    HTTP_BODY_UNTIL_EOF, /* the end of the connection is the end of the body */
    HTTP_CHUNK_SIZE,     /* a line with the size of the next chunk */
    HTTP_CHUNK_DATA,     /* `left` bytes of it to come */
    HTTP_CHUNK_END,      /* the line end after it */
    HTTP_TRAILER,        /* lines until an empty one */
    HTTP_BODY_END,
};

struct http_body {
    enum http_body_state state;
    uint64_t left;
    unsigned line; /* bytes seen of a line that must stay short */
};

void http_body_init(struct http_body *b, const struct http_head *head);

/*
 * Takes bytes from the front of `data`: `ret_used` are done with, of which the `ret_size` at
 * `ret_payload` are content. Call again with the rest until nothing is used or the state is
 * HTTP_BODY_END. -EPROTO on anything malformed.
 */
int http_body_next(struct http_body *b, const uint8_t *data, size_t size, size_t *ret_used,
                   const uint8_t **ret_payload, size_t *ret_size, struct error *err);
