#include "guest-client.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "harness/test.h"

#define WAIT_MSEC 20000
#define OUT_MAX (64u * 1024u * 1024u)

ProtobufCBinaryData bytes_of(const char *text)
{
    return (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)text, .len = strlen(text)};
}

void client_raw(struct client *c, const void *data, size_t size)
{
    ASSERT_OK(fd_write_full(c->fd, data, size));
}

void client_send(struct client *c, uint32_t channel, Hearth__V1__Request *request)
{
    size_t size = hearth__v1__request__get_packed_size(request);
    uint8_t *data = malloc(FRAME_HEADER_SIZE + size);

    ASSERT_TRUE(data != NULL);
    frame_encode_header(data, FRAME_CONTROL, 0, channel, 0, (uint32_t)size);
    hearth__v1__request__pack(request, data + FRAME_HEADER_SIZE);
    client_raw(c, data, FRAME_HEADER_SIZE + size);
    free(data);
}

struct run *client_request(struct client *c, Hearth__V1__Request *request)
{
    struct run *r = calloc(1, sizeof(*r));

    ASSERT_TRUE(r != NULL);
    ASSERT_TRUE(c->n_runs < CLIENT_RUNS);
    r->channel = ++c->last_channel;
    for (unsigned i = 0; i < CLIENT_STREAMS; i++)
        buf_init(&r->out[i], OUT_MAX);
    c->runs[c->n_runs++] = r;
    client_send(c, r->channel, request);
    return r;
}

void client_use(struct client *c, int fd)
{
    *c = (struct client){.fd = fd};
    buf_init(&c->in, 4 * FRAME_CONTROL_MAX);
}

void client_hello(struct client *c)
{
    Hearth__V1__Hello hello = HEARTH__V1__HELLO__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;

    ASSERT_EQ(getrandom(c->nonce, sizeof(c->nonce), 0), sizeof(c->nonce));
    c->greeted = false;
    hello.version_min = hello.version_max = PROTOCOL_VERSION;
    hello.nonce = (ProtobufCBinaryData){.data = c->nonce, .len = sizeof(c->nonce)};
    request.op_case = HEARTH__V1__REQUEST__OP_HELLO;
    request.hello = &hello;
    client_raw(c, frame_sync, FRAME_SYNC_SIZE);
    client_send(c, ++c->last_channel, &request);
    CLIENT_WAIT(c, c->greeted);
}

void client_start(struct client *c, const struct guest_options *options)
{
    int fds[2];

    ASSERT_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0 ? -errno : 0);
    client_use(c, fds[0]);
    c->pid = fork();
    ASSERT_TRUE(c->pid >= 0);
    if (c->pid == 0) {
        (void)close(fds[0]);
        _exit(guest_serve(fds[1], options) < 0 ? 1 : 0);
    }
    (void)close(fds[1]);
    client_hello(c);
}

