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

#define BYTES_MAX (16u << 20)

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

/* ---- the way of a process ---- */

TEST(output_exit_and_end_arrive_split_at_every_offset)
{
    _cleanup_buf_ struct buf b = {0};
    size_t total = 1;

    buf_init(&b, BYTES_MAX);
    for (size_t split = 0; split < total; split++) {
        struct peer p;
        struct seen s;
        uint32_t ch;

        peer_open(&p);
        ch = start(&p, &s, NULL);
        buf_clear(&b);
        put_started(&b, ch, 7);
        put_data(&b, ch, 1, 0, "hello ", 6);
        put_data(&b, ch, 2, 0, "oops\0\xff", 6);
        put_data(&b, ch, 1, 6, "world", 5);
        put_exit(&b, ch, 3, 11, 6);
        put_stream_end(&b, ch, 1, 11);
        put_stream_end(&b, ch, 2, 6);
        put_closed(&b, ch, "");
        total = b.size;
        peer_send_bytes(&p, buf_data(&b), split);
        peer_turn(&p);
        peer_send_bytes(&p, buf_data(&b) + split, total - split);
        PEER_WAIT(&p, s.closed == 1);
        ASSERT_EQ(s.started, 1);
        ASSERT_EQ(s.out[1].size, 11);
        ASSERT_MEMEQ(buf_data(&s.out[1]), "hello world", 11);
        ASSERT_MEMEQ(buf_data(&s.out[2]), "oops\0\xff", 6);
        ASSERT_EQ(s.exited, 1);
        ASSERT_EQ(exec_exit_code(&s.exit), 3);
        ASSERT_EQ(s.exit.end[1], 11);
        ASSERT_EQ(s.ends, 2);
        ASSERT_EQ(s.reason.code, ERR_NONE);
        ASSERT_EQ(p.broken, 0);
        seen_done(&s);
        peer_end(&p);
    }
}

TEST(bytes_that_come_one_by_one_make_the_same)
{
    _cleanup_buf_ struct buf b = {0};
    struct peer p;
    struct seen s;
    uint32_t ch;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ch = start(&p, &s, NULL);
    put_started(&b, ch, 7);
    put_data(&b, ch, 1, 0, "abc", 3);
    put_exit(&b, ch, 0, 3, 0);
    for (size_t i = 0; i < b.size; i++) {
        peer_send_bytes(&p, buf_data(&b) + i, 1);
        peer_turn(&p);
    }
    PEER_WAIT(&p, s.exited == 1);
    ASSERT_MEMEQ(buf_data(&s.out[1]), "abc", 3);
    seen_done(&s);
    peer_end(&p);
}

