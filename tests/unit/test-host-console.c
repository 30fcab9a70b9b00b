#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness/test.h"
#include "host/console-internal.h"
#include "host/console.h"
#include "host/exec.h"
#include "host-peer.h"
#include "protocol/frame.h"

#define BYTES_MAX (4u << 20)

struct answer {
    unsigned count;
    bool failed;
    struct error err;
    struct console_stats stats;
    struct console **free_it; /* in the callback */
};

static void on_done(struct console *c, const struct error *err, void *userdata)
{
    struct answer *a = userdata;

    a->count++;
    a->failed = err != NULL;
    if (err)
        a->err = *err;
    if (a->free_it)
        *a->free_it = console_free(c);
}

static void on_stats(struct console *c, const struct console_stats *stats, const struct error *err,
                     void *userdata)
{
    struct answer *a = userdata;

    (void)c;
    a->count++;
    a->failed = err != NULL;
    if (stats)
        a->stats = *stats;
}

static uint64_t soon(void)
{
    return clock_now_usec() + 10 * USEC_PER_SEC;
}

/* ---- hello ---- */

TEST(hello_opens_and_escapes_what_the_guest_says)
{
    struct peer p;

    peer_open(&p);
    ASSERT_EQ(console_get_info(p.console)->version, 1);
    ASSERT_TRUE(console_get_info(p.console)->thawed);
    ASSERT_EQ(console_get_info(p.console)->uptime_usec, 77);
    ASSERT_STREQ(console_get_info(p.console)->init_version, "1.2\\x1b[31m");
    ASSERT_STREQ(console_get_info(p.console)->kernel, "6.1.0-test");
    ASSERT_EQ(p.broken, 0);
    peer_end(&p);
}

TEST(hello_reply_is_found_behind_stale_bytes_split_anywhere)
{
    static const uint8_t other[16] = "another nonce!!";
    _cleanup_buf_ struct buf b = {0};
    struct peer p;
    size_t total = 1;

    buf_init(&b, BYTES_MAX);
    for (size_t split = 0; split < total; split++) {
        peer_begin(&p, soon());
        peer_expect_hello(&p);
        buf_clear(&b);
        /* The tail of a frame, a half sync, a reply to another host, a sync whose frame broke off.
         */
        ASSERT_OK(buf_append(&b, "garbage\x7fHEARTH-SY", 17));
        put_hello(&b, 9, other, /* sync= */ true);
        ASSERT_OK(buf_append(&b, frame_sync, FRAME_SYNC_SIZE));
        put_data(&b, 3, 1, 0, "0123456789", 10);
        b.size -= 5;
        put_hello(&b, p.hello_channel, p.nonce, /* sync= */ true);
        total = b.size;
        peer_send_bytes(&p, buf_data(&b), split);
        peer_turn(&p);
        peer_send_bytes(&p, buf_data(&b) + split, total - split);
        PEER_WAIT(&p, p.opened == 1);
        ASSERT_EQ(p.open_error.errnum, 0);
        peer_end(&p);
    }
}

TEST(hello_is_repeated_with_zeros_and_only_the_last_reply_counts)
{
    _cleanup_buf_ struct buf b = {0};
    uint8_t first[16];
    uint64_t began = clock_now_usec();
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_begin(&p, soon());
    peer_expect_hello(&p);
    memcpy(first, p.nonce, sizeof(first));
    /* The second hello follows a flush longer than any frame. */
    peer_expect_hello(&p);
    ASSERT_TRUE(clock_now_usec() - began >= 200 * USEC_PER_MSEC);
    ASSERT_TRUE(memcmp(first, p.nonce, sizeof(first)) != 0);
    put_hello(&b, p.hello_channel, first, /* sync= */ true);
    peer_send(&p, &b);
    for (int i = 0; i < 10; i++)
        peer_turn(&p);
    ASSERT_EQ(p.opened, 0);
    put_hello(&b, p.hello_channel, p.nonce, /* sync= */ true);
    peer_send(&p, &b);
    PEER_WAIT(&p, p.opened == 1);
    ASSERT_EQ(p.open_error.errnum, 0);
    peer_end(&p);
}

