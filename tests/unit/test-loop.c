#include "harness/test.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/worker.h"

struct state {
    struct loop *loop;
    struct source *a, *b;
    int count;
    int order[16];
};

static int fire(struct source *s, uint64_t now, void *userdata)
{
    struct state *st = userdata;

    (void)now;
    st->order[st->count++] = s == st->a ? 1 : 2;
    if (st->count == 2)
        loop_quit(st->loop, 5);
    return 0;
}

TEST(timers_fire_in_order_of_time)
{
    struct state st = {0};
    uint64_t now = clock_now_usec();

    ASSERT_OK(loop_new(&st.loop));
    ASSERT_OK(loop_add_timer(st.loop, "a", now + 3000, fire, &st, &st.a));
    ASSERT_OK(loop_add_timer(st.loop, "b", now + 1000, fire, &st, &st.b));
    ASSERT_EQ(loop_run(st.loop), 5);
    ASSERT_EQ(st.order[0], 2);
    ASSERT_EQ(st.order[1], 1);
    source_free(st.a);
    source_free(st.b);
    loop_free(st.loop);
}

static int nothing(struct source *s, uint64_t now, void *userdata)
{
    (void)s;
    (void)now;
    (*(int *)userdata)++;
    return 0;
}

TEST(a_thousand_timers_armed_and_disarmed_at_random_fire_exactly_when_armed)
{
    struct loop *loop;
    struct source *s[1000];
    int fired = 0, armed = 0;
    uint64_t now = clock_now_usec();
    unsigned seed = 1;

    ASSERT_OK(loop_new(&loop));
    for (int i = 0; i < 1000; i++)
        ASSERT_OK(loop_add_timer(loop, "t", now + (unsigned)rand_r(&seed) % 2000, nothing, &fired,
                                 &s[i]));
    for (int i = 0; i < 1000; i++) {
        if (rand_r(&seed) % 2)
            ASSERT_OK(source_set_time(s[i], USEC_INFINITY));
        else
            armed++;
    }
    do /* at least once: a busy machine may have come here late */
        ASSERT_OK(loop_run_once(loop, 1000));
    while (clock_now_usec() < now + 20000);
    ASSERT_EQ(fired, armed);
    for (int i = 0; i < 1000; i++)
        source_free(s[i]);
    loop_free(loop);
}

static int free_both(struct source *s, int fd, uint32_t events, void *userdata)
{
    struct state *st = userdata;

    (void)s;
    (void)fd;
    (void)events;
    st->count++;
    st->a = source_free(st->a);
    st->b = source_free(st->b);
    return 0;
}

TEST(freeing_sources_inside_a_callback_stops_their_callbacks)
{
    struct state st = {0};
    int p[2], q[2];

    ASSERT_OK(pipe2(p, O_CLOEXEC));
    ASSERT_OK(pipe2(q, O_CLOEXEC));
    ASSERT_EQ(write(p[1], "x", 1), 1);
    ASSERT_EQ(write(q[1], "x", 1), 1);
    ASSERT_OK(loop_new(&st.loop));
    ASSERT_OK(loop_add_io(st.loop, "p", p[0], EPOLLIN, free_both, &st, &st.a));
    ASSERT_OK(loop_add_io(st.loop, "q", q[0], EPOLLIN, free_both, &st, &st.b));
    ASSERT_OK(loop_run_once(st.loop, 0));
    ASSERT_OK(loop_run_once(st.loop, 0));
    ASSERT_EQ(st.count, 1);
    loop_free(st.loop);
    for (int i = 0; i < 2; i++) {
        close(p[i]);
        close(q[i]);
    }
}

static int fail(struct source *s, int fd, uint32_t events, void *userdata)
{
    (void)s;
    (void)fd;
    (void)events;
    (*(int *)userdata)++;
    return -EIO;
}

TEST(a_failing_source_is_disabled_and_the_loop_goes_on)
{
    struct loop *loop;
    struct source *s;
    int p[2], count = 0;

    ASSERT_OK(pipe2(p, O_CLOEXEC));
    ASSERT_EQ(write(p[1], "x", 1), 1);
    ASSERT_OK(loop_new(&loop));
    ASSERT_OK(loop_add_io(loop, "p", p[0], EPOLLIN, fail, &count, &s));
    for (int i = 0; i < 3; i++)
        ASSERT_OK(loop_run_once(loop, 0));
    ASSERT_EQ(count, 1);
    source_free(s);
    loop_free(loop);
    close(p[0]);
    close(p[1]);
}

static int child_ended(struct source *s, const siginfo_t *info, void *userdata)
{
    struct state *st = userdata;

    (void)s;
    st->count = info->si_status;
    loop_quit(st->loop, 0);
    return 0;
}

TEST(reaps_a_child_by_its_pidfd)
{
    struct state st = {0};
    pid_t pid = fork();
    int pidfd;

    if (pid == 0)
        _exit(42);
    pidfd = pidfd_open(pid, 0);
    ASSERT_OK(pidfd);
    ASSERT_OK(loop_new(&st.loop));
    ASSERT_OK(loop_add_child(st.loop, "child", pidfd, child_ended, &st, &st.a));
    ASSERT_OK(loop_run(st.loop));
    ASSERT_EQ(st.count, 42);
    ASSERT_EQ(waitpid(pid, NULL, WNOHANG), -1);
    source_free(st.a);
    loop_free(st.loop);
    close(pidfd);
}

struct job {
    struct state *st;
    pthread_t thread;
    int cancelled;
};

static void run_job(void *data)
{
    struct job *job = data;

    job->thread = pthread_self();
}

static void job_done(void *data, int cancelled)
{
    struct job *job = data;

    job->cancelled = cancelled;
    ASSERT_TRUE(!pthread_equal(job->thread, pthread_self()));
    if (++job->st->count == 100)
        loop_quit(job->st->loop, 0);
}

TEST(workers_run_elsewhere_and_finish_on_the_loop)
{
    struct state st = {0};
    struct workers *w;
    struct job jobs[100] = {0};

    ASSERT_OK(loop_new(&st.loop));
    ASSERT_OK(workers_new(st.loop, "test", 3, 1000, &w));
    for (int i = 0; i < 100; i++) {
        jobs[i].st = &st;
        ASSERT_OK(workers_submit(w, run_job, job_done, &jobs[i]));
    }
    ASSERT_OK(loop_run(st.loop));
    ASSERT_EQ(st.count, 100);
    workers_free(w);
    loop_free(st.loop);
}

static int got_signal(struct source *s, int signo, void *userdata)
{
    struct state *st = userdata;

    (void)s;
    st->count = signo;
    loop_quit(st->loop, 0);
    return 0;
}

TEST(delivers_signals_to_the_loop)
{
    struct state st = {0};

    ASSERT_OK(loop_new(&st.loop));
    ASSERT_OK(loop_add_signal(st.loop, "usr1", SIGUSR1, got_signal, &st, &st.a));
    ASSERT_OK(kill(getpid(), SIGUSR1));
    ASSERT_OK(loop_run(st.loop));
    ASSERT_EQ(st.count, SIGUSR1);
    source_free(st.a);
    loop_free(st.loop);
}
