#include "cli/stream.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cli/wait.h"

#define IN_MAX (2 * ((size_t)STREAM_PAYLOAD_MAX + STREAM_HEADER_SIZE))
#define OUT_MAX (2 * ((size_t)STREAM_PAYLOAD_MAX + STREAM_HEADER_SIZE))
#define STDIN_BLOCK 32768u
#define WINDOW_START 65536u
/* How long a command may take to end after it was told to. */
#define HANGUP_GRACE_USEC (10 * USEC_PER_SEC)
#define KILL_GRACE_USEC (5 * USEC_PER_SEC)
#define PIPE_GRACE_USEC (2 * USEC_PER_SEC)

static const int forwarded[] = {SIGINT,  SIGTERM, SIGHUP,   SIGQUIT,
                                SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT};

int stream_signals(void)
{
    sigset_t set;
    int fd;

    sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_SIZE(forwarded); i++)
        sigaddset(&set, forwarded[i]);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return -errno;
    fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return fd < 0 ? -errno : fd;
}

int stream_read_signal(int signal_fd)
{
    struct signalfd_siginfo info;
    ssize_t n = read(signal_fd, &info, sizeof(info));

    return n == (ssize_t)sizeof(info) ? (int)info.ssi_signo : 0;
}

void stream_init(struct stream *s, int signal_fd)
{
    *s = (struct stream){.fd = -EBADF, .signal_fd = signal_fd};
    buf_init(&s->in, IN_MAX);
    buf_init(&s->out, OUT_MAX);
    output_init(&s->stdout_to, STDOUT_FILENO);
    output_init(&s->stderr_to, STDERR_FILENO);
}

void stream_done(struct stream *s)
{
    terminal_restore(&s->terminal);
    s->fd = fd_close(s->fd);
    buf_done(&s->in);
    buf_done(&s->out);
    output_done(&s->stdout_to);
    output_done(&s->stderr_to);
    json_decref(s->result);
    s->result = NULL;
}

static void send_frame(struct stream *s, enum stream_type type, const void *data, uint32_t size)
{
    struct stream_header header = {.type = type, .size = size};
    uint8_t bytes[STREAM_HEADER_SIZE];

    if (buf_room(&s->out) < STREAM_HEADER_SIZE + size)
        return; /* a flood of signals or resizes on a stuck connection: the last ones are dropped */
    stream_header_encode(&header, bytes);
    if (buf_append(&s->out, bytes, sizeof(bytes)) >= 0 && size > 0)
        (void)buf_append(&s->out, data, size);
}

static void send_signal(struct stream *s, int signo)
{
    uint8_t byte = (uint8_t)signo;

    send_frame(s, STREAM_SIGNAL, &byte, 1);
}

static void send_size(struct stream *s)
{
    uint16_t rows, cols;
    uint8_t bytes[4];

    if (!s->tty || terminal_size(&rows, &cols) < 0)
        return;
    bytes[0] = (uint8_t)(rows >> 8);
    bytes[1] = (uint8_t)rows;
    bytes[2] = (uint8_t)(cols >> 8);
    bytes[3] = (uint8_t)cols;
    send_frame(s, STREAM_RESIZE, bytes, sizeof(bytes));
}

void stream_connect(struct stream *s, int fd, struct buf *rest)
{
    s->fd = fd;
    buf_clear(&s->in);
    buf_clear(&s->out);
    if (rest->size > 0)
        (void)buf_append(&s->in, buf_data(rest), MIN(rest->size, buf_room(&s->in)));
    s->in_frame = false;
    s->blocked = NULL;
    s->stdin_window = s->stdin_sent + WINDOW_START;
    if (s->stdin_ended && s->started)
        send_frame(s, STREAM_STDIN_EOF, NULL, 0); /* it may not have arrived; twice does no harm */
    if (s->started)
        send_size(s);
}

/* ---- what the daemon sends ---- */

static void take_offset(struct stream *s, const json_t *json, const char *key, int i)
{
    const json_t *value = json_object_get(json, key);
    uint64_t at;

    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return;
    at = (uint64_t)json_integer_value(value);
    if (!s->started) {
        s->seen[i] = at;
        return;
    }
    if (at > s->seen[i]) {
        s->lost += at - s->seen[i];
        s->seen[i] = at;
    } else {
        s->skip[i] = s->seen[i] - at;
    }
}

static uint64_t take_number(const json_t *json, const char *key)
{
    json_int_t value = json_integer_value(json_object_get(json, key));

    return value > 0 ? (uint64_t)value : 0;
}

