#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "backend/firecracker/fc-client.h"
#include "base/clock.h"
#include "base/fd.h"
#include "harness/test.h"

/* Deadlines of calls to an API that takes connections and never says a word. */

#define CALLS 10u
#define PATIENCE_USEC (10 * USEC_PER_SEC)

struct api {
    struct loop *loop;        /* owned */
    struct fc_client *client; /* owned */
    int fd;                   /* owned; listens */
    char path[108];
    unsigned n_answers, n_timeouts;
};

static void api_begin(struct api *a)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};

    *a = (struct api){0};
    (void)snprintf(a->path, sizeof(a->path), "%s/api.sock", test_tmpdir());
    memcpy(at.sun_path, a->path, sizeof(at.sun_path));
    a->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_TRUE(a->fd >= 0);
    ASSERT_OK(bind(a->fd, (struct sockaddr *)&at, sizeof(at)));
    ASSERT_OK(listen(a->fd, 2 * CALLS));
    ASSERT_OK(loop_new(&a->loop));
    ASSERT_OK(fc_client_new(a->loop, &a->client));
}

static void api_end(struct api *a)
{
    (void)fc_client_free(a->client);
    loop_free(a->loop);
    (void)fd_close(a->fd);
    (void)unlink(a->path);
}

static void on_answer(long status, const json_t *answer, const struct error *err, void *userdata)
{
    struct api *a = userdata;

    (void)status;
    (void)answer;
    a->n_answers++;
    a->n_timeouts += err && err->code == ERR_TIMEOUT;
}

static void call(struct api *a, uint64_t deadline_usec)
{
    struct error err = {0};

    ASSERT_OK(fc_client_call(a->client, a->path, "PUT", "/actions", json_object(), deadline_usec,
                             on_answer, a, NULL, &err));
}

static void wait_for_answers(struct api *a, unsigned count)
{
    uint64_t until = clock_now_usec() + PATIENCE_USEC;

    while (a->n_answers < count) {
        if (clock_now_usec() > until)
            test_fail(__FILE__, __LINE__, "%u of %u calls outlive their deadline",
                      count - a->n_answers, count);
        ASSERT_OK(loop_run_once(a->loop, 100 * USEC_PER_MSEC));
    }
    ASSERT_EQ(a->n_timeouts, count);
}

/* libcurl has a timer of its own after 200 ms, which takes a time-out of 201 ms with it. */
TEST(a_call_does_not_outlive_its_deadline)
{
    struct api a;

    api_begin(&a);
    for (unsigned i = 0; i < CALLS; i++) {
        call(&a, clock_now_usec() + 200 * USEC_PER_MSEC + 100 * i);
        wait_for_answers(&a, i + 1);
    }
    api_end(&a);
}

TEST(a_deadline_that_is_over_is_told_from_the_loop)
{
    struct api a;

    api_begin(&a);
    call(&a, 1);
    ASSERT_EQ(a.n_answers, 0);
    wait_for_answers(&a, 1);
    api_end(&a);
}
