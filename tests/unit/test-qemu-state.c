#include <stdio.h>

#include "backend/qemu/qemu-state.h"
#include "base/buf.h"
#include "base/file.h"
#include "harness/test.h"

TEST(tells_a_state_with_configuration_from_one_without)
{
    char path[256];
    bool bare = false;
    struct error err = {0};

    (void)snprintf(path, sizeof(path), "%s/state", test_tmpdir());
    ASSERT_OK(file_write_atomic(path, "QEVM\0\0\0\3\4....", 13, 0600, NULL));
    ASSERT_OK(state_is_bare(path, &bare, &err));
    ASSERT_TRUE(bare);
    ASSERT_OK(file_write_atomic(path, "QEVM\0\0\0\3\7....", 13, 0600, NULL));
    ASSERT_OK(state_is_bare(path, &bare, &err));
    ASSERT_FALSE(bare);
    ASSERT_OK(file_write_atomic(path, "QEVM\0\0\0\3", 8, 0600, NULL));
    ASSERT_ERR(state_is_bare(path, &bare, &err), EINVAL);
    ASSERT_OK(file_write_atomic(path, "MVEQ\0\0\0\3\4", 9, 0600, NULL));
    ASSERT_ERR(state_is_bare(path, &bare, &err), EINVAL);
    ASSERT_EQ(err.code, ERR_SNAPSHOT_INVALID);
}

static void add_section(struct buf *out, char number, const char *name, const char *data,
                        size_t size)
{
    const char head[] = {4, 0, 0, 0, number, (char)strlen(name)};
    const char foot[] = {0x7e, 0, 0, 0, number};

    ASSERT_OK(buf_append(out, head, sizeof(head)));
    ASSERT_OK(buf_append_string(out, name));
    ASSERT_OK(buf_append(out, data, size));
    ASSERT_OK(buf_append(out, foot, sizeof(foot)));
}

/* A clock, a queue, another device; valid until the next call but one. */
static const struct buf *state_of(const char *clock, const char *queue, const char *last)
{
    static struct buf out[2];
    static unsigned turn;
    struct buf *b = &out[turn++ % 2];

    buf_done(b);
    buf_init(b, 4096);
    ASSERT_OK(buf_append(b, "QEVM\0\0\0\3", 8));
    add_section(b, 1, "mc146818rtc", clock, strlen(clock));
    add_section(b, 2, "0000:00:04.0/virtio-console", queue, strlen(queue));
    add_section(b, 3, last, "~~~", 3);
    return b;
}

static bool same(const struct buf *a, const struct buf *b)
{
    return state_same_queues(buf_data(a), a->size, buf_data(b), b->size);
}

TEST(sees_queues_move_and_not_clocks)
{
    const struct buf *a = state_of("12:00", "seven", "i8259");

    ASSERT_TRUE(same(a, state_of("12:01", "seven", "i8259")));
    a = state_of("12:00", "seven", "i8259");
    ASSERT_FALSE(same(a, state_of("12:00", "eight", "i8259")));
    a = state_of("12:00", "seven", "i8259");
    ASSERT_FALSE(same(a, state_of("12:00", "seven", "virtio")));
    a = state_of("12:00", "seven", "virtio");
    ASSERT_FALSE(same(a, state_of("12:00", "seven", "i8259")));
}

TEST(compares_all_of_a_state_that_it_does_not_know)
{
    static const char a[] = "QEVM\0\0\0\3.1", b[] = "QEVM\0\0\0\3.2";
    static const char cut[] = "QEVM\0\0\0\3\4\0\0\0\1\377virtio";

    ASSERT_TRUE(state_same_queues(a, sizeof(a), a, sizeof(a)));
    ASSERT_FALSE(state_same_queues(a, sizeof(a), b, sizeof(b)));
    ASSERT_FALSE(state_same_queues(a, sizeof(a), a, sizeof(a) - 1));
    ASSERT_TRUE(state_same_queues(cut, sizeof(cut), cut, sizeof(cut)));
    ASSERT_TRUE(state_same_queues("", 0, "", 0));
}