TEST(request_carries_the_whole_spec)
{
    static char a0[] = "/bin/x", a1[] = "", a2[] = "\xff\n", e0[] = "A=1";
    static char *argv[] = {a0, a1, a2, NULL}, *env[] = {e0, NULL};
    static const struct exec_stream streams[] = {{.fd = 3, .to_guest = true},
                                                 {.fd = 4, .marked = true}};
    static const struct exec_file files[] = {{"/s/a", "\0b", 2}, {"/s/c", "", 0}};
    static const struct exec_confine confine = {
        .scratch = {{"/s", 4096}}, .n_scratch = 1, .files = files, .n_files = 2};
    struct exec_spec spec = {
        .no_new_privileges = true,
        .confine = &confine,
        .argv = argv,
        .env = env,
        .cwd = "/tmp",
        .user = "user",
        .tty = true,
        .rows = 50,
        .streams = streams,
        .n_streams = 2,
        .memory_max_bytes = 1 << 20,
        .pids_max = 9,
        .ring_bytes = 4096,
        .drop_when_full = true,
        .timeout_msec = 100,
        .kill_grace_msec = 20,
        .label = "me",
    };
    struct error err = {0};
    Hearth__V1__Request *request;
    uint32_t ch;
    struct peer p;
    struct seen s;

    peer_open(&p);
    seen_init(&s);
    ASSERT_OK(exec_start(p.console, &spec, &seen_callbacks, &s, &s.e, &err));
    request = peer_request(&p, &ch);
    ASSERT_EQ(request->op_case, HEARTH__V1__REQUEST__OP_EXEC);
    ASSERT_EQ(request->exec->n_argv, 3);
    ASSERT_EQ(request->exec->argv[1].len, 0);
    ASSERT_MEMEQ(request->exec->argv[2].data, "\xff\n", 2);
    ASSERT_EQ(request->exec->n_env, 1);
    ASSERT_MEMEQ(request->exec->cwd.data, "/tmp", 4);
    ASSERT_STREQ(request->exec->user, "user");
    ASSERT_EQ(request->exec->tty->rows, 50);
    ASSERT_EQ(request->exec->tty->cols, 80);
    ASSERT_EQ(request->exec->n_streams, 2);
    ASSERT_TRUE(request->exec->streams[0]->to_guest);
    ASSERT_TRUE(request->exec->streams[1]->marked);
    ASSERT_EQ(request->exec->limits->pids, 9);
    ASSERT_EQ(request->exec->n_windows, 2); /* the terminal and stream 4 */
    ASSERT_EQ(request->exec->windows[1]->stream, 4);
    ASSERT_EQ(request->exec->windows[1]->offset, EXEC_WINDOW);
    ASSERT_EQ(request->exec->timeout_msec, 100);
    ASSERT_STREQ(request->exec->label, "me");
    ASSERT_TRUE(request->exec->no_new_privileges);
    ASSERT_EQ(request->exec->confine->n_scratch, 1);
    ASSERT_EQ(request->exec->confine->scratch[0]->size_bytes, 4096);
    ASSERT_EQ(request->exec->confine->n_files, 2);
    ASSERT_MEMEQ(request->exec->confine->files[0]->path.data, "/s/a", 4);
    ASSERT_EQ(request->exec->confine->files[0]->content.len, 2);
    hearth__v1__request__free_unpacked(request, NULL);
    seen_done(&s);
    peer_end(&p);
}

TEST(bad_specs_are_refused_with_what_is_wrong)
{
    static const struct exec_stream twice[] = {{.fd = 3}, {.fd = 3}};
    static const struct exec_file no_path = {"a", "", 0};
    static uint8_t megabyte[1024 * 1024];
    static const struct exec_file too_large = {"/a", megabyte, sizeof(megabyte)};
    static const struct exec_confine relative = {.files = &no_path, .n_files = 1},
                                     large = {.files = &too_large, .n_files = 1};
    _cleanup_free_ char *big = malloc(300 * 1024 + 1), *fits = malloc(128 * 1024);
    static char no_equals[] = "NOVALUE";
    char *argv[] = {arg_true, NULL, NULL}, *env[] = {no_equals, NULL}, *none[] = {NULL};
    char *many[11] = {arg_true};
    struct exec_spec spec = {.argv = none};
    struct error err = {0};
    struct exec *e;
    struct peer p;

    memset(big, 'x', 300 * 1024);
    big[300 * 1024] = '\0';
    memset(fits, 'y', 128 * 1024);
    fits[128 * 1024 - 1] = '\0';
    peer_open(&p);
    ASSERT_ERR(exec_start(p.console, &spec, &seen_callbacks, NULL, &e, &err), EINVAL);
    spec.argv = argv;
    argv[1] = big;
    ASSERT_ERR(exec_start(p.console, &spec, &seen_callbacks, NULL, &e, &err), E2BIG);
    ASSERT_EQ(err.code, ERR_LIMIT_EXCEEDED);
    ASSERT_TRUE(strstr(err.text, "argument 1 has 307200 bytes"));
    argv[1] = fits;
    ASSERT_OK(exec_start(p.console, &spec, &seen_callbacks, NULL, &e, &err));
    e = exec_free(e);
    for (size_t i = 1; i < 10; i++)
        many[i] = fits;
    spec.argv = many;
    ASSERT_ERR(exec_start(p.console, &spec, &seen_callbacks, NULL, &e, &err), E2BIG);
    argv[1] = NULL;
    spec.argv = argv;
    spec.env = env;
    ASSERT_ERR(exec_start(p.console, &spec, &seen_callbacks, NULL, &e, &err), EINVAL);
    spec.env = NULL;
    spec.streams = twice;
    spec.n_streams = 2;
    ASSERT_ERR(exec_start(p.console, &spec, &seen_callbacks, NULL, &e, &err), EINVAL);
    spec.n_streams = 0;
    spec.confine = &relative;
    ASSERT_ERR(exec_start(p.console, &spec, &seen_callbacks, NULL, &e, &err), EINVAL);
    spec.confine = &large;
    ASSERT_ERR(exec_start(p.console, &spec, &seen_callbacks, NULL, &e, &err), E2BIG);
    ASSERT_EQ(err.code, ERR_LIMIT_EXCEEDED);
    peer_end(&p);
}

