#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fd.h"
#include "exec-seen.h"
#include "harness/test.h"
#include "host/exec.h"
#include "host-peer.h"
#include "protocol/frame.h"

#define BYTES_MAX (4u << 20)

static char arg_true[] = "true";
static char *argv_true[] = {arg_true, NULL};

/* Starts a process and returns its channel; the guest has seen the request. */
static uint32_t start(struct peer *p, struct seen *s, const struct exec_spec *spec)
{
    struct exec_spec plain = {.argv = argv_true};
    struct error err = {0};

    seen_init(s);
    ASSERT_OK(exec_start(p->console, spec ? spec : &plain, &seen_callbacks, s, &s->e, &err));
    return peer_expect(p, HEARTH__V1__REQUEST__OP_EXEC);
}

static void expect_violation(struct peer *p, struct seen *s, struct buf *b, const char *text)
{
    peer_send(p, b);
    PEER_WAIT(p, p->broken == 1);
    ASSERT_EQ(p->reason.code, ERR_GUEST_PROTOCOL);
    if (!strstr(p->reason.text, text))
        test_fail(__FILE__, __LINE__, "'%s' does not say '%s'", p->reason.text, text);
    ASSERT_EQ(s->closed, 1);
    ASSERT_EQ(s->reason.code, ERR_GUEST_PROTOCOL);
    seen_done(s);
    peer_end(p);
}

/* ---- freeing ---- */

TEST(detached_channel_swallows_what_still_comes)
{
    _cleanup_buf_ struct buf b = {0};
    struct peer p;
    struct seen s;
    uint32_t ch;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ch = start(&p, &s, NULL);
    s.e = exec_free(s.e);
    put_started(&b, ch, 7);
    put_window(&b, ch, 0, 100);
    put_data(&b, ch, 1, 0, "abc", 3);
    put_exit(&b, ch, 0, 3, 0);
    put_data(&b, ch, 1, 3, "late", 4);
    put_stream_end(&b, ch, 1, 7);
    put_closed(&b, ch, "");
    peer_send(&p, &b);
    for (int i = 0; i < 3; i++)
        peer_turn(&p);
    ASSERT_EQ(p.broken, 0);
    ASSERT_EQ(s.started + s.exited + s.closed, 0);
    ASSERT_TRUE(peer_quiet(&p)); /* no window is granted for nobody */
    /* After Closed the channel is unknown. */
    put_data(&b, ch, 1, 7, "x", 1);
    peer_send(&p, &b);
    PEER_WAIT(&p, p.broken == 1);
    ASSERT_EQ(p.reason.code, ERR_GUEST_PROTOCOL);
    seen_done(&s);
    peer_end(&p);
}

/* Everything that calls back, each once as the place where things are freed. */
static void put_life(struct buf *b, uint32_t ch)
{
    put_started(b, ch, 7);
    put_window(b, ch, 0, 100);
    put_data(b, ch, 1, 0, "abc", 3);
    put_stream_end(b, ch, 1, 3);
    put_exit(b, ch, 0, 3, 0);
    put_closed(b, ch, "");
}

static unsigned calls(const struct seen *s)
{
    return s->started + s->writable + (s->out[1].size > 0) + s->ends + s->exited + s->closed;
}

TEST(exec_and_console_may_be_freed_in_every_callback)
{
    _cleanup_buf_ struct buf b = {0};

    buf_init(&b, BYTES_MAX);
    for (unsigned what = 1; what < 8; what++) {
        for (unsigned before = 0; before < 6; before++) {
            struct peer p;
            struct seen s, other;
            uint32_t ch, other_ch;

            peer_open(&p);
            ch = start(&p, &s, NULL);
            other_ch = start(&p, &other, NULL);
            put_life(&b, ch);
            put_life(&b, other_ch);
            /* One event a turn until it is the turn of the one that frees. */
            while (calls(&s) < before) {
                struct frame frame;
                size_t used;

                ASSERT_EQ(frame_decode(buf_data(&b), b.size, FRAME_EVENT_MAX, &frame, &used),
                          FRAME_OK);
                peer_send_bytes(&p, buf_data(&b), used);
                buf_consume(&b, used);
                PEER_WAIT(&p, peer_quiet(&p));
            }
            /* 1: itself, 2: the other, 4: the console; and sums of these. */
            s.free_exec = what & 1 ? &s.e : what & 2 ? &other.e : NULL;
            s.free_console = what & 4 ? &p.console : NULL;
            peer_send(&p, &b);
            PEER_WAIT(&p, calls(&s) > before);
            for (int i = 0; i < 3; i++)
                peer_turn(&p);
            ASSERT_EQ(p.broken, 0);
            if (what & 5)
                ASSERT_EQ(calls(&s), before + 1);
            else
                ASSERT_EQ(calls(&s), 6);
            if (what & 4 || (what & 3) == 2)
                ASSERT_EQ(calls(&other), 0);
            else
                ASSERT_EQ(calls(&other), 6);
            seen_done(&s);
            seen_done(&other);
            peer_end(&p);
        }
    }
}

TEST(exec_outlives_its_console_as_an_empty_shell)
{
    struct peer p;
    struct seen s;

    peer_open(&p);
    (void)start(&p, &s, NULL);
    p.console = console_free(p.console);
    ASSERT_ERR(exec_write(s.e, 0, "x", 1), EPIPE);
    ASSERT_ERR(exec_signal(s.e, SIGINT, EXEC_SIGNAL_PROCESS), EPIPE);
    exec_consumed(s.e, 1, 10);
    ASSERT_EQ(s.closed, 0);
    seen_done(&s);
    peer_end(&p);
}

