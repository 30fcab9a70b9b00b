#include "guest/ring.h"

#include <stdlib.h>
#include <string.h>

#include "base/macros.h"

void ring_init(struct ring *r, size_t max, struct ring_pool *pool)
{
    *r = (struct ring){.max = MAX(max, (size_t)RING_MINIMUM), .pool = pool};
}

void ring_done(struct ring *r)
{
    free(r->data);
    if (r->pool)
        r->pool->used -= r->capacity;
    r->data = NULL;
    r->capacity = 0;
    r->start = r->end;
}

static size_t span_at(const struct ring *r, uint64_t offset, size_t size, size_t *ret_index)
{
    *ret_index = (size_t)(offset % r->capacity);
    return MIN(size, r->capacity - *ret_index);
}

void ring_copy(const struct ring *r, uint64_t offset, void *to, size_t size)
{
    size_t index, n;

    if (size == 0)
        return;
    n = span_at(r, offset, size, &index);
    memcpy(to, r->data + index, n);
    if (n < size)
        memcpy((uint8_t *)to + n, r->data, size - n);
}

static size_t pool_room(const struct ring *r)
{
    return r->pool->used < r->pool->max ? r->pool->max - r->pool->used : 0;
}

static void ring_grow(struct ring *r, size_t wanted)
{
    size_t capacity = r->capacity ? r->capacity : MIN((size_t)RING_FIRST, r->max), used, index, n;
    uint8_t *data;

    while (capacity < wanted && capacity < r->max)
        capacity = capacity > r->max / 2 ? r->max : capacity * 2;
    if (capacity - r->capacity > pool_room(r)) {
        if (r->capacity > 0)
            return;
        capacity = RING_MINIMUM;
    }
    if (capacity <= r->capacity)
        return;
    data = malloc(capacity);
    if (!data)
        return;
    used = (size_t)(r->end - r->start);
    if (used > 0) {
        /* Same offsets, other modulus: the old content is laid out anew. */
        index = (size_t)(r->start % capacity);
        n = MIN(used, capacity - index);
        ring_copy(r, r->start, data + index, n);
        ring_copy(r, r->start + n, data, used - n);
    }
    free(r->data);
    r->data = data;
    r->pool->used += capacity - r->capacity;
    r->capacity = capacity;
}

size_t ring_prepare(struct ring *r, uint64_t keep, size_t size, struct iovec iov[2])
{
    size_t used = (size_t)(r->end - r->start), room, index, n;

    iov[0] = iov[1] = (struct iovec){0};
    if (used + size > r->capacity && r->capacity < r->max)
        ring_grow(r, used + size);
    if (r->capacity == 0)
        return 0;
    room = r->capacity - used;
    if (room < size && keep > r->start) {
        ring_drop(r, MIN(size - room, (size_t)MIN(keep - r->start, (uint64_t)used)));
        room = r->capacity - (size_t)(r->end - r->start);
    }
    size = MIN(size, room);
    if (size == 0)
        return 0;
    n = span_at(r, r->end, size, &index);
    iov[0] = (struct iovec){.iov_base = r->data + index, .iov_len = n};
    iov[1] = (struct iovec){.iov_base = r->data, .iov_len = size - n};
    return size;
}

void ring_commit(struct ring *r, size_t size)
{
    r->end += size;
}

void ring_drop(struct ring *r, size_t size)
{
    r->start += MIN((uint64_t)size, r->end - r->start);
}

size_t ring_peek(const struct ring *r, uint64_t offset, const uint8_t **ret)
{
    size_t index, n;

    if (offset < r->start || offset >= r->end)
        return 0;
    n = span_at(r, offset, (size_t)(r->end - offset), &index);
    *ret = r->data + index;
    return n;
}
