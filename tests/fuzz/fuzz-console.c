#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/loop.h"
#include "harness/fuzz.h"
#include "host/console.h"
#include "host/exec.h"
#include "host/files.h"
#include "protocol/frame.h"
#include "protocol/session.pb-c.h"

/*
 * A guest that says anything. Byte 0 of the input: bit 0 sends the rest before the hello is
 * answered, bit 1 frees an exec and a call in the third callback, bit 2 the console. Byte 1: how
 * many bytes go at once (0: all). The rest is what the guest sends, with one channel of each kind
 * open: 2 exec, 3 exec that drops, 4 attach, 5 ping, 6 stats, 7 list, 8 list of files, 9 stat, 10
 * read, 11 write, 12 dial, 13 watch, 14 freeze.
 */
#define EXECS 3
#define CALLS 3
#define TRANSFERS 3

struct fixture {
    struct loop *loop;
    struct console *console;
    int fd;
    uint8_t flags;
    unsigned calls;
    struct exec *execs[EXECS];
    struct file_call *file_calls[CALLS];
    struct transfer *transfers[TRANSFERS];
};

static void called(struct fixture *f)
{
    if (++f->calls != 3)
        return;
    if (f->flags & 2) {
        f->execs[0] = exec_free(f->execs[0]);
        f->file_calls[0] = file_call_free(f->file_calls[0]);
        f->transfers[0] = transfer_free(f->transfers[0]);
    }
    if (f->flags & 4)
        f->console = console_free(f->console);
}

static void on_broken(struct console *c, const struct error *reason, void *userdata)
{
    (void)c;
    (void)reason;
    called(userdata);
}

static void on_console_done(struct console *c, const struct error *err, void *userdata)
{
    (void)c;
    (void)err;
    called(userdata);
}

static void on_opened(struct console *c, const struct error *err, void *userdata)
{
    (void)c;
    (void)err;
    (void)userdata;
}

static void on_stats(struct console *c, const struct console_stats *stats, const struct error *err,
                     void *userdata)
{
    (void)c;
    (void)stats;
    (void)err;
    called(userdata);
}

static void on_list(struct console *c, const struct exec_info *infos, size_t count,
                    const struct error *err, void *userdata)
{
    (void)c;
    (void)err;
    for (size_t i = 0; i < count; i++)
        if (strlen(infos[i].command) >= sizeof(infos[i].command))
            abort();
    called(userdata);
}

static void on_started(struct exec *e, uint64_t process_id, uint32_t pid,
                       const struct exec_range ranges[EXEC_STREAMS_MAX], void *userdata)
{
    (void)e;
    (void)process_id;
    (void)pid;
    (void)ranges;
    called(userdata);
}

static void on_output(struct exec *e, uint8_t stream, uint64_t offset, const uint8_t *data,
                      size_t size, void *userdata)
{
    volatile uint8_t last = data[size - 1];

    (void)last;
    (void)offset;
    exec_consumed(e, stream, size / 2 + 1);
    called(userdata);
}

static void on_stream_end(struct exec *e, uint8_t stream, uint64_t offset, void *userdata)
{
    (void)e;
    (void)stream;
    (void)offset;
    called(userdata);
}

static void on_writable(struct exec *e, uint8_t stream, void *userdata)
{
    static const uint8_t data[4096];
    size_t n = exec_writable(e, stream);

    if (n == 0 || exec_write(e, stream, data, n < sizeof(data) ? n : sizeof(data)) == -EAGAIN)
        abort();
    called(userdata);
}

static void on_exit_event(struct exec *e, const struct exec_exit *exit, void *userdata)
{
    (void)e;
    if (exec_exit_code(exit) < 0 || exec_exit_code(exit) > 255)
        abort();
    called(userdata);
}

static void on_closed(struct exec *e, const struct error *reason, void *userdata)
{
    (void)e;
    (void)reason;
    called(userdata);
}

static const struct exec_callbacks exec_callbacks = {
    .on_started = on_started,
    .on_output = on_output,
    .on_stream_end = on_stream_end,
    .on_writable = on_writable,
    .on_exit = on_exit_event,
    .on_closed = on_closed,
};

static void on_info(const struct file_info *info, const struct error *err, void *userdata)
{
    (void)info;
    (void)err;
    called(userdata);
}

static void on_files(const struct file_info *infos, size_t count, bool last,
                     const struct error *err, void *userdata)
{
    (void)last;
    (void)err;
    for (size_t i = 0; i < count; i++)
        if (infos[i].path[0] == '/' || infos[i].path[0] == '\0')
            abort();
    called(userdata);
}

static void on_watch(enum file_event_kind kind, const char *path, const struct error *err,
                     void *userdata)
{
    (void)kind;
    (void)path;
    (void)err;
    called(userdata);
}

static void on_ready(struct transfer *t, uint64_t size, void *userdata)
{
    (void)t;
    (void)size;
    called(userdata);
}

static void on_data(struct transfer *t, const uint8_t *data, size_t size, void *userdata)
{
    (void)data;
    transfer_consumed(t, size);
    called(userdata);
}

static void on_transfer_writable(struct transfer *t, void *userdata)
{
    (void)transfer_write(t, "x", 1);
    (void)transfer_finish(t);
    called(userdata);
}

static void on_transfer_done(struct transfer *t, const struct error *err, void *userdata)
{
    (void)t;
    (void)err;
    called(userdata);
}

static const struct transfer_callbacks transfer_callbacks = {
    .on_ready = on_ready,
    .on_data = on_data,
    .on_writable = on_transfer_writable,
    .on_done = on_transfer_done,
};