TEST(guest_errors_become_stable_codes_with_escaped_text)
{
    static const struct {
        int code, errnum;
        enum error_code expected;
    } rows[] = {
        {HEARTH__V1__CODE__CODE_COMMAND_NOT_FOUND, ENOENT, ERR_COMMAND_NOT_FOUND},
        {HEARTH__V1__CODE__CODE_COMMAND_NOT_EXECUTABLE, EACCES, ERR_COMMAND_NOT_EXECUTABLE},
        {HEARTH__V1__CODE__CODE_CWD, ENOENT, ERR_CWD_NOT_FOUND},
        {HEARTH__V1__CODE__CODE_USER, 0, ERR_USER_NOT_FOUND},
        {HEARTH__V1__CODE__CODE_ARGUMENTS_TOO_LONG, E2BIG, ERR_LIMIT_EXCEEDED},
        {HEARTH__V1__CODE__CODE_NO_PROCESS, 0, ERR_PROCESS_NOT_FOUND},
        {HEARTH__V1__CODE__CODE_NOT_THAWED, 0, ERR_UNAVAILABLE},
        {HEARTH__V1__CODE__CODE_SYSTEM, ENOMEM, ERR_GUEST_OUT_OF_MEMORY},
        {HEARTH__V1__CODE__CODE_SYSTEM, ENOSPC, ERR_NO_SPACE},
        {99, 999999, ERR_INTERNAL},
    };
    _cleanup_buf_ struct buf b = {0};
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct seen s;

        put_error(&b, start(&p, &s, NULL), rows[i].code, rows[i].errnum, "a\x1b\xff\xc3\xa4\\");
        peer_send(&p, &b);
        PEER_WAIT(&p, s.closed == 1);
        ASSERT_EQ(s.reason.code, rows[i].expected);
        ASSERT_STREQ(s.reason.text, "command 'true': a\\x1b\\xff\xc3\xa4\\x5c");
        ASSERT_EQ(exec_process_id(s.e), 0);
        ASSERT_ERR(exec_write(s.e, 0, "x", 1), EPIPE);
        seen_done(&s);
    }
    peer_end(&p);
}

/* ---- windows ---- */

TEST(window_moves_on_when_half_of_it_was_consumed)
{
    _cleanup_free_ uint8_t *data = calloc(1, FRAME_DATA_MAX);
    _cleanup_buf_ struct buf b = {0};
    Hearth__V1__Request *request;
    struct peer p;
    struct seen s;
    uint32_t ch;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ch = start(&p, &s, NULL);
    s.hold = true;
    put_started(&b, ch, 7);
    for (uint64_t i = 0; i < 4; i++)
        put_data(&b, ch, 1, i * FRAME_DATA_MAX, data, FRAME_DATA_MAX);
    peer_send(&p, &b);
    PEER_WAIT(&p, s.out[1].size == EXEC_WINDOW);
    ASSERT_TRUE(peer_quiet(&p));
    exec_consumed(s.e, 1, EXEC_WINDOW / 2 - 1);
    ASSERT_TRUE(peer_quiet(&p));
    exec_consumed(s.e, 1, 1);
    request = peer_request(&p, &ch);
    ASSERT_EQ(request->op_case, HEARTH__V1__REQUEST__OP_WINDOW);
    ASSERT_EQ(request->window->stream, 1);
    ASSERT_EQ(request->window->offset, EXEC_WINDOW + EXEC_WINDOW / 2);
    hearth__v1__request__free_unpacked(request, NULL);
    /* Acknowledging more than has come is not believed. */
    exec_consumed(s.e, 1, SIZE_MAX);
    request = peer_request(&p, &ch);
    ASSERT_EQ(request->window->offset, 2 * EXEC_WINDOW);
    hearth__v1__request__free_unpacked(request, NULL);
    seen_done(&s);
    peer_end(&p);
}

