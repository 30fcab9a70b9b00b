#include <string.h>

#include "guest/ring.h"
#include "harness/test.h"

static struct ring_pool pool = {.max = 1024 * 1024};

static uint8_t byte_at(uint64_t offset)
{
    return (uint8_t)(offset * 31 + offset / 257);
}

/* Writes up to `size` bytes of the pattern; returns how many went in. */
static size_t fill(struct ring *r, uint64_t keep, size_t size)
{
    struct iovec iov[2];
    uint64_t at = r->end;
    size_t n = ring_prepare(r, keep, size, iov), i = 0;

    for (unsigned v = 0; v < 2; v++)
        for (size_t k = 0; k < iov[v].iov_len; k++, i++)
            ((uint8_t *)iov[v].iov_base)[k] = byte_at(at + i);
    ASSERT_EQ(i, n);
    ring_commit(r, n);
    return n;
}

static void check(const struct ring *r)
{
    uint64_t at = r->start;

    while (at < r->end) {
        const uint8_t *data;
        size_t n = ring_peek(r, at, &data);

        ASSERT_TRUE(n > 0);
        for (size_t i = 0; i < n; i++)
            ASSERT_EQ(data[i], byte_at(at + i));
        at += n;
    }
}

TEST(content_survives_growing_and_wrapping)
{
    struct ring r;
    uint64_t written = 0;

    ring_init(&r, 300000, &pool);
    for (size_t step = 1; written < 2000000; step = step * 7 % 40009 + 1) {
        written += fill(&r, r.end, step);
        ASSERT_TRUE(r.end - r.start <= 300000);
        ASSERT_EQ(r.end, written);
        check(&r);
    }
    ASSERT_EQ(r.capacity, 300000);
    ring_done(&r);
    ASSERT_EQ(pool.used, 0);
    ASSERT_EQ(r.start, r.end);
}

TEST(bytes_from_keep_on_are_never_overwritten)
{
    struct ring r;

    ring_init(&r, 8192, &pool);
    ASSERT_EQ(fill(&r, 0, 8192), 8192);
    ASSERT_EQ(fill(&r, 0, 100), 0);
    ASSERT_EQ(fill(&r, 60, 100), 60);
    ASSERT_EQ(r.start, 60);
    ASSERT_EQ(fill(&r, 60, 100), 0);
    ASSERT_EQ(fill(&r, r.end, 8192), 8192);
    check(&r);
    ring_done(&r);
}

TEST(a_full_pool_leaves_each_ring_the_minimum)
{
    struct ring_pool small = {.max = 100000};
    struct ring a, b;

    ring_init(&a, 1 << 20, &small);
    ring_init(&b, 1 << 20, &small);
    ASSERT_EQ(fill(&a, 0, 60000), 60000);
    ASSERT_EQ(fill(&a, 0, 60000), 65536 - 60000);
    ASSERT_EQ(fill(&b, 0, 60000), RING_MINIMUM);
    ASSERT_EQ(fill(&b, b.end, 60000), RING_MINIMUM);
    check(&a);
    check(&b);
    ring_done(&a);
    ASSERT_EQ(fill(&b, b.end, 60000), 60000);
    ring_done(&b);
    ASSERT_EQ(small.used, 0);
}

TEST(peek_outside_gives_nothing)
{
    struct ring r;
    const uint8_t *data;

    ring_init(&r, 4096, &pool);
    ASSERT_EQ(ring_peek(&r, 0, &data), 0);
    (void)fill(&r, 0, 5000);
    ring_drop(&r, 10);
    ASSERT_EQ(ring_peek(&r, 9, &data), 0);
    ASSERT_EQ(ring_peek(&r, r.end, &data), 0);
    ASSERT_EQ(ring_peek(&r, 10, &data), 4086);
    ring_drop(&r, 100000);
    ASSERT_EQ(r.start, r.end);
    ring_done(&r);
}
