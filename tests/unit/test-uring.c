#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/uring.h"
#include "harness/test.h"

struct world {
    struct loop *loop;
    struct uring *uring;
    int fd;
};

static void begin(struct world *w, unsigned entries)
{
    char path[256];
    int r;

    ASSERT_OK(loop_new(&w->loop));
    r = uring_new(w->loop, entries, &w->uring);
    if (r == -ENOSYS || r == -EPERM)
        test_skip("no io_uring here");
    ASSERT_OK(r);
    (void)snprintf(path, sizeof(path), "%s/file", test_tmpdir());
    w->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ASSERT_OK(w->fd);
}

static void end(struct world *w)
{
    w->uring = uring_free(w->uring);
    w->fd = fd_close(w->fd);
    w->loop = loop_free(w->loop);
}

struct result {
    bool done;
    int value;
};

static void on_done(int value, void *userdata)
{
    struct result *result = userdata;

    ASSERT_FALSE(result->done);
    result->done = true;
    result->value = value;
}

static void wait_for(struct world *w, const struct result *result)
{
    uint64_t deadline = clock_now_usec() + 10 * USEC_PER_SEC;

    while (!result->done) {
        ASSERT_TRUE(clock_now_usec() < deadline);
        ASSERT_OK(loop_run_once(w->loop, 100 * USEC_PER_MSEC));
    }
}

TEST(what_is_written_is_read_back)
{
    struct world w;
    struct result wrote = {0}, got = {0};
    char text[16] = "";

    begin(&w, 8);
    ASSERT_OK(uring_write(w.uring, w.fd, "warm stones", 11, 5, on_done, &wrote));
    ASSERT_FALSE(wrote.done); /* never from inside the call */
    wait_for(&w, &wrote);
    ASSERT_EQ(wrote.value, 11);
    ASSERT_OK(uring_read(w.uring, w.fd, text, sizeof(text) - 1, 5, on_done, &got));
    wait_for(&w, &got);
    ASSERT_EQ(got.value, 11); /* the file ends there */
    ASSERT_STREQ(text, "warm stones");
    end(&w);
}

TEST(error_of_the_kernel_is_the_result)
{
    struct world w;
    struct result got = {0};
    char byte;

    begin(&w, 2);
    ASSERT_OK(uring_read(w.uring, -1, &byte, 1, 0, on_done, &got));
    wait_for(&w, &got);
    ASSERT_EQ(got.value, -EBADF);
    end(&w);
}

TEST(number_in_flight_is_limited_and_slots_come_back)
{
    struct world w;
    struct result results[4] = {0}, extra = {0};
    char bytes[4];

    begin(&w, 4);
    for (unsigned round = 0; round < 100; round++) {
        for (unsigned i = 0; i < 4; i++) {
            results[i] = (struct result){0};
            ASSERT_OK(uring_read(w.uring, w.fd, &bytes[i], 1, 0, on_done, &results[i]));
        }
        ASSERT_ERR(uring_read(w.uring, w.fd, &bytes[0], 1, 0, on_done, &extra), EAGAIN);
        for (unsigned i = 0; i < 4; i++)
            wait_for(&w, &results[i]);
    }
    ASSERT_FALSE(extra.done);
    end(&w);
}

TEST(freeing_with_requests_in_flight_calls_nobody)
{
    struct world w;
    struct result results[4] = {0};
    char bytes[4];

    begin(&w, 4);
    for (unsigned i = 0; i < 4; i++)
        ASSERT_OK(uring_read(w.uring, w.fd, &bytes[i], 1, 0, on_done, &results[i]));
    end(&w);
    for (unsigned i = 0; i < 4; i++)
        ASSERT_FALSE(results[i].done);
}