TEST(reader_that_stops_stalls_its_own_stream_only)
{
    _cleanup_free_ uint8_t *data = calloc(1, FRAME_DATA_MAX);
    _cleanup_buf_ struct buf b = {0};
    struct peer p;
    struct seen slow, fast;
    uint32_t slow_ch, fast_ch;
    uint64_t granted = EXEC_WINDOW;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    slow_ch = start(&p, &slow, NULL);
    fast_ch = start(&p, &fast, NULL);
    slow.hold = true;
    put_started(&b, slow_ch, 7);
    put_started(&b, fast_ch, 8);
    for (uint64_t i = 0; i < 4; i++)
        put_data(&b, slow_ch, 1, i * FRAME_DATA_MAX, data, FRAME_DATA_MAX);
    /* 4 MiB through the other, always within what was granted. */
    for (uint64_t at = 0; at < 4u << 20; at += FRAME_DATA_MAX) {
        while (at + FRAME_DATA_MAX > granted) {
            uint32_t ch;
            Hearth__V1__Request *request;

            peer_send(&p, &b);
            request = peer_request(&p, &ch);
            ASSERT_EQ(request->op_case, HEARTH__V1__REQUEST__OP_WINDOW);
            ASSERT_EQ(ch, fast_ch);
            ASSERT_TRUE(request->window->offset > granted);
            granted = request->window->offset;
            hearth__v1__request__free_unpacked(request, NULL);
        }
        put_data(&b, fast_ch, 1, at, data, FRAME_DATA_MAX);
    }
    peer_send(&p, &b);
    PEER_WAIT(&p, fast.out[1].size == 4u << 20);
    ASSERT_EQ(slow.out[1].size, EXEC_WINDOW);
    seen_done(&slow);
    seen_done(&fast);
    peer_end(&p);
}

TEST(input_stays_within_the_guests_window)
{
    static const struct exec_stream streams[] = {{.fd = 3, .to_guest = true}};
    struct exec_spec spec = {.argv = argv_true, .streams = streams, .n_streams = 1};
    _cleanup_buf_ struct buf b = {0};
    char got[64];
    struct peer p;
    struct seen s;
    uint32_t ch;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ch = start(&p, &s, &spec);
    ASSERT_EQ(exec_writable(s.e, 0), 0);
    ASSERT_ERR(exec_write(s.e, 0, "x", 1), EAGAIN);
    ASSERT_ERR(exec_write(s.e, 1, "x", 1), EBADF);
    ASSERT_ERR(exec_write(s.e, 8, "x", 1), EBADF);
    put_started(&b, ch, 7);
    put_window(&b, ch, 0, 5);
    put_window(&b, ch, 3, 2);
    peer_send(&p, &b);
    PEER_WAIT(&p, s.writable == 2);
    ASSERT_EQ(exec_writable(s.e, 0), 5);
    ASSERT_ERR(exec_write(s.e, 0, "123456", 6), EAGAIN);
    ASSERT_OK(exec_write(s.e, 0, "1234", 4));
    ASSERT_EQ(peer_expect_data(&p, ch, 0, 0, got, sizeof(got)), 4);
    ASSERT_OK(exec_write(s.e, 3, "ab", 2));
    ASSERT_EQ(peer_expect_data(&p, ch, 3, 0, got, sizeof(got)), 2);
    ASSERT_OK(exec_write(s.e, 0, "5", 1));
    ASSERT_EQ(peer_expect_data(&p, ch, 0, 4, got, sizeof(got)), 1);
    ASSERT_EQ(exec_writable(s.e, 0), 0);
    put_window(&b, ch, 0, 9);
    peer_send(&p, &b);
    PEER_WAIT(&p, s.writable == 3);
    ASSERT_OK(exec_write(s.e, 0, "6789", 4));
    ASSERT_EQ(peer_expect_data(&p, ch, 0, 5, got, sizeof(got)), 4);
    ASSERT_OK(exec_close_stream(s.e, 0));
    ASSERT_EQ(peer_expect(&p, HEARTH__V1__REQUEST__OP_CLOSE_STREAM), ch);
    ASSERT_ERR(exec_write(s.e, 0, "x", 1), EPIPE);
    ASSERT_OK(exec_close_stream(s.e, 0));
    ASSERT_OK(exec_signal(s.e, SIGINT, EXEC_SIGNAL_TREE));
    ASSERT_EQ(peer_expect(&p, HEARTH__V1__REQUEST__OP_SIGNAL), ch);
    ASSERT_OK(exec_resize(s.e, 10, 20));
    ASSERT_EQ(peer_expect(&p, HEARTH__V1__REQUEST__OP_RESIZE), ch);
    ASSERT_ERR(exec_signal(s.e, 0, EXEC_SIGNAL_TREE), EINVAL);
    ASSERT_EQ(p.broken, 0);
    seen_done(&s);
    peer_end(&p);
}

