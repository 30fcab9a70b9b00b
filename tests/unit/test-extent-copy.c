#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "core/extent-copy.h"
#include "harness/test.h"

struct world {
    struct loop *loop;
    struct uring *uring;
    char from[256], to[256];
    bool done;
    struct error err;
};

static void begin(struct world *w)
{
    int r;

    *w = (struct world){0};
    ASSERT_OK(loop_new(&w->loop));
    r = uring_new(w->loop, 64, &w->uring);
    if (r == -ENOSYS || r == -EPERM)
        test_skip("no io_uring here");
    ASSERT_OK(r);
    (void)snprintf(w->from, sizeof(w->from), "%s/from", test_tmpdir());
    (void)snprintf(w->to, sizeof(w->to), "%s/to", test_tmpdir());
    (void)unlink(w->from);
    (void)unlink(w->to);
}

static void end(struct world *w)
{
    w->uring = uring_free(w->uring);
    w->loop = loop_free(w->loop);
}

static void on_done(const struct error *err, void *userdata)
{
    struct world *w = userdata;

    ASSERT_FALSE(w->done);
    w->done = true;
    if (err)
        w->err = *err;
}

static void copy(struct world *w)
{
    struct extent_copy *c = NULL;
    uint64_t deadline = clock_now_usec() + 20 * USEC_PER_SEC;

    ASSERT_OK(extent_copy_start(w->loop, w->uring, w->from, w->to, on_done, w, &c, NULL));
    while (!w->done) {
        ASSERT_TRUE(clock_now_usec() < deadline);
        ASSERT_OK(loop_run_once(w->loop, 100 * USEC_PER_MSEC));
    }
    c = extent_copy_free(c);
}

static void put(int fd, uint64_t offset, size_t size)
{
    unsigned char *data = malloc(size);

    ASSERT_TRUE(data);
    for (size_t i = 0; i < size; i++)
        data[i] = (unsigned char)((offset + i) * 31 >> 3);
    ASSERT_EQ(pwrite(fd, data, size, (off_t)offset), size);
    free(data);
}

static void compare(const struct world *w)
{
    _cleanup_close_ int a = open(w->from, O_RDONLY | O_CLOEXEC);
    _cleanup_close_ int b = open(w->to, O_RDONLY | O_CLOEXEC);
    static char left[1 << 20], right[1 << 20];

    for (;;) {
        ssize_t n = fd_read_full(a, left, sizeof(left)), m = fd_read_full(b, right, sizeof(right));

        ASSERT_EQ(n, m);
        if (n <= 0)
            return;
        ASSERT_MEMEQ(left, right, (size_t)n);
    }
}

TEST(sparse_file_is_copied_with_its_holes)
{
    struct world w;
    struct stat a, b;
    int fd;

    begin(&w);
    fd = open(w.from, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_OK(fd);
    put(fd, 0, 100);
    put(fd, 5 << 20, (3 << 20) + 77); /* more than all lanes hold at once */
    put(fd, 40 << 20, 4096);
    ASSERT_OK(ftruncate(fd, 64 << 20)); /* a hole to the end */
    fd = fd_close(fd);
    copy(&w);
    ASSERT_EQ(w.err.errnum, 0);
    compare(&w);
    ASSERT_OK(stat(w.from, &a));
    ASSERT_OK(stat(w.to, &b));
    ASSERT_EQ(a.st_size, b.st_size);
    ASSERT_TRUE(b.st_blocks <= a.st_blocks + 64);
    end(&w);
}

TEST(empty_file_and_file_of_one_hole_are_copied)
{
    struct world w;
    struct stat st;

    begin(&w);
    ASSERT_OK(file_write_atomic(w.from, "", 0, 0600, NULL));
    copy(&w);
    ASSERT_EQ(w.err.errnum, 0);
    ASSERT_OK(unlink(w.to));
    ASSERT_OK(truncate(w.from, 1 << 20));
    w.done = false;
    copy(&w);
    ASSERT_EQ(w.err.errnum, 0);
    ASSERT_OK(stat(w.to, &st));
    ASSERT_EQ(st.st_size, 1 << 20);
    end(&w);
}

TEST(existing_target_is_refused_and_kept)
{
    struct world w;
    struct extent_copy *c = NULL;
    struct error err = {0};

    begin(&w);
    ASSERT_OK(file_write_atomic(w.from, "new", 3, 0600, NULL));
    ASSERT_OK(file_write_atomic(w.to, "old", 3, 0600, NULL));
    ASSERT_ERR(extent_copy_start(w.loop, w.uring, w.from, w.to, on_done, &w, &c, &err), EEXIST);
    ASSERT_TRUE(file_exists(w.to));
    end(&w);
}

TEST(copy_given_up_leaves_no_file)
{
    struct world w;
    struct extent_copy *c = NULL;
    int fd;

    begin(&w);
    fd = open(w.from, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    put(fd, 0, 8 << 20);
    fd = fd_close(fd);
    ASSERT_OK(extent_copy_start(w.loop, w.uring, w.from, w.to, on_done, &w, &c, NULL));
    ASSERT_OK(loop_run_once(w.loop, 0));
    w.uring = uring_free(w.uring); /* lets go of the buffers */
    c = extent_copy_free(c);
    /* A fast disk may have been done by then. */
    ASSERT_EQ(file_exists(w.to), w.done);
    end(&w);
}