void client_stop(struct client *c)
{
    int status;

    (void)close(c->fd);
    for (size_t i = 0; i < c->n_runs; i++) {
        for (unsigned s = 0; s < CLIENT_STREAMS; s++)
            buf_done(&c->runs[i]->out[s]);
        if (c->runs[i]->last)
            hearth__v1__event__free_unpacked(c->runs[i]->last, NULL);
        free(c->runs[i]);
    }
    buf_done(&c->in);
    if (c->pid == 0)
        return;
    ASSERT_EQ(waitpid(c->pid, &status, 0), c->pid);
    /* A sanitizer's finding in the server shows here. */
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static struct run *find_run(struct client *c, uint32_t channel)
{
    for (size_t i = 0; i < c->n_runs; i++) {
        if (c->runs[i]->channel == channel)
            return c->runs[i];
    }
    return NULL;
}

void run_window(struct client *c, struct run *r, uint32_t stream, uint64_t offset)
{
    Hearth__V1__Window window = HEARTH__V1__WINDOW__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;

    window.stream = stream;
    window.offset = offset;
    request.op_case = HEARTH__V1__REQUEST__OP_WINDOW;
    request.window = &window;
    client_send(c, r->channel, &request);
}

static void take_data(struct client *c, struct run *r, const struct frame *f)
{
    ASSERT_TRUE(f->stream < CLIENT_STREAMS);
    ASSERT_TRUE(r->started && !r->closed && !r->ended[f->stream]);
    if (r->total[f->stream] == 0)
        r->first[f->stream] = f->offset;
    else
        ASSERT_TRUE(f->offset >= r->offset[f->stream]);
    r->offset[f->stream] = f->offset + f->size;
    r->total[f->stream] += f->size;
    if (!r->discard)
        ASSERT_OK(buf_append(&r->out[f->stream], f->payload, f->size));
    if (r->window > 0)
        run_window(c, r, f->stream, r->offset[f->stream] + r->window);
}

static void take_started(struct run *r, const Hearth__V1__Started *started)
{
    ASSERT_FALSE(r->started);
    r->started = true;
    r->process_id = started->process_id;
    r->pid = started->pid;
    for (size_t i = 0; i < started->n_streams; i++) {
        const Hearth__V1__StreamRange *range = started->streams[i];

        ASSERT_TRUE(range->stream < CLIENT_STREAMS);
        r->present[range->stream] = true;
        r->range_start[range->stream] = range->start;
        r->range_end[range->stream] = range->end;
        r->sent[range->stream] = range->end;
    }
}

static void take_exit(struct run *r, const Hearth__V1__Exit *e)
{
    ASSERT_TRUE(r->started && !r->exited);
    r->exited = true;
    r->status = e->status;
    r->signal = e->signal;
    r->timed_out = e->timed_out;
    r->oom_killed = e->oom_killed;
    for (size_t i = 0; i < e->n_ends; i++)
        r->end[e->ends[i]->stream] = e->ends[i]->offset;
}

static void take_event(struct client *c, const struct frame *f)
{
    Hearth__V1__Event *e = hearth__v1__event__unpack(NULL, f->size, f->payload);
    struct run *r = find_run(c, f->channel);

    ASSERT_TRUE(e != NULL);
    ASSERT_TRUE(f->size <= FRAME_EVENT_MAX);
    if (e->event_case == HEARTH__V1__EVENT__EVENT_HELLO) {
        if (e->hello->nonce.len == sizeof(c->nonce) &&
            memcmp(e->hello->nonce.data, c->nonce, sizeof(c->nonce)) == 0) {
            c->greeted = true;
            c->thawed = e->hello->thawed;
        }
    } else if (r) {
        /* Nothing follows the end of a channel. */
        ASSERT_FALSE(r->closed || r->failed || r->done);
        switch (e->event_case) {
        case HEARTH__V1__EVENT__EVENT_STARTED:
            take_started(r, e->started);
            break;
        case HEARTH__V1__EVENT__EVENT_EXIT:
            take_exit(r, e->exit);
            break;
        case HEARTH__V1__EVENT__EVENT_STREAM_END:
            ASSERT_FALSE(r->ended[e->stream_end->stream]);
            r->ended[e->stream_end->stream] = true;
            break;
        case HEARTH__V1__EVENT__EVENT_WINDOW:
            r->granted[e->window->stream] = e->window->offset;
            break;
        case HEARTH__V1__EVENT__EVENT_CLOSED:
            r->closed = true;
            break;
        case HEARTH__V1__EVENT__EVENT_ERROR:
            r->failed = true;
            r->code = (int)e->error->code;
            r->errnum = e->error->errnum;
            (void)snprintf(r->message, sizeof(r->message), "%s", e->error->message);
            break;
        default:
            r->done = e->event_case != HEARTH__V1__EVENT__EVENT_LIST || !e->list->more;
            r->events++;
            if (r->last)
                hearth__v1__event__free_unpacked(r->last, NULL);
            r->last = e;
            return;
        }
    }
    hearth__v1__event__free_unpacked(e, NULL);
}

bool client_try(struct client *c, int msec)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN};

    for (;;) {
        size_t used = 0;
        struct frame f;
        uint8_t *to;
        ssize_t n;

        if (!c->greeted) {
            bool found;

            buf_consume(&c->in, frame_skip_to_sync(buf_data(&c->in), c->in.size, &found));
            if (found) {
                struct frame hello;
                enum frame_result fr =
                    frame_decode(buf_data(&c->in) + FRAME_SYNC_SIZE, c->in.size - FRAME_SYNC_SIZE,
                                 FRAME_EVENT_MAX, &hello, &used);

                if (fr == FRAME_OK) {
                    if (hello.kind == FRAME_CONTROL)
                        take_event(c, &hello);
                    buf_consume(&c->in, FRAME_SYNC_SIZE + used);
                    return true;
                }
                if (fr != FRAME_MORE)
                    buf_consume(&c->in, 1);
            }
        } else {
            enum frame_result fr =
                frame_decode(buf_data(&c->in), c->in.size, FRAME_EVENT_MAX, &f, &used);

            ASSERT_TRUE(fr == FRAME_OK || fr == FRAME_MORE);
            if (fr == FRAME_OK) {
                struct run *r = find_run(c, f.channel);

                if (f.kind == FRAME_CONTROL)
                    take_event(c, &f);
                else if (r)
                    take_data(c, r, &f);
                buf_consume(&c->in, used);
                return true;
            }
        }
        n = poll(&p, 1, msec);
        if (n <= 0)
            return false;
        ASSERT_OK(buf_reserve(&c->in, 65536, &to));
        n = read(c->fd, to, 65536);
        if (n <= 0)
            test_fail(__FILE__, __LINE__, "the guest closed the connection");
        buf_commit(&c->in, (size_t)n);
    }
}