TEST(input_to_a_guest_that_does_not_read_is_bounded_and_wakes_when_it_does)
{
    _cleanup_free_ uint8_t *data = calloc(1, FRAME_DATA_MAX);
    _cleanup_free_ uint8_t *got = malloc(FRAME_DATA_MAX);
    _cleanup_buf_ struct buf b = {0};
    struct peer p;
    struct seen s, other;
    uint32_t ch, other_ch;
    uint64_t sent = 0, received = 0;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ch = start(&p, &s, NULL);
    other_ch = start(&p, &other, NULL);
    put_started(&b, ch, 7);
    put_started(&b, other_ch, 8);
    put_window(&b, ch, 0, UINT64_MAX);
    put_window(&b, other_ch, 0, 100);
    peer_send(&p, &b);
    PEER_WAIT(&p, s.writable == 1 && other.writable == 1);
    for (;;) {
        size_t n = exec_writable(s.e, 0);

        if (n == 0)
            break;
        n = n < FRAME_DATA_MAX ? n : FRAME_DATA_MAX;
        ASSERT_OK(exec_write(s.e, 0, data, n));
        sent += n;
    }
    ASSERT_TRUE(console_queued(p.console) < (1u << 20) + FRAME_DATA_MAX);
    ASSERT_EQ(exec_writable(other.e, 0), 0);
    ASSERT_ERR(exec_write(other.e, 0, "x", 1), EAGAIN);
    while (received < sent)
        received += peer_expect_data(&p, ch, 0, received, got, FRAME_DATA_MAX);
    PEER_WAIT(&p, s.writable == 2 && other.writable == 2);
    ASSERT_OK(exec_write(other.e, 0, "x", 1));
    seen_done(&s);
    seen_done(&other);
    peer_end(&p);
}

TEST(dropped_output_shows_as_a_gap_and_uses_no_window)
{
    struct exec_spec spec = {.argv = argv_true, .drop_when_full = true};
    _cleanup_free_ uint8_t *data = calloc(1, FRAME_DATA_MAX);
    _cleanup_buf_ struct buf b = {0};
    struct peer p;
    struct seen s;
    uint32_t ch;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ch = start(&p, &s, &spec);
    s.gaps = s.hold = true;
    put_started(&b, ch, 7);
    put_data(&b, ch, 1, 0, "abc", 3);
    put_data(&b, ch, 1, 10 * EXEC_WINDOW, data, FRAME_DATA_MAX);
    peer_send(&p, &b);
    PEER_WAIT(&p, s.next[1] == 10 * EXEC_WINDOW + FRAME_DATA_MAX);
    for (unsigned i = 1; i < 4; i++)
        put_data(&b, ch, 1, 10 * EXEC_WINDOW + i * FRAME_DATA_MAX, data, FRAME_DATA_MAX);
    expect_violation(&p, &s, &b, "past its window");
}

/* ---- attach ---- */

