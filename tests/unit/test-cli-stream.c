#include "cli/stream.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cli/exit-code.h"
#include "harness/test.h"

/* A daemon at the other end of a SOCK_SEQPACKET pair: what it sends is read piece by piece. */
struct peer {
    struct stream s;
    int fd;
    int out_read, err_read; /* what the stream writes to its stdout and stderr */
    int out_write, err_write;
    int signals;
};

static void peer_connect(struct peer *p)
{
    struct buf none = {0};
    int fds[2];

    ASSERT_OK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
    p->fd = fds[1];
    stream_connect(&p->s, fds[0], &none);
}

static void peer_init(struct peer *p)
{
    int fds[2];
    sigset_t set;

    sigemptyset(&set);
    p->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    ASSERT_OK(p->signals);
    stream_init(&p->s, p->signals);
    output_done(&p->s.stdout_to);
    output_done(&p->s.stderr_to);
    ASSERT_OK(pipe2(fds, O_CLOEXEC));
    p->out_read = fds[0];
    p->out_write = fds[1];
    output_init(&p->s.stdout_to, fds[1]);
    ASSERT_OK(pipe2(fds, O_CLOEXEC));
    p->err_read = fds[0];
    p->err_write = fds[1];
    output_init(&p->s.stderr_to, fds[1]);
    peer_connect(p);
}

static void peer_done(struct peer *p)
{
    stream_done(&p->s);
    p->fd = fd_close(p->fd);
    p->signals = fd_close(p->signals);
    p->out_read = fd_close(p->out_read);
    p->err_read = fd_close(p->err_read);
    p->out_write = fd_close(p->out_write);
    p->err_write = fd_close(p->err_write);
}

static size_t put_frame(uint8_t *to, enum stream_type type, const void *data, uint32_t size)
{
    stream_header_encode(&(struct stream_header){.type = type, .size = size}, to);
    memcpy(to + STREAM_HEADER_SIZE, data, size);
    return STREAM_HEADER_SIZE + size;
}

static size_t put_text(uint8_t *to, enum stream_type type, const char *text)
{
    return put_frame(to, type, text, (uint32_t)strlen(text));
}

static void say(struct peer *p, const uint8_t *data, size_t size)
{
    if (size > 0)
        ASSERT_EQ(send(p->fd, data, size, MSG_NOSIGNAL), (ssize_t)size);
}

static void expect_output(int fd, const char *text)
{
    char data[256];
    ssize_t n;

    ASSERT_OK(fd_set_nonblock(fd, true));
    n = read(fd, data, sizeof(data) - 1);
    data[n > 0 ? n : 0] = '\0';
    ASSERT_STREQ(data, text);
}

static size_t whole_run(uint8_t *to)
{
    size_t n = put_text(to, STREAM_STARTED, "{\"process_id\": 7, \"stdout\": 100, \"stderr\": 0}");

    n += put_text(to + n, STREAM_STDOUT, "out1 ");
    n += put_text(to + n, STREAM_STDERR, "err");
    n += put_text(to + n, STREAM_STDOUT, "");
    n += put_text(to + n, STREAM_STDOUT, "out2");
    n += put_text(to + n, STREAM_EXIT, "{\"exit_code\": 7}");
    return n;
}

TEST(a_frame_header_survives_the_round_trip)
{
    struct stream_header in = {.type = STREAM_STDOUT, .size = 65536}, out;
    uint8_t bytes[STREAM_HEADER_SIZE];

    stream_header_encode(&in, bytes);
    ASSERT_MEMEQ(bytes, "\1\0\0\0\0\1\0\0", 8);
    ASSERT_OK(stream_header_decode(bytes, &out, NULL));
    ASSERT_EQ(out.type, STREAM_STDOUT);
    ASSERT_EQ(out.size, 65536);
}