void client_step(struct client *c)
{
    if (!client_try(c, WAIT_MSEC))
        test_fail(__FILE__, __LINE__, "the guest is silent");
}

/* ---- requests ---- */

void exec_args_init(struct exec_args *a, const char *const *argv)
{
    memset(a, 0, sizeof(*a));
    hearth__v1__exec__init(&a->exec);
    hearth__v1__limits__init(&a->cgroup);
    hearth__v1__tty__init(&a->tty);
    a->exec.argv = a->argv;
    a->exec.env = a->env;
    a->exec.streams = a->spec_list;
    for (; *argv; argv++)
        a->argv[a->exec.n_argv++] = bytes_of(*argv);
}

void exec_args_env(struct exec_args *a, const char *text)
{
    a->env[a->exec.n_env++] = bytes_of(text);
}

void exec_args_stream(struct exec_args *a, uint32_t fd, bool to_guest, bool marked)
{
    size_t i = a->exec.n_streams++;

    hearth__v1__stream_spec__init(&a->specs[i]);
    a->specs[i].fd = fd;
    a->specs[i].to_guest = to_guest;
    a->specs[i].marked = marked;
    a->spec_list[i] = &a->specs[i];
}

static size_t fill_limits(Hearth__V1__StreamLimit *limits, Hearth__V1__StreamLimit **list,
                          const uint64_t *from, uint64_t add)
{
    for (uint32_t i = 0; i < CLIENT_STREAMS; i++) {
        hearth__v1__stream_limit__init(&limits[i]);
        limits[i].stream = i;
        limits[i].offset = (from ? from[i] : 0) + add;
        list[i] = &limits[i];
    }
    return CLIENT_STREAMS;
}

struct run *client_exec(struct client *c, struct exec_args *a, uint64_t window)
{
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    struct run *r;