static void put_attached(struct buf *to, uint32_t channel, uint64_t process_id)
{
    Hearth__V1__Started started = HEARTH__V1__STARTED__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    Hearth__V1__StreamRange ranges[3] = {HEARTH__V1__STREAM_RANGE__INIT,
                                         HEARTH__V1__STREAM_RANGE__INIT,
                                         HEARTH__V1__STREAM_RANGE__INIT};
    Hearth__V1__StreamRange *list[3] = {&ranges[0], &ranges[1], &ranges[2]};

    ranges[0].start = ranges[0].end = 33; /* stdin got so much */
    ranges[1].stream = 1;
    ranges[1].start = 100;
    ranges[1].end = 110;
    ranges[2].stream = 2;
    ranges[2].start = 0;
    ranges[2].end = 20;
    started.process_id = process_id;
    started.pid = 42;
    started.streams = list;
    started.n_streams = 3;
    event.event_case = HEARTH__V1__EVENT__EVENT_STARTED;
    event.started = &started;
    put_event(to, channel, &event);
}

TEST(attach_goes_on_from_the_given_offsets)
{
    static const uint64_t from[EXEC_STREAMS_MAX] = {[1] = 50, [2] = 15};
    _cleanup_buf_ struct buf b = {0};
    struct error err = {0};
    Hearth__V1__Request *request;
    struct peer p;
    struct seen s;
    uint32_t ch;
    char got[8];

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    seen_init(&s);
    ASSERT_OK(exec_attach(p.console, 9, from, &seen_callbacks, &s, &s.e, &err));
    request = peer_request(&p, &ch);
    ASSERT_EQ(request->op_case, HEARTH__V1__REQUEST__OP_ATTACH);
    ASSERT_EQ(request->attach->process_id, 9);
    ASSERT_EQ(request->attach->from[0]->stream, 1);
    ASSERT_EQ(request->attach->from[0]->offset, 50);
    ASSERT_EQ(request->attach->windows[1]->offset, 15 + EXEC_WINDOW);
    hearth__v1__request__free_unpacked(request, NULL);
    s.next[1] = 100; /* older bytes are gone */
    s.next[2] = 15;
    put_attached(&b, ch, 9);
    put_window(&b, ch, 0, 40);
    put_data(&b, ch, 1, 100, "0123456789", 10);
    put_data(&b, ch, 2, 15, "fghij", 5);
    put_exit(&b, ch, 0, 110, 20);
    put_closed(&b, ch, "");
    peer_send(&p, &b);
    PEER_WAIT(&p, s.started == 1);
    ASSERT_EQ(s.ranges[1].start, 100);
    ASSERT_TRUE(s.ranges[2].present && !s.ranges[3].present);
    PEER_WAIT(&p, s.closed == 1);
    ASSERT_EQ(s.exited, 1);
    ASSERT_EQ(s.reason.code, ERR_NONE);
    seen_done(&s);

    /* Input goes on where the guest says that it stands. */
    seen_init(&s);
    ASSERT_OK(exec_attach(p.console, 9, NULL, &seen_callbacks, &s, &s.e, &err));
    (void)peer_expect(&p, HEARTH__V1__REQUEST__OP_WINDOW); /* of the first attachment */
    ch = peer_expect(&p, HEARTH__V1__REQUEST__OP_ATTACH);
    put_attached(&b, ch, 9);
    put_window(&b, ch, 0, 40);
    peer_send(&p, &b);
    PEER_WAIT(&p, s.writable == 1);
    ASSERT_EQ(exec_writable(s.e, 0), 7);
    ASSERT_OK(exec_write(s.e, 0, "x", 1));
    ASSERT_EQ(peer_expect(&p, HEARTH__V1__REQUEST__OP_WINDOW), ch);
    ASSERT_EQ(peer_expect(&p, HEARTH__V1__REQUEST__OP_WINDOW), ch);
    ASSERT_EQ(peer_expect_data(&p, ch, 0, 33, got, sizeof(got)), 1);
    /* Somebody else takes it over. */
    put_closed(&b, ch, "attached elsewhere");
    peer_send(&p, &b);
    PEER_WAIT(&p, s.closed == 1);
    ASSERT_EQ(s.reason.code, ERR_CONFLICT);
    ASSERT_TRUE(strstr(s.reason.text, "attached elsewhere"));
    ASSERT_EQ(p.broken, 0);
    seen_done(&s);
    peer_end(&p);
}

/* ---- without an attachment ---- */

struct listed {
    unsigned count, calls;
    struct exec_info first, last;
    struct error err;
};