TEST(hello_without_an_answer_ends_at_its_deadline)
{
    struct peer p;

    peer_begin(&p, clock_now_usec() + 60 * USEC_PER_MSEC);
    PEER_WAIT(&p, p.opened == 1);
    ASSERT_EQ(p.open_error.code, ERR_GUEST_UNRESPONSIVE);
    ASSERT_EQ(p.broken, 1);
    peer_end(&p);
}

TEST(hello_queues_nothing_more_while_the_guest_does_not_read)
{
    struct peer p;

    peer_begin(&p, clock_now_usec() + 1500 * USEC_PER_MSEC);
    PEER_WAIT(&p, p.opened == 1);
    ASSERT_EQ(p.open_error.code, ERR_GUEST_UNRESPONSIVE);
    ASSERT_TRUE(console_queued(p.console) < 2 * FRAME_FLUSH_SIZE);
    peer_end(&p);
}

TEST(hello_of_another_version_is_refused)
{
    Hearth__V1__HelloReply reply = HEARTH__V1__HELLO_REPLY__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    _cleanup_buf_ struct buf b = {0};
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_begin(&p, soon());
    peer_expect_hello(&p);
    reply.version = 2;
    reply.nonce.data = p.nonce;
    reply.nonce.len = sizeof(p.nonce);
    event.event_case = HEARTH__V1__EVENT__EVENT_HELLO;
    event.hello = &reply;
    ASSERT_OK(buf_append(&b, frame_sync, FRAME_SYNC_SIZE));
    put_event(&b, p.hello_channel, &event);
    peer_send(&p, &b);
    PEER_WAIT(&p, p.opened == 1);
    ASSERT_EQ(p.open_error.code, ERR_GUEST_PROTOCOL);
    peer_end(&p);
}

TEST(peer_that_goes_during_hello_fails_the_open)
{
    struct peer p;

    peer_begin(&p, soon());
    peer_expect_hello(&p);
    p.fd = fd_close(p.fd);
    PEER_WAIT(&p, p.opened == 1);
    ASSERT_EQ(p.open_error.code, ERR_GUEST_GONE);
    ASSERT_EQ(p.broken, 1);
    peer_end(&p);
}

static void free_in_open(struct console *c, const struct error *err, void *userdata)
{
    unsigned *count = userdata;

    (void)err;
    (*count)++;
    console_free(c);
}

static void never_broken(struct console *c, const struct error *reason, void *userdata)
{
    (void)c;
    (void)userdata;
    test_fail(__FILE__, __LINE__, "broken after free: %s", reason->text);
}

TEST(console_freed_when_its_open_fails_gets_no_more_calls)
{
    struct console *c;
    struct loop *loop;
    unsigned count = 0;
    int fds[2];

    ASSERT_OK(loop_new(&loop));
    ASSERT_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
    ASSERT_OK(console_new(loop, "test", never_broken, NULL, &c));
    ASSERT_OK(console_open_consume(c, fds[0], soon(), free_in_open, &count));
    close(fds[1]);
    for (int i = 0; i < 100 && count == 0; i++)
        ASSERT_OK(loop_run_once(loop, 10 * USEC_PER_MSEC));
    ASSERT_EQ(count, 1);
    for (int i = 0; i < 3; i++)
        ASSERT_OK(loop_run_once(loop, 0));
    loop_free(loop);
}

TEST(half_frame_then_a_new_connection_works)
{
    _cleanup_buf_ struct buf b = {0};
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    peer_send_bytes(&p, "\x40\x00\x00\x00\x01", 5);
    p.fd = fd_close(p.fd);
    PEER_WAIT(&p, p.broken == 1);
    ASSERT_EQ(p.reason.code, ERR_GUEST_GONE);
    peer_end(&p);
    peer_open(&p);
    peer_end(&p);
}

/* ---- control ---- */

