#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"

/*
 * A growable byte buffer that cannot exist without a maximum. Bytes are appended at the end and
 * consumed from the front. Every append that would pass the maximum fails with -ENOBUFS and changes
 * nothing. The data is always followed by a NUL that does not count.
 */
struct buf {
    uint8_t *data;   /* owned */
    size_t start;    /* first unconsumed byte */
    size_t size;     /* bytes between start and end */
    size_t capacity; /* allocated, without the NUL */
    size_t max;      /* limit of size */
};

void buf_init(struct buf *b, size_t max);
void buf_done(struct buf *b);
#define _cleanup_buf_ _cleanup_(buf_done)

static inline uint8_t *buf_data(const struct buf *b)
{
    return b->data ? b->data + b->start : NULL;
}

/* Contents as a string; "" when empty. Valid until the next change. */
const char *buf_string(const struct buf *b);

int buf_append(struct buf *b, const void *data, size_t size);
int buf_append_string(struct buf *b, const char *s);
int buf_printf(struct buf *b, const char *format, ...) _printf_(2, 3);

/* Makes room for `size` bytes at the end; fill it, then call buf_commit with what was used. */
int buf_reserve(struct buf *b, size_t size, uint8_t **ret);
void buf_commit(struct buf *b, size_t size);

void buf_consume(struct buf *b, size_t size);
void buf_clear(struct buf *b);

static inline size_t buf_room(const struct buf *b)
{
    return b->max - b->size;
}
