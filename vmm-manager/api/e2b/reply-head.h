#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/*
 * The head of an HTTP/1.x answer of a guest's own server, and its chunked body: foreign bytes, all
 * lengths checked.
 */
#define REPLY_HEAD_MAX (64u * 1024u)
#define REPLY_HEADERS_MAX 60u

struct reply_header {
    const char *name, *value; /* into the text */
};

struct reply_head {
    unsigned status;
    struct reply_header headers[REPLY_HEADERS_MAX];
    size_t n_headers;
    const char *type; /* NULL when absent */
    uint64_t length;  /* UINT64_MAX: not given */
    bool chunked;
    const char *upgrade; /* NULL when absent */
};

/*
 * `text` is NUL-terminated and writable, ends with the empty line and is cut up. Headers of the
 * connection itself are not listed.
 */
int reply_head_parse(char *text, struct reply_head *ret, struct error *err);

/* A header that belongs to one connection and is not passed on. */
bool header_is_hop(const char *name);

/* Takes the chunks off a body. */
struct unchunk {
    uint64_t left; /* of the chunk */
    enum { UNCHUNK_SIZE, UNCHUNK_EXT, UNCHUNK_DATA, UNCHUNK_END, UNCHUNK_TRAILER, UNCHUNK_DONE } at;
    unsigned digits;
    unsigned line; /* bytes of the trailer's line */
};
/*
 * Reads from data; *ret_data and *ret_size are the next piece of the body (size 0: none yet).
 * Returns the bytes that were used, or -EPROTO.
 */
ssize_t unchunk(struct unchunk *u, const uint8_t *data, size_t size, const uint8_t **ret_data,
                size_t *ret_size);
