#include "base/buf.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define BUF_FIRST_CAPACITY 256u

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){.max = max};
}

void buf_done(struct buf *b)
{
    free(b->data);
    *b = (struct buf){.max = b->max};
}

const char *buf_string(const struct buf *b)
{
    return b->data ? (const char *)(b->data + b->start) : "";
}

int buf_reserve(struct buf *b, size_t size, uint8_t **ret)
{
    if (size > b->max - b->size)
        return -ENOBUFS;
    if (b->start + b->size + size > b->capacity) {
        /* Moving the rest to the front is enough when at least half of the space was consumed. */
        if (b->start >= b->capacity / 2 && b->size + size <= b->capacity) {
            memmove(b->data, b->data + b->start, b->size);
        } else {
            size_t capacity = b->capacity ? b->capacity : BUF_FIRST_CAPACITY;
            uint8_t *data;

            while (capacity < b->size + size)
                capacity = capacity > SIZE_MAX / 2 ? b->size + size : capacity * 2;
            data = malloc(capacity + 1);
            if (!data)
                return -ENOMEM;
            if (b->size > 0)
                memcpy(data, b->data + b->start, b->size);
            free(b->data);
            b->data = data;
            b->capacity = capacity;
        }
        b->start = 0;
        b->data[b->size] = '\0';
    }
    *ret = b->data + b->start + b->size;
    return 0;
}

void buf_commit(struct buf *b, size_t size)
{
    b->size += size;
    if (b->data)
        b->data[b->start + b->size] = '\0';
}

int buf_append(struct buf *b, const void *data, size_t size)
{
    uint8_t *to;
    int r;

    if (size == 0)
        return 0;
    r = buf_reserve(b, size, &to);
    if (r < 0)
        return r;
    memcpy(to, data, size);
    buf_commit(b, size);
    return 0;
}

int buf_append_string(struct buf *b, const char *s)
{
    return buf_append(b, s, strlen(s));
}

int buf_printf(struct buf *b, const char *format, ...)
{
    va_list ap;
    uint8_t *to;
    int n, r;

    va_start(ap, format);
    n = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    if (n < 0)
        return -EINVAL;
    /* The NUL that vsnprintf adds has its place behind the capacity. */
    r = buf_reserve(b, (size_t)n, &to);
    if (r < 0)
        return r;
    if (n > 0) {
        va_start(ap, format);
        (void)vsnprintf((char *)to, (size_t)n + 1, format, ap);
        va_end(ap);
        buf_commit(b, (size_t)n);
    }
    return 0;
}

void buf_consume(struct buf *b, size_t size)
{
    if (size > b->size)
        size = b->size;
    b->start += size;
    b->size -= size;
    if (b->size == 0) {
        b->start = 0;
        if (b->data)
            b->data[0] = '\0';
    }
}

void buf_clear(struct buf *b)
{
    buf_consume(b, b->size);
}