TEST(control_calls_get_their_answers)
{
    static const struct console_identity identity = {
        .hostname = "box",
        .machine_id = "0123456789abcdef0123456789abcdef",
        .boot_id = "01234567-89ab-cdef-0123-456789abcdef",
    };
    Hearth__V1__StatsReply stats = HEARTH__V1__STATS_REPLY__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    _cleanup_buf_ struct buf b = {0};
    struct answer thaw = {0}, freeze = {0}, figures = {0}, off = {0};
    Hearth__V1__Request *request;
    uint32_t channel;
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ASSERT_OK(console_thaw(p.console, &identity, soon(), on_done, &thaw));
    request = peer_request(&p, &channel);
    ASSERT_EQ(request->op_case, HEARTH__V1__REQUEST__OP_THAW);
    ASSERT_EQ(request->thaw->entropy.len, 64);
    ASSERT_STREQ(request->thaw->hostname, "box");
    ASSERT_TRUE(request->thaw->realtime_nsec > UINT64_C(1600000000) * NSEC_PER_SEC);
    hearth__v1__request__free_unpacked(request, NULL);
    ASSERT_EQ(console_freeze(p.console, soon(), on_done, &freeze), -EBUSY);
    put_done(&b, channel);
    peer_send(&p, &b);
    PEER_WAIT(&p, thaw.count);
    ASSERT_OK(console_freeze(p.console, soon(), on_done, &freeze));
    put_error(&b, peer_expect(&p, HEARTH__V1__REQUEST__OP_FREEZE), HEARTH__V1__CODE__CODE_SYSTEM,
              EIO, "no");
    peer_send(&p, &b);
    PEER_WAIT(&p, freeze.count);
    ASSERT_OK(console_stats(p.console, soon(), on_stats, &figures));
    stats.cpus = 3;
    stats.memory_total = 1 << 20;
    event.event_case = HEARTH__V1__EVENT__EVENT_STATS;
    event.stats = &stats;
    put_event(&b, peer_expect(&p, HEARTH__V1__REQUEST__OP_STATS), &event);
    peer_send(&p, &b);
    PEER_WAIT(&p, figures.count);
    ASSERT_FALSE(thaw.failed);
    ASSERT_TRUE(freeze.failed);
    ASSERT_EQ(figures.stats.cpus, 3);
    ASSERT_EQ(figures.stats.memory_total, 1 << 20);

    /* A guest that is gone before it could say Done has been powered off. */
    ASSERT_OK(console_power_off(p.console, 0, soon(), on_done, &off));
    (void)peer_expect(&p, HEARTH__V1__REQUEST__OP_POWER_OFF);
    p.fd = fd_close(p.fd);
    PEER_WAIT(&p, off.count == 1);
    ASSERT_FALSE(off.failed);
    ASSERT_EQ(p.broken, 1);
    peer_end(&p);
}

TEST(ping_deadline_fails_the_call_and_a_late_pong_is_ignored)
{
    _cleanup_buf_ struct buf b = {0};
    struct answer late = {0}, good = {0};
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    Hearth__V1__Pong pong = HEARTH__V1__PONG__INIT;
    Hearth__V1__Request *request;
    uint32_t channel, second;
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ASSERT_OK(console_ping(p.console, clock_now_usec() + 20 * USEC_PER_MSEC, on_done, &late));
    request = peer_request(&p, &channel);
    PEER_WAIT(&p, late.count == 1);
    ASSERT_EQ(late.err.code, ERR_GUEST_UNRESPONSIVE);
    event.event_case = HEARTH__V1__EVENT__EVENT_PONG;
    event.pong = &pong;
    pong.payload = request->ping->payload;
    put_event(&b, channel, &event);
    hearth__v1__request__free_unpacked(request, NULL);

    ASSERT_OK(console_ping(p.console, soon(), on_done, &good));
    request = peer_request(&p, &second);
    ASSERT_TRUE(second != channel);
    pong.payload = request->ping->payload;
    put_event(&b, second, &event);
    hearth__v1__request__free_unpacked(request, NULL);
    peer_send(&p, &b);
    PEER_WAIT(&p, good.count == 1);
    ASSERT_FALSE(good.failed);
    ASSERT_EQ(p.broken, 0);
    peer_end(&p);
}

TEST(calls_under_way_fail_before_the_console_is_broken)
{
    struct answer a = {0};
    struct peer p;

    peer_open(&p);
    ASSERT_OK(console_freeze(p.console, soon(), on_done, &a));
    p.fd = fd_close(p.fd);
    PEER_WAIT(&p, p.broken == 1);
    ASSERT_EQ(a.count, 1);
    ASSERT_EQ(a.err.code, ERR_GUEST_GONE);
    ASSERT_ERR(console_ping(p.console, soon(), on_done, &a), ENOTCONN);
    peer_end(&p);
}

