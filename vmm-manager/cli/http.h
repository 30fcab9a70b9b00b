#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "cli/http-parse.h"
#include "cli/wait.h"

/*
 * A client of one HTTP/1.1 connection. Written here and not taken from libcurl because the start of
 * `hearth` lies on the way from "create" to the first output: this costs no library to load, and an
 * upgraded connection must hand over its bytes anyway.
 *
 * Theory of operation: the descriptor is non-blocking, every call waits with wait_fd(). One request
 * at a time: http_request() sends it and reads the head of the answer, then the body is taken with
 * http_read(), http_read_all() or http_read_line() up to its end. Only then, and if the server did
 * not say otherwise, the connection serves another request; http_is_reusable() tells.
 */
struct http {
    int fd;            /* owned; -EBADF: not connected */
    struct wait *wait; /* weak */
    struct buf in;     /* received and not yet taken */
    size_t in_use;     /* bytes of `in` that the last http_read() lent out */
    struct http_head head;
    struct http_body body;
    uint64_t silence_usec; /* longest wait for the next byte */
    bool busy;             /* an answer is under way */
    bool broken;           /* must not be used again */
    bool fresh;            /* no request was answered on it yet */
};

#define HTTP_IN_MAX ((size_t)192 * 1024)
#define HTTP_LINE_MAX ((size_t)1024 * 1024)

struct http_request {
    const char *method;
    const char *target; /* path and query, encoded */
    const char *body;   /* JSON; NULL: none */
    size_t body_size;
    int upload_fd; /* with `upload`: read to its end and sent as the body. Blocks */
    bool upload;
    bool upgrade;          /* to hearth-stream */
    const char *accept;    /* NULL: application/json */
    uint64_t silence_usec; /* how long the server may say nothing; USEC_INFINITY: for ever */
    void (*on_sent)(uint64_t total_bytes, void *userdata); /* of an upload; may be NULL */
    void *userdata;
};

void http_init(struct http *h, struct wait *wait);
void http_done(struct http *h);
/* Takes a connected, non-blocking socket; closes the one before. */
void http_set_fd(struct http *h, int fd);
void http_close(struct http *h);
/* May http_request() be called? */
bool http_is_reusable(const struct http *h);

/*
 * Sends and reads the head of the answer into h->head. An answer that comes before an upload is
 * complete ends the upload. -ECONNRESET when the server goes away, -EPROTO when it talks nonsense,
 * -ETIMEDOUT, -EINTR on a signal; the connection is closed then.
 */
int http_request(struct http *h, const struct http_request *request, struct error *err);

/* Next piece of the body, valid until the next call; size 0 at its end. */
int http_read(struct http *h, const uint8_t **ret_data, size_t *ret_size, struct error *err);
/* The rest of the body, appended to `out`; more than out->max is an error. */
int http_read_all(struct http *h, struct buf *out, struct error *err);
/*
 * Next line of the body, without its end, in *ret_line (owned by the caller, who passes the same
 * variable each time: the line before is freed). Returns 1, or 0 at the end of the body. `rest`
 * keeps what was read beyond the line; its maximum bounds a line.
 */
int http_read_line(struct http *h, struct buf *rest, char **ret_line, struct error *err);

/* After a 101: the socket and the bytes that came behind the head, both handed over. */
int http_take_stream(struct http *h, struct buf *ret_rest);