TEST(broken_console_closes_all_execs_first)
{
    struct peer p;
    struct seen a, b;

    peer_open(&p);
    (void)start(&p, &a, NULL);
    (void)start(&p, &b, NULL);
    a.free_exec = &b.e; /* one frees the other meanwhile */
    p.fd = fd_close(p.fd);
    PEER_WAIT(&p, p.broken == 1);
    ASSERT_EQ(a.closed, 1);
    ASSERT_EQ(a.reason.code, ERR_GUEST_GONE);
    ASSERT_EQ(b.closed, 0);
    seen_done(&a);
    seen_done(&b);
    peer_end(&p);
}

TEST(writing_to_a_gone_guest_breaks_from_the_loop_only)
{
    _cleanup_buf_ struct buf b = {0};
    struct peer p;
    struct seen s;
    uint32_t ch;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ch = start(&p, &s, NULL);
    put_started(&b, ch, 7);
    put_data(&b, ch, 1, 0, "last words", 10);
    peer_send(&p, &b);
    p.fd = fd_close(p.fd);
    ASSERT_OK(exec_signal(s.e, SIGINT, EXEC_SIGNAL_PROCESS));
    ASSERT_EQ(s.closed, 0);
    PEER_WAIT(&p, p.broken == 1);
    ASSERT_EQ(s.closed, 1);
    ASSERT_EQ(s.reason.code, ERR_GUEST_GONE);
    ASSERT_EQ(s.out[1].size, 10);
    seen_done(&s);
    peer_end(&p);
}

/* ---- violations ---- */

TEST(rules_of_a_channel_are_enforced)
{
    static const uint8_t data[FRAME_DATA_MAX];
    _cleanup_buf_ struct buf b = {0};
    struct peer p;
    struct seen s;
    uint32_t ch;

    buf_init(&b, BYTES_MAX);
#define BEGIN()                                                                                    \
    do {                                                                                           \
        peer_open(&p);                                                                             \
        ch = start(&p, &s, NULL);                                                                  \
    } while (0)
    BEGIN();
    put_data(&b, ch, 1, 0, "x", 1);
    expect_violation(&p, &s, &b, "before Started");
    BEGIN();
    put_exit(&b, ch, 0, 0, 0);
    expect_violation(&p, &s, &b, "Exit before Started");
    BEGIN();
    put_started(&b, ch, 7);
    put_started(&b, ch, 7);
    expect_violation(&p, &s, &b, "Started twice");
    BEGIN();
    put_started(&b, ch, 0);
    expect_violation(&p, &s, &b, "started process 0");
    BEGIN();
    put_started(&b, ch, 7);
    put_data(&b, ch, 1, 1, "x", 1);
    expect_violation(&p, &s, &b, "expected 0");
    BEGIN();
    put_started(&b, ch, 7);
    put_data(&b, ch, 1, 0, "x", 1);
    put_data(&b, ch, 1, 0, "x", 1);
    expect_violation(&p, &s, &b, "expected 1");
    BEGIN();
    put_started(&b, ch, 7);
    put_data(&b, ch, 1, 0, "", 0);
    expect_violation(&p, &s, &b, "empty data");
    BEGIN();
    put_started(&b, ch, 7);
    put_data(&b, ch, 5, 0, "x", 1);
    expect_violation(&p, &s, &b, "past its window");
    BEGIN();
    put_started(&b, ch, 7);
    put_data(&b, ch, 200, 0, "x", 1);
    expect_violation(&p, &s, &b, "stream 200");
    BEGIN();
    s.hold = true;
    put_started(&b, ch, 7);
    for (uint64_t i = 0; i < 5; i++)
        put_data(&b, ch, 1, i * FRAME_DATA_MAX, data, FRAME_DATA_MAX);
    expect_violation(&p, &s, &b, "past its window");
    BEGIN();
    put_started(&b, ch, 7);
    put_stream_end(&b, ch, 1, 0);
    put_data(&b, ch, 1, 0, "x", 1);
    expect_violation(&p, &s, &b, "after the end");
    BEGIN();
    put_started(&b, ch, 7);
    put_stream_end(&b, ch, 1, 5);
    expect_violation(&p, &s, &b, "wrong offset");
    BEGIN();
    put_started(&b, ch, 7);
    put_exit(&b, ch, 0, 5, 0);
    expect_violation(&p, &s, &b, "before the output");
    BEGIN();
    put_started(&b, ch, 7);
    put_exit(&b, ch, 0, 0, 0);
    put_exit(&b, ch, 0, 0, 0);
    expect_violation(&p, &s, &b, "Exit twice");
    BEGIN();
    put_started(&b, ch, 7);
    put_exit(&b, ch, 256, 0, 0);
    expect_violation(&p, &s, &b, "impossible exit status");
    BEGIN();
    put_started(&b, ch, 7);
    put_window(&b, ch, 1, 10);
    expect_violation(&p, &s, &b, "takes none");
    BEGIN();
    put_started(&b, ch, 7);
    put_window(&b, ch, 0, 10);
    put_window(&b, ch, 0, 9);
    expect_violation(&p, &s, &b, "took back");
    BEGIN();
    put_done(&b, ch);
    expect_violation(&p, &s, &b, "Done on the channel of a process");
#undef BEGIN
}