static int take_started(struct stream *s, const json_t *json)
{
    take_offset(s, json, "stdout", 1);
    take_offset(s, json, "stderr", 2);
    s->process_id = take_number(json, "process_id");
    s->command = take_number(json, "command");
    s->started = true;
    return 0;
}

/* A whole frame that is not output. Returns 1 when it was the last one. */
static int take_frame(struct stream *s, const uint8_t *payload, struct error *err)
{
    json_auto_t *json = NULL;

    if (s->frame.type == STREAM_WINDOW) {
        s->stdin_window += stream_get_u32(payload);
        return 0;
    }
    json = json_loadb((const char *)payload, s->frame.size, 0, NULL);
    if (!json_is_object(json))
        return error_set_errno(err, ERR_INTERNAL, EPROTO,
                               "the daemon sent a frame without an object");
    if (s->frame.type == STREAM_STARTED)
        return take_started(s, json);
    if (s->frame.type == STREAM_EXIT) {
        s->result = json_incref(json);
        return 1;
    }
    (void)error_set_code(
        &s->failure, error_code_from_name(json_string_value(json_object_get(json, "code")) ?: ""),
        "%s", json_string_value(json_object_get(json, "message")) ?: "the command failed");
    return 1;
}

/* Nobody reads our output any more: what a local process would get is SIGPIPE. */
static void output_is_gone(struct stream *s, struct output *to)
{
    to->gone = true;
    send_signal(s, SIGPIPE);
    s->last_signal = SIGPIPE;
    if (s->abandon_at_usec == 0)
        s->abandon_at_usec = clock_now_usec() + PIPE_GRACE_USEC;
}

/* Passes on what is there of an output frame. Returns 1 when the frame is complete, 0 when not. */
static int pass_output(struct stream *s)
{
    int i = s->frame.type == STREAM_STDOUT ? 1 : 2;
    struct output *to = i == 1 ? &s->stdout_to : &s->stderr_to;

    while (s->frame.size > 0 && s->in.size > 0) {
        size_t size = MIN((size_t)s->frame.size, s->in.size);
        ssize_t n;

        if (s->skip[i] > 0) {
            n = (ssize_t)MIN((uint64_t)size, s->skip[i]);
            s->skip[i] -= (uint64_t)n;
        } else {
            n = output_write(to, buf_data(&s->in), size);
            if (n == -EAGAIN) {
                s->blocked = to;
                return 0;
            }
            if (n < 0) {
                s->write_errno = n == -EPIPE ? s->write_errno : (int)-n;
                output_is_gone(s, to);
                continue;
            }
            s->seen[i] += (uint64_t)n;
        }
        buf_consume(&s->in, (size_t)n);
        s->frame.size -= (uint32_t)n;
    }
    return s->frame.size == 0;
}

/* Works off what was received. Returns 1 after the last frame. */
static int process_input(struct stream *s, struct error *err)
{
    s->blocked = NULL;
    for (;;) {
        int r;

        if (!s->in_frame) {
            if (s->in.size < STREAM_HEADER_SIZE)
                return 0;
            r = stream_header_decode(buf_data(&s->in), &s->frame, err);
            if (r < 0)
                return r;
            buf_consume(&s->in, STREAM_HEADER_SIZE);
            s->in_frame = true;
        }
        if (s->frame.type == STREAM_STDOUT || s->frame.type == STREAM_STDERR) {
            if (pass_output(s) == 0)
                return 0;
        } else {
            if (s->in.size < s->frame.size)
                return 0;
            r = take_frame(s, buf_data(&s->in), err);
            if (r != 0)
                return r;
            buf_consume(&s->in, s->frame.size);
        }
        s->in_frame = false;
    }
}

/* Returns 0, or -ECONNRESET when the connection is over. */
static int receive(struct stream *s)
{
    size_t room = buf_room(&s->in);
    uint8_t *to;
    ssize_t n;
    int r;

    r = buf_reserve(&s->in, room, &to);
    if (r < 0)
        return r;
    n = recv(s->fd, to, room, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0)
        return -ECONNRESET;
    buf_commit(&s->in, (size_t)n);
    return 0;
}

/* ---- what we send ---- */

static int flush(struct stream *s)
{
    while (s->out.size > 0) {
        ssize_t n = send(s->fd, buf_data(&s->out), s->out.size, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n < 0 && errno == EPIPE)
            n = (ssize_t)s->out.size; /* the daemon's last frames may still be there to read */
        if (n < 0)
            return -ECONNRESET;
        buf_consume(&s->out, (size_t)n);
    }
    return 0;
}