TEST(frames_a_daemon_may_not_send_are_refused)
{
    static const uint8_t bad[][8] = {
        {STREAM_STDIN, 0, 0, 0, 0, 0, 0, 1},
        {STREAM_SIGNAL, 0, 0, 0, 0, 0, 0, 1},
        {10, 0, 0, 0, 0, 0, 0, 0},
        {255, 0, 0, 0, 0, 0, 0, 0},
        {STREAM_STDOUT, 1, 0, 0, 0, 0, 0, 1},
        {STREAM_STDOUT, 0, 0, 9, 0, 0, 0, 1},
        {STREAM_STDOUT, 0, 0, 0, 0, 1, 0, 1},
        {STREAM_STDOUT, 0, 0, 0, 255, 255, 255, 255},
        {STREAM_WINDOW, 0, 0, 0, 0, 0, 0, 3},
    };

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct stream_header header;

        ASSERT_ERR(stream_header_decode(bad[i], &header, NULL), EPROTO);
    }
}

TEST(a_run_cut_at_any_byte_comes_out_the_same)
{
    uint8_t bytes[512];
    size_t size = whole_run(bytes);

    for (size_t cut = 0; cut <= size; cut++) {
        struct error err = {0};
        struct peer p;

        peer_init(&p);
        say(&p, bytes, cut);
        say(&p, bytes + cut, size - cut);
        ASSERT_EQ(stream_pump(&p.s, &err), STREAM_ENDED);
        expect_output(p.out_read, "out1 out2");
        expect_output(p.err_read, "err");
        ASSERT_EQ(exit_code_of_result(p.s.result), 7);
        ASSERT_EQ(p.s.process_id, 7);
        ASSERT_EQ(p.s.seen[1], 109);
        ASSERT_EQ(p.s.seen[2], 3);
        peer_done(&p);
    }
}

TEST(a_connection_that_ends_early_is_broken_and_another_goes_on)
{
    uint8_t bytes[512];
    struct error err = {0};
    struct peer p;
    size_t n;

    peer_init(&p);
    n = put_text(bytes, STREAM_STARTED, "{\"command\": 3, \"stdout\": 10, \"stderr\": 20}");
    n += put_text(bytes + n, STREAM_STDOUT, "abc");
    say(&p, bytes, n);
    p.fd = fd_close(p.fd);
    ASSERT_EQ(stream_pump(&p.s, &err), STREAM_BROKEN);
    ASSERT_EQ(p.s.seen[1], 13);
    ASSERT_EQ(p.s.command, 3);

    /* The new one begins two bytes early on stdout and five late on stderr. */
    peer_connect(&p);
    n = put_text(bytes, STREAM_STARTED, "{\"command\": 3, \"stdout\": 11, \"stderr\": 25}");
    n += put_text(bytes + n, STREAM_STDOUT, "bcd");
    n += put_text(bytes + n, STREAM_STDERR, "E");
    n += put_text(bytes + n, STREAM_EXIT, "{\"exit_code\": 0}");
    say(&p, bytes, n);
    ASSERT_EQ(stream_pump(&p.s, &err), STREAM_ENDED);
    expect_output(p.out_read, "abcd");
    expect_output(p.err_read, "E");
    ASSERT_EQ(p.s.lost, 5);
    ASSERT_EQ(p.s.seen[1], 14);
    ASSERT_EQ(p.s.seen[2], 26);
    peer_done(&p);
}

TEST(an_error_frame_carries_its_code)
{
    uint8_t bytes[256];
    struct error err = {0};
    struct peer p;

    peer_init(&p);
    say(&p, bytes,
        put_text(bytes, STREAM_ERROR,
                 "{\"code\": \"command_not_found\", \"message\": \"'x': not found\"}"));
    ASSERT_EQ(stream_pump(&p.s, &err), STREAM_ENDED);
    ASSERT_TRUE(p.s.result == NULL);
    ASSERT_EQ(p.s.failure.code, ERR_COMMAND_NOT_FOUND);
    ASSERT_STREQ(p.s.failure.text, "'x': not found");
    peer_done(&p);
}

