#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 * The last bytes of an output stream, addressed by their offset from the stream's beginning. Memory
 * grows with use up to `max`; all rings of a pool together stay below the pool's limit, except that
 * every ring in use gets RING_MINIMUM, so that no process is stalled by the others' history.
 */
struct ring_pool {
    size_t used, max; /* bytes */
};

struct ring {
    uint8_t *data; /* owned; byte at offset o stands at o % capacity */
    size_t capacity, max;
    uint64_t start, end;    /* offsets of the oldest byte kept and one past the newest */
    struct ring_pool *pool; /* weak */
};

#define RING_MINIMUM 4096u
#define RING_FIRST (64u * 1024u)

void ring_init(struct ring *r, size_t max, struct ring_pool *pool);
/* Frees the memory; offsets stay readable, the content is gone (start = end). */
void ring_done(struct ring *r);

/*
 * Makes room for up to `size` bytes after the newest, growing or forgetting bytes below the offset
 * `keep`. Returns how many can be written now and where: iov[0], then iov[1] (may be empty).
 */
size_t ring_prepare(struct ring *r, uint64_t keep, size_t size, struct iovec iov[2]);
void ring_commit(struct ring *r, size_t size);

/* Forgets the oldest bytes. */
void ring_drop(struct ring *r, size_t size);

/* Contiguous bytes at `offset`, which is within [start, end]; returns their count. */
size_t ring_peek(const struct ring *r, uint64_t offset, const uint8_t **ret);
/* Copies out; the range lies within [start, end]. */
void ring_copy(const struct ring *r, uint64_t offset, void *to, size_t size);