    a->exec.windows = a->limit_list;
    a->exec.n_windows = window ? fill_limits(a->limits, a->limit_list, NULL, window) : 0;
    request.op_case = HEARTH__V1__REQUEST__OP_EXEC;
    request.exec = &a->exec;
    r = client_request(c, &request);
    r->window = window;
    return r;
}

struct run *client_sh(struct client *c, const char *text)
{
    const char *argv[] = {"/bin/sh", "-c", text, NULL};
    struct exec_args a;

    exec_args_init(&a, argv);
    return client_exec(c, &a, 256 * 1024);
}

struct run *client_attach(struct client *c, uint64_t process_id, const uint64_t *from,
                          uint64_t window)
{
    Hearth__V1__Attach attach = HEARTH__V1__ATTACH__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    Hearth__V1__StreamLimit froms[CLIENT_STREAMS], *from_list[CLIENT_STREAMS];
    Hearth__V1__StreamLimit windows[CLIENT_STREAMS], *window_list[CLIENT_STREAMS];
    struct run *r;

    attach.process_id = process_id;
    attach.from = from_list;
    attach.n_from = from ? fill_limits(froms, from_list, from, 0) : 0;
    attach.windows = window_list;
    attach.n_windows = window ? fill_limits(windows, window_list, from, window) : 0;
    request.op_case = HEARTH__V1__REQUEST__OP_ATTACH;
    request.attach = &attach;
    r = client_request(c, &request);
    r->window = window;
    return r;
}

struct run *client_file(struct client *c, const char *user, Hearth__V1__FileOp *op)
{
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    struct run *r;

    op->user = (char *)(uintptr_t)user;
    request.op_case = HEARTH__V1__REQUEST__OP_FILE;
    request.file = op;
    r = client_request(c, &request);
    r->window = 65536;
    run_window(c, r, 1, r->window);
    run_window(c, r, 3, r->window);
    return r;
}

void run_write(struct client *c, struct run *r, uint8_t stream, const void *data, size_t size)
{
    const uint8_t *p = data;

    while (size > 0) {
        uint8_t header[FRAME_HEADER_SIZE];
        size_t n;

        CLIENT_WAIT(c, r->granted[stream] > r->sent[stream]);
        n = (size_t)(r->granted[stream] - r->sent[stream]);
        n = MIN(n, MIN(size, (size_t)FRAME_DATA_MAX));
        frame_encode_header(header, FRAME_DATA, stream, r->channel, r->sent[stream], (uint32_t)n);
        client_raw(c, header, sizeof(header));
        client_raw(c, p, n);
        r->sent[stream] += n;
        p += n;
        size -= n;
    }
}

void run_close(struct client *c, struct run *r, uint32_t stream)
{
    Hearth__V1__CloseStream close_stream = HEARTH__V1__CLOSE_STREAM__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;

    close_stream.stream = stream;
    request.op_case = HEARTH__V1__REQUEST__OP_CLOSE_STREAM;
    request.close_stream = &close_stream;
    client_send(c, r->channel, &request);
}

void run_signal(struct client *c, struct run *r, uint32_t signo, int scope)
{
    Hearth__V1__Signal message = HEARTH__V1__SIGNAL__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;

    message.signo = signo;
    message.scope = (Hearth__V1__Signal__Scope)scope;
    request.op_case = HEARTH__V1__REQUEST__OP_SIGNAL;
    request.signal = &message;
    client_send(c, r->channel, &request);
}

Hearth__V1__Reply *run_reply(struct run *r)
{
    const uint8_t *p = buf_data(&r->out[3]);
    Hearth__V1__Reply *reply;
    size_t size;

    if (r->out[3].size < 4)
        return NULL;
    size = (size_t)p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
    if (r->out[3].size < 4 + size)
        return NULL;
    ASSERT_TRUE(size <= 65536);
    reply = hearth__v1__reply__unpack(NULL, size, p + 4);
    ASSERT_TRUE(reply != NULL);
    buf_consume(&r->out[3], 4 + size);
    return reply;
}