static void on_list(struct console *c, const struct exec_info *infos, size_t count,
                    const struct error *err, void *userdata)
{
    struct listed *l = userdata;

    (void)c;
    l->calls++;
    l->count = (unsigned)count;
    if (err)
        l->err = *err;
    if (count > 0) {
        l->first = infos[0];
        l->last = infos[count - 1];
    }
}

static void put_list(struct buf *to, uint32_t channel, uint64_t first, unsigned count, bool more)
{
    Hearth__V1__ListReply reply = HEARTH__V1__LIST_REPLY__INIT;
    Hearth__V1__ProcessInfo infos[4];
    Hearth__V1__ProcessInfo *list[4] = {&infos[0], &infos[1], &infos[2], &infos[3]};
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    uint8_t word[] = "a\nb";
    ProtobufCBinaryData argv[2] = {{3, word}, {1, word}};
    char label[] = "l\x01";

    for (unsigned i = 0; i < count; i++) {
        hearth__v1__process_info__init(&infos[i]);
        infos[i].process_id = first + i;
        infos[i].label = label;
        infos[i].argv = argv;
        infos[i].n_argv = 2;
    }
    reply.processes = list;
    reply.n_processes = count;
    reply.more = more;
    event.event_case = HEARTH__V1__EVENT__EVENT_LIST;
    event.list = &reply;
    put_event(to, channel, &event);
}

TEST(list_comes_in_parts)
{
    _cleanup_buf_ struct buf b = {0};
    struct listed l = {0};
    uint32_t ch;
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ASSERT_OK(exec_list(p.console, clock_now_usec() + 5 * USEC_PER_SEC, on_list, &l));
    ch = peer_expect(&p, HEARTH__V1__REQUEST__OP_LIST);
    put_list(&b, ch, 1, 4, true);
    put_list(&b, ch, 5, 2, false);
    peer_send(&p, &b);
    PEER_WAIT(&p, l.calls == 1);
    ASSERT_EQ(l.count, 6);
    ASSERT_EQ(l.first.process_id, 1);
    ASSERT_EQ(l.last.process_id, 6);
    ASSERT_STREQ(l.first.command, "a\\x0ab a");
    ASSERT_STREQ(l.first.label, "l\\x01");

    l = (struct listed){0};
    ASSERT_OK(exec_list(p.console, clock_now_usec() + 5 * USEC_PER_SEC, on_list, &l));
    ch = peer_expect(&p, HEARTH__V1__REQUEST__OP_LIST);
    for (unsigned i = 0; i < 1025; i++)
        put_list(&b, ch, 1, 4, true);
    peer_send(&p, &b);
    PEER_WAIT(&p, p.broken == 1);
    ASSERT_TRUE(strstr(p.reason.text, "too many processes"));
    ASSERT_EQ(l.err.code, ERR_GUEST_PROTOCOL);
    peer_end(&p);
}

static void on_done(struct console *c, const struct error *err, void *userdata)
{
    (void)c;
    *(enum error_code *)userdata = err ? err->code : ERR_NONE;
}

TEST(processes_are_signalled_and_released_by_id)
{
    _cleanup_buf_ struct buf b = {0};
    enum error_code first = ERR_INTERNAL, second = ERR_INTERNAL;
    uint64_t deadline = clock_now_usec() + 5 * USEC_PER_SEC;
    Hearth__V1__Request *request;
    uint32_t ch;
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ASSERT_OK(
        exec_signal_process(p.console, 5, SIGTERM, EXEC_SIGNAL_RECENT, deadline, on_done, &first));
    request = peer_request(&p, &ch);
    ASSERT_EQ(request->signal->process_id, 5);
    ASSERT_EQ(request->signal->scope, HEARTH__V1__SIGNAL__SCOPE__RECENT);
    hearth__v1__request__free_unpacked(request, NULL);
    put_done(&b, ch);
    ASSERT_OK(exec_release(p.console, 6, deadline, on_done, &second));
    put_error(&b, peer_expect(&p, HEARTH__V1__REQUEST__OP_RELEASE),
              HEARTH__V1__CODE__CODE_NO_PROCESS, 0, "");
    peer_send(&p, &b);
    PEER_WAIT(&p, first == ERR_NONE && second == ERR_PROCESS_NOT_FOUND);
    ASSERT_EQ(p.broken, 0);
    peer_end(&p);
}
