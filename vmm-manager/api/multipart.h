#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

/*
 * A decoder of multipart/form-data that takes the body in pieces and holds none of a part's content
 * back. Everything is foreign: headers of a part, parts and names have limits.
 */
#define MULTIPART_BOUNDARY_MAX 200u
#define MULTIPART_HEADERS_MAX 16384u
#define MULTIPART_PARTS_MAX 1024u
#define MULTIPART_NAME_MAX 4096u

struct multipart_part {
    const char *name;     /* "" when it has none */
    const char *filename; /* NULL when it has none */
};

struct multipart_ops {
    /* A part begins; false: `err` is set and the decoder ends. Strings are valid in the call. */
    bool (*begin)(void *owner, const struct multipart_part *part, struct error *err);
    /* Takes some of its content and returns how much. */
    size_t (*data)(void *owner, const uint8_t *data, size_t size);
    bool (*end)(void *owner, struct error *err);
};

enum multipart_state {
    MULTIPART_PREAMBLE,
    MULTIPART_BOUNDARY, /* after a delimiter: CRLF, or "--" at the end of all */
    MULTIPART_HEADERS,
    MULTIPART_CONTENT,
    MULTIPART_EPILOGUE,
};

struct multipart {
    const struct multipart_ops *ops; /* weak */
    void *owner;                     /* weak */
    char delimiter[MULTIPART_BOUNDARY_MAX + 5];
    size_t n_delimiter;
    enum multipart_state state;
    size_t matched;  /* bytes of the delimiter seen */
    size_t owed;     /* bytes of it that turned out to be content and are not taken yet */
    struct buf line; /* headers of the part */
    unsigned parts;
};

/* From a Content-Type header. -EINVAL and err when it is none of multipart/form-data. */
int multipart_init(struct multipart *m, const char *content_type, const struct multipart_ops *ops,
                   void *owner, struct error *err);
void multipart_done(struct multipart *m);
/*
 * Bytes taken: less than all when `data` took less, and after the end of each part, so that the
 * owner can finish it before the next begins. Negative and err on what is not multipart.
 */
ssize_t multipart_feed(struct multipart *m, const uint8_t *data, size_t size, struct error *err);
/* The body ended: was it whole? */
int multipart_finish(const struct multipart *m, struct error *err);