TEST(console_may_be_freed_in_the_callback_of_a_call)
{
    _cleanup_buf_ struct buf b = {0};
    struct answer a = {0}, other = {0};
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    a.free_it = &p.console;
    ASSERT_OK(console_freeze(p.console, soon(), on_done, &a));
    ASSERT_OK(console_ping(p.console, soon(), on_done, &other));
    put_done(&b, peer_expect(&p, HEARTH__V1__REQUEST__OP_FREEZE));
    put_done(&b, 4000); /* never looked at */
    peer_send(&p, &b);
    PEER_WAIT(&p, a.count == 1);
    peer_turn(&p);
    ASSERT_TRUE(p.console == NULL);
    ASSERT_EQ(other.count, 0);
    ASSERT_EQ(p.broken, 0);
    peer_end(&p);

    /* The same when a deadline or the end of the peer calls back. */
    peer_open(&p);
    a = (struct answer){.free_it = &p.console};
    ASSERT_OK(console_ping(p.console, clock_now_usec() + 1000, on_done, &a));
    PEER_WAIT(&p, a.count == 1);
    peer_end(&p);
    peer_open(&p);
    a = (struct answer){.free_it = &p.console};
    ASSERT_OK(console_ping(p.console, soon(), on_done, &a));
    ASSERT_OK(console_ping(p.console, soon(), on_done, &other));
    p.fd = fd_close(p.fd);
    PEER_WAIT(&p, a.count == 1);
    ASSERT_EQ(other.count, 0);
    ASSERT_EQ(p.broken, 0);
    peer_end(&p);
}

TEST(identity_is_checked)
{
    struct console_identity id = {"", "0123456789abcdef0123456789abcdef",
                                  "01234567-89ab-cdef-0123-456789abcdef"};
    struct peer p;

    peer_open(&p);
    ASSERT_ERR(console_thaw(p.console, &id, soon(), on_done, NULL), EINVAL);
    id.hostname = "a";
    id.machine_id = "short";
    ASSERT_ERR(console_thaw(p.console, &id, soon(), on_done, NULL), EINVAL);
    peer_end(&p);
}

/* ---- violations ---- */

static void expect_violation(struct peer *p, struct buf *b, const char *text)
{
    peer_send(p, b);
    PEER_WAIT(p, p->broken == 1);
    ASSERT_EQ(p->reason.code, ERR_GUEST_PROTOCOL);
    if (!strstr(p->reason.text, text))
        test_fail(__FILE__, __LINE__, "'%s' does not say '%s'", p->reason.text, text);
    peer_end(p);
}

TEST(bytes_that_are_no_frame_break_the_console)
{
    _cleanup_buf_ struct buf b = {0};
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    uint8_t header[FRAME_HEADER_SIZE];
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ASSERT_OK(buf_append(&b, "this is no frame at all", 23));
    expect_violation(&p, &b, "no frame");

    /* A length beyond the limit is not waited for. */
    peer_open(&p);
    frame_encode_header(header, FRAME_CONTROL, 0, 2, 0, FRAME_EVENT_MAX + 1);
    ASSERT_OK(buf_append(&b, header, sizeof(header)));
    expect_violation(&p, &b, "no frame");

    peer_open(&p);
    frame_encode_header(header, FRAME_CONTROL, 0, 2, 0, 5);
    ASSERT_OK(buf_append(&b, header, sizeof(header)));
    ASSERT_OK(buf_append(&b, "\xff\xff\xff\xff\xff", 5));
    expect_violation(&p, &b, "malformed event");

    peer_open(&p);
    put_event(&b, 5, &event);
    expect_violation(&p, &b, "channel 5, which is not open");

    peer_open(&p);
    put_hello(&b, 1, p.nonce, /* sync= */ true);
    expect_violation(&p, &b, "new conversation");

    peer_open(&p);
    put_data(&b, 77, 1, 0, "x", 1);
    expect_violation(&p, &b, "channel 77, which is not open");
}