/* What the host says is of no interest, but must be taken. */
static void drain(struct fixture *f)
{
    static uint8_t waste[65536];

    while (read(f->fd, waste, sizeof(waste)) > 0)
        ;
}

static void feed(struct fixture *f, const uint8_t *data, size_t size, size_t step)
{
    while (size > 0) {
        size_t part = step && step < size ? step : size;
        ssize_t n = send(f->fd, data, part, MSG_NOSIGNAL);

        if (n > 0) {
            data += n;
            size -= (size_t)n;
        } else if (errno != EAGAIN) {
            return;
        }
        (void)loop_run_once(f->loop, 0);
        drain(f);
    }
    for (int i = 0; i < 4; i++)
        (void)loop_run_once(f->loop, 0);
    drain(f);
}

/* Finds the nonce in the hello and answers it. */
static void answer_hello(struct fixture *f)
{
    Hearth__V1__HelloReply reply = HEARTH__V1__HELLO_REPLY__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    uint8_t in[1024], out[256];
    struct frame frame;
    size_t used;
    ssize_t n = read(f->fd, in, sizeof(in));
    Hearth__V1__Request *request;

    if (n < (ssize_t)FRAME_SYNC_SIZE ||
        frame_decode(in + FRAME_SYNC_SIZE, (size_t)n - FRAME_SYNC_SIZE, FRAME_CONTROL_MAX, &frame,
                     &used) != FRAME_OK)
        return;
    request = hearth__v1__request__unpack(NULL, frame.size, frame.payload);
    if (!request)
        abort();
    reply.version = PROTOCOL_VERSION;
    reply.nonce = request->hello->nonce;
    event.event_case = HEARTH__V1__EVENT__EVENT_HELLO;
    event.hello = &reply;
    memcpy(out, frame_sync, FRAME_SYNC_SIZE);
    n = (ssize_t)hearth__v1__event__pack(&event, out + FRAME_SYNC_SIZE + FRAME_HEADER_SIZE);
    frame_encode_header(out + FRAME_SYNC_SIZE, FRAME_CONTROL, 0, frame.channel, 0, (uint32_t)n);
    hearth__v1__request__free_unpacked(request, NULL);
    feed(f, out, FRAME_SYNC_SIZE + FRAME_HEADER_SIZE + (size_t)n, 0);
}

static void open_channels(struct fixture *f)
{
    static char arg[] = "cat";
    static char *argv[] = {arg, NULL};
    static const struct exec_stream streams[] = {{.fd = 3, .to_guest = true},
                                                 {.fd = 4, .marked = true}};
    struct exec_spec plain = {.argv = argv, .streams = streams, .n_streams = 2};
    struct exec_spec drops = {.argv = argv, .tty = true, .drop_when_full = true};
    struct console *c = f->console;

    (void)exec_start(c, &plain, &exec_callbacks, f, &f->execs[0], NULL);
    (void)exec_start(c, &drops, &exec_callbacks, f, &f->execs[1], NULL);
    (void)exec_attach(c, 1, NULL, &exec_callbacks, f, &f->execs[2], NULL);
    (void)console_ping(c, USEC_INFINITY, on_console_done, f);
    (void)console_stats(c, USEC_INFINITY, on_stats, f);
    (void)exec_list(c, USEC_INFINITY, on_list, f);
    (void)file_list(c, NULL, "/", 1, on_files, f, &f->file_calls[0], NULL);
    (void)file_stat(c, NULL, "/a", true, on_info, f, &f->file_calls[1], NULL);
    (void)file_read_start(c, NULL, "/a", 0, 0, &transfer_callbacks, f, &f->transfers[0], NULL);
    (void)file_write_start(c, NULL, "/a", NULL, &transfer_callbacks, f, &f->transfers[1], NULL);
    (void)dial_start(c, NULL, 80, 0, &transfer_callbacks, f, &f->transfers[2], NULL);
    (void)file_watch(c, NULL, "/a", true, on_watch, f, &f->file_calls[2], NULL);
    (void)console_freeze(c, USEC_INFINITY, on_console_done, f);
}

static void teardown(struct fixture *f)
{
    for (size_t i = 0; i < EXECS; i++)
        f->execs[i] = exec_free(f->execs[i]);
    for (size_t i = 0; i < CALLS; i++)
        f->file_calls[i] = file_call_free(f->file_calls[i]);
    for (size_t i = 0; i < TRANSFERS; i++)
        f->transfers[i] = transfer_free(f->transfers[i]);
    f->console = console_free(f->console);
    f->loop = loop_free(f->loop);
    f->fd = fd_close(f->fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fixture f = {.fd = -EBADF};
    int fds[2];

    if (size < 2)
        return 0;
    f.flags = data[0];
    if (loop_new(&f.loop) < 0 || console_new(f.loop, "fuzz", on_broken, &f, &f.console) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
        abort();
    f.fd = fds[1];
    if (console_open_consume(f.console, fds[0], clock_now_usec() + 10 * USEC_PER_SEC, on_opened,
                             &f) == 0) {
        if (f.flags & 1) {
            feed(&f, data + 2, size - 2, data[1]);
        } else {
            answer_hello(&f);
            open_channels(&f);
            feed(&f, data + 2, size - 2, data[1]);
            f.fd = fd_close(f.fd);
            for (int i = 0; i < 3; i++)
                (void)loop_run_once(f.loop, 0);
        }
    }
    teardown(&f);
    return 0;
}