TEST(rubbish_in_a_frame_is_an_error)
{
    static const char *const payloads[] = {"", "{", "[]", "nul\0l"};

    for (size_t i = 0; i < ARRAY_SIZE(payloads); i++) {
        uint8_t bytes[64];
        struct error err = {0};
        struct peer p;

        peer_init(&p);
        say(&p, bytes, put_text(bytes, STREAM_EXIT, payloads[i]));
        ASSERT_ERR(stream_pump(&p.s, &err), EPROTO);
        peer_done(&p);
    }
}

TEST(a_full_output_stops_the_reading_of_the_connection)
{
    static uint8_t frame[STREAM_HEADER_SIZE + STREAM_PAYLOAD_MAX];
    uint8_t zeros[STREAM_PAYLOAD_MAX] = {0};
    struct error err = {0};
    struct peer p;
    unsigned sent = 0;

    peer_init(&p);
    (void)put_frame(frame, STREAM_STDOUT, zeros, sizeof(zeros));
    /* The pipe takes 64 KiB; the rest has to wait in the socket, bounded. */
    while (send(p.fd, frame, sizeof(frame), MSG_NOSIGNAL) > 0)
        sent++;
    ASSERT_TRUE(sent >= 2);
    p.s.abandon_at_usec = clock_now_usec() + 50 * USEC_PER_MSEC;
    ASSERT_EQ(stream_pump(&p.s, &err), STREAM_ABANDONED);
    ASSERT_TRUE(p.s.blocked == &p.s.stdout_to);
    ASSERT_TRUE(p.s.in.size <= 2 * sizeof(frame));
    ASSERT_EQ(p.s.seen[1], 65536);
    peer_done(&p);
}

TEST(a_reader_that_left_sends_sigpipe_to_the_command)
{
    uint8_t bytes[256];
    struct error err = {0};
    struct peer p;
    ssize_t n;

    peer_init(&p);
    p.out_read = fd_close(p.out_read);
    n = (ssize_t)put_text(bytes, STREAM_STARTED,
                          "{\"process_id\": 1, \"stdout\": 0, \"stderr\": 0}");
    n += (ssize_t)put_text(bytes + n, STREAM_STDOUT, "x");
    say(&p, bytes, (size_t)n);
    ASSERT_OK(sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL));
    p.s.abandon_at_usec = clock_now_usec() + 50 * USEC_PER_MSEC;
    ASSERT_EQ(stream_pump(&p.s, &err), STREAM_ABANDONED);
    n = recv(p.fd, bytes, sizeof(bytes), 0);
    ASSERT_EQ(n, STREAM_HEADER_SIZE + 1);
    ASSERT_EQ(bytes[0], STREAM_SIGNAL);
    ASSERT_EQ(bytes[8], SIGPIPE);
    ASSERT_EQ(p.s.last_signal, SIGPIPE);
    peer_done(&p);
}

TEST(results_and_errors_map_to_exit_codes)
{
    static const struct {
        const char *result;
        int code;
    } cases[] = {
        {"{\"exit_code\": 0}", 0},
        {"{\"exit_code\": 255}", 255},
        {"{\"exit_code\": 124, \"timed_out\": false}", 124},
        {"{\"exit_code\": 137, \"timed_out\": true}", 124},
        {"{\"exit_code\": 143, \"signal\": 15}", 143},
        {"{\"signal\": 9}", 137},
        {"{\"exit_code\": 256}", 1},
        {"{\"exit_code\": -1}", 1},
        {"{\"exit_code\": \"0\"}", 1},
        {"{}", 1},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        json_auto_t *json = json_loads(cases[i].result, 0, NULL);

        ASSERT_EQ(exit_code_of_result(json), cases[i].code);
    }
    ASSERT_EQ(exit_code_of_error(ERR_COMMAND_NOT_FOUND), 127);
    ASSERT_EQ(exit_code_of_error(ERR_COMMAND_NOT_EXECUTABLE), 126);
    ASSERT_EQ(exit_code_of_error(ERR_INVALID_ARGUMENT), 2);
    for (unsigned code = 1; code < ERROR_CODE_COUNT; code++)
        ASSERT_TRUE(exit_code_of_error((enum error_code)code) != 0);
}