TEST(answers_of_the_wrong_kind_break_the_console)
{
    _cleanup_buf_ struct buf b = {0};
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    Hearth__V1__Pong pong = HEARTH__V1__PONG__INIT;
    struct answer a = {0};
    uint32_t channel;
    struct peer p;

    buf_init(&b, BYTES_MAX);
    event.event_case = HEARTH__V1__EVENT__EVENT_PONG;
    event.pong = &pong;

    peer_open(&p);
    ASSERT_OK(console_freeze(p.console, soon(), on_done, &a));
    put_event(&b, peer_expect(&p, HEARTH__V1__REQUEST__OP_FREEZE), &event);
    expect_violation(&p, &b, "Pong instead of Done");

    peer_open(&p);
    ASSERT_OK(console_ping(p.console, soon(), on_done, &a));
    put_event(&b, peer_expect(&p, HEARTH__V1__REQUEST__OP_PING), &event);
    expect_violation(&p, &b, "other bytes");

    peer_open(&p);
    ASSERT_OK(console_freeze(p.console, soon(), on_done, &a));
    channel = peer_expect(&p, HEARTH__V1__REQUEST__OP_FREEZE);
    put_done(&b, channel);
    put_done(&b, channel);
    expect_violation(&p, &b, "not open");

    peer_open(&p);
    ASSERT_OK(console_freeze(p.console, soon(), on_done, &a));
    put_data(&b, peer_expect(&p, HEARTH__V1__REQUEST__OP_FREEZE), 1, 0, "x", 1);
    expect_violation(&p, &b, "past its window");

    peer_open(&p);
    ASSERT_OK(console_freeze(p.console, soon(), on_done, &a));
    put_window(&b, peer_expect(&p, HEARTH__V1__REQUEST__OP_FREEZE), 0, 10);
    expect_violation(&p, &b, "takes none");
}

/* A command line of 600 KiB. */
static char *const *big_argv(void)
{
    static char argument[100 * 1024];
    static char *argv[] = {argument, argument, argument, argument, argument, argument, NULL};

    memset(argument, 'x', sizeof(argument) - 1);
    return argv;
}

TEST(guest_that_reads_nothing_for_too_long_is_given_up)
{
    struct peer p;

    peer_open(&p);
    /* Requests that nobody reads fill the socket, then the queue. */
    while (console_queued(p.console) == 0) {
        struct exec_spec spec = {.argv = big_argv()};
        struct exec_callbacks cb = {0};
        struct error err = {0};
        struct exec *e;

        ASSERT_OK(exec_start(p.console, &spec, &cb, NULL, &e, &err));
        e = exec_free(e);
    }
    peer_turn(&p);
    ASSERT_EQ(p.broken, 0);
    /* As if half a minute had gone by. */
    p.console->out_progress_usec -= CONSOLE_STALL_USEC;
    ASSERT_OK(source_set_time(p.console->timer, 0));
    PEER_WAIT(&p, p.broken == 1);
    ASSERT_EQ(p.reason.code, ERR_GUEST_UNRESPONSIVE);
    ASSERT_TRUE(strstr(p.reason.text, "did not read"));
    peer_end(&p);
}

TEST(requests_to_a_guest_that_does_not_read_are_limited)
{
    struct exec_callbacks cb = {0};
    struct exec_spec spec = {.argv = big_argv()};
    struct error err = {0};
    struct exec *e;
    struct peer p;
    int r;

    peer_open(&p);
    while ((r = exec_start(p.console, &spec, &cb, NULL, &e, &err)) == 0)
        e = exec_free(e);
    ASSERT_ERR(r, EAGAIN);
    ASSERT_EQ(err.code, ERR_TOO_MANY);
    ASSERT_TRUE(console_queued(p.console) <= CONSOLE_OUT_REQUEST_MAX + 1024);
    ASSERT_EQ(p.broken, 0);
    peer_end(&p);
}

TEST(open_operations_are_limited)
{
    struct answer a = {0};
    struct peer p;
    unsigned n = 0;
    int r;

    peer_open(&p);
    while ((r = console_ping(p.console, USEC_INFINITY, on_done, &a)) == 0)
        n++;
    ASSERT_ERR(r, EAGAIN);
    ASSERT_EQ(n, 1024);
    peer_end(&p);
    ASSERT_EQ(a.count, 0);
}