static bool wants_stdin(const struct stream *s)
{
    return s->stdin_wanted && !s->stdin_ended && s->started && s->stdin_sent < s->stdin_window &&
           buf_room(&s->out) >= STDIN_BLOCK + 4 * STREAM_HEADER_SIZE;
}

static void read_stdin(struct stream *s)
{
    uint8_t block[STDIN_BLOCK];
    size_t size = (size_t)MIN((uint64_t)sizeof(block), s->stdin_window - s->stdin_sent);
    ssize_t n = read(STDIN_FILENO, block, size);

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0) {
        s->stdin_ended = true;
        send_frame(s, STREAM_STDIN_EOF, NULL, 0);
        return;
    }
    send_frame(s, STREAM_STDIN, block, (uint32_t)n);
    s->stdin_sent += (uint64_t)n;
}

static void force(struct stream *s)
{
    send_signal(s, SIGKILL);
    s->kill_at_usec = 0;
    s->abandon_at_usec = clock_now_usec() + KILL_GRACE_USEC;
}

static void take_signal(struct stream *s, int signo)
{
    switch (signo) {
    case SIGWINCH:
        send_size(s);
        return;
    case SIGCONT:
        terminal_again(&s->terminal);
        send_size(s);
        return;
    case SIGUSR1:
    case SIGUSR2:
        send_signal(s, signo);
        return;
    default:
        break;
    }
    s->last_signal = signo;
    s->interrupts += signo == SIGINT;
    if (signo == SIGINT && s->interrupts > 2) {
        s->abandon_at_usec = clock_now_usec();
    } else if (signo == SIGINT && s->interrupts == 2) {
        force(s);
    } else {
        /* An interactive shell ignores SIGTERM; a terminal that goes away is SIGHUP. */
        send_signal(s, s->tty && signo == SIGTERM ? SIGHUP : signo);
        if (signo == SIGTERM || signo == SIGHUP)
            s->kill_at_usec = clock_now_usec() + HANGUP_GRACE_USEC;
    }
}

/* ---- the loop ---- */

static int next_timeout_msec(const struct stream *s)
{
    uint64_t at = s->abandon_at_usec, now = clock_now_usec();

    if (s->kill_at_usec > 0 && (at == 0 || s->kill_at_usec < at))
        at = s->kill_at_usec;
    if (at == 0)
        return -1;
    return now >= at ? 0 : (int)((at - now) / USEC_PER_MSEC + 1);
}

/* Polls once and does what there is to do. Returns 1 at the end of the connection. */
static int turn(struct stream *s, struct error *err)
{
    struct pollfd fds[4] = {
        {.fd = s->fd,
         .events = (short)((s->blocked ? 0 : POLLIN) | (s->out.size > 0 ? POLLOUT : 0))},
        {.fd = s->signal_fd, .events = POLLIN},
        {.fd = wants_stdin(s) ? STDIN_FILENO : -1, .events = POLLIN},
        {.fd = s->blocked ? s->blocked->fd : -1, .events = POLLOUT},
    };
    bool broken = false;
    int r, signo;

    /* With nothing to read or write, only a hang-up would be reported, over and over. */
    if (fds[0].events == 0)
        fds[0].fd = -1;
    if (poll(fds, ARRAY_SIZE(fds), next_timeout_msec(s)) < 0)
        return errno == EINTR ? 0 : error_set(err, errno, "poll: %s", errno_text(errno));
    for (signo = stream_read_signal(s->signal_fd); signo > 0;
         signo = stream_read_signal(s->signal_fd))
        take_signal(s, signo);
    if (fds[2].revents)
        read_stdin(s);
    if (fds[0].revents & (POLLIN | POLLHUP | POLLERR))
        broken = !s->blocked && receive(s) < 0;
    if (!broken && flush(s) < 0)
        broken = true;
    r = process_input(s, err);
    if (r != 0)
        return r;
    return broken ? -ECONNRESET : 0;
}

int stream_pump(struct stream *s, struct error *err)
{
    int r;

    r = process_input(s, err); /* what came with the head of the answer */
    while (r == 0) {
        uint64_t now = clock_now_usec();

        if (s->abandon_at_usec > 0 && now >= s->abandon_at_usec)
            return STREAM_ABANDONED;
        if (s->kill_at_usec > 0 && now >= s->kill_at_usec)
            force(s);
        r = turn(s, err);
    }
    s->fd = fd_close(s->fd);
    if (r > 0)
        return STREAM_ENDED;
    return r == -ECONNRESET ? STREAM_BROKEN : r;
}
