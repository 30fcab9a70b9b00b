#include "harness/test.h"

#include "protocol/frame.h"

static size_t make(uint8_t *out, uint32_t size)
{
    frame_encode_header(out, FRAME_DATA, 2, 77, 0x123456789aULL, size);
    memset(out + FRAME_HEADER_SIZE, 'x', size);
    return FRAME_HEADER_SIZE + size;
}

TEST(decodes_what_it_encoded_only_when_all_is_there)
{
    uint8_t data[200];
    size_t n = make(data, 100), used;
    struct frame f;

    for (size_t i = 0; i < n; i++)
        ASSERT_EQ(frame_decode(data, i, FRAME_EVENT_MAX, &f, &used), FRAME_MORE);
    ASSERT_EQ(frame_decode(data, n, FRAME_EVENT_MAX, &f, &used), FRAME_OK);
    ASSERT_EQ(used, n);
    ASSERT_EQ(f.kind, FRAME_DATA);
    ASSERT_EQ(f.stream, 2);
    ASSERT_EQ(f.channel, 77);
    ASSERT_EQ(f.offset, 0x123456789aLL);
    ASSERT_EQ(f.size, 100);
}

TEST(refuses_bad_magic_kind_and_size)
{
    uint8_t data[64], bad[64];
    size_t used;
    struct frame f;

    make(data, 10);
    for (size_t at = 4; at < 8; at++) {
        if (at == 5)
            continue; /* the stream may be any */
        memcpy(bad, data, sizeof(bad));
        bad[at] ^= 0x40;
        ASSERT_EQ(frame_decode(bad, sizeof(bad), FRAME_EVENT_MAX, &f, &used), FRAME_BAD);
    }
    frame_encode_header(data, FRAME_DATA, 0, 1, 0, FRAME_DATA_MAX + 1);
    ASSERT_EQ(frame_decode(data, sizeof(data), FRAME_EVENT_MAX, &f, &used), FRAME_BAD);
    frame_encode_header(data, FRAME_CONTROL, 0, 1, 0, FRAME_EVENT_MAX + 1);
    ASSERT_EQ(frame_decode(data, sizeof(data), FRAME_EVENT_MAX, &f, &used), FRAME_BAD);
    ASSERT_EQ(frame_decode(data, sizeof(data), FRAME_CONTROL_MAX, &f, &used), FRAME_MORE);
    memset(data, 0, sizeof(data));
    ASSERT_EQ(frame_decode(data, sizeof(data), FRAME_EVENT_MAX, &f, &used), FRAME_BAD);
}

TEST(finds_the_sync_in_garbage_at_every_split)
{
    uint8_t data[100];
    size_t used;
    struct frame f;
    bool found;

    memset(data, 0x7f, sizeof(data));
    memcpy(data + 40, frame_sync, FRAME_SYNC_SIZE);
    for (size_t n = 0; n <= sizeof(data); n++) {
        size_t skipped = frame_skip_to_sync(data, n, &found);

        ASSERT_TRUE(skipped <= 40);
        ASSERT_EQ(found, n >= 56);
        if (n >= 41 && n < 56)
            ASSERT_EQ(skipped, 40);
    }
    ASSERT_EQ(frame_decode(frame_sync, FRAME_SYNC_SIZE, FRAME_EVENT_MAX, &f, &used), FRAME_SYNCED);
    ASSERT_EQ(frame_decode(frame_sync, 15, FRAME_EVENT_MAX, &f, &used), FRAME_MORE);
}
