#include "host-peer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness/test.h"
#include "protocol/frame.h"

#define PEER_BUFFER (16u << 20)

static void on_broken(struct console *c, const struct error *reason, void *userdata)
{
    struct peer *p = userdata;

    ASSERT_TRUE(c == p->console);
    p->broken++;
    p->reason = *reason;
}

static void on_opened(struct console *c, const struct error *err, void *userdata)
{
    struct peer *p = userdata;

    (void)c;
    p->opened++;
    if (err)
        p->open_error = *err;
}

void peer_begin(struct peer *p, uint64_t deadline_usec)
{
    int fds[2];

    *p = (struct peer){.fd = -EBADF};
    buf_init(&p->in, PEER_BUFFER);
    ASSERT_OK(loop_new(&p->loop));
    ASSERT_OK(console_new(p->loop, "test", on_broken, p, &p->console));
    ASSERT_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds));
    p->fd = fds[1];
    ASSERT_OK(console_open_consume(p->console, fds[0], deadline_usec, on_opened, p));
}

void peer_open(struct peer *p)
{
    _cleanup_buf_ struct buf b = {0};

    buf_init(&b, PEER_BUFFER);
    peer_begin(p, clock_now_usec() + 20 * USEC_PER_SEC);
    peer_expect_hello(p);
    put_hello(&b, p->hello_channel, p->nonce, /* sync= */ true);
    peer_send(p, &b);
    PEER_WAIT(p, p->opened == 1);
    ASSERT_EQ(p->open_error.errnum, 0);
}

void peer_end(struct peer *p)
{
    p->console = console_free(p->console);
    p->loop = loop_free(p->loop);
    p->fd = fd_close(p->fd);
    buf_done(&p->in);
}

void peer_turn(struct peer *p)
{
    ASSERT_OK(loop_run_once(p->loop, 10 * USEC_PER_MSEC));
}

static bool receive(struct peer *p)
{
    uint8_t *to;
    ssize_t n;

    ASSERT_OK(buf_reserve(&p->in, 256 * 1024, &to));
    n = read(p->fd, to, 256 * 1024);
    if (n > 0)
        buf_commit(&p->in, (size_t)n);
    return n > 0;
}

/* The next frame or sync; false when none is there yet. */
static bool next_frame(struct peer *p, struct frame *ret)
{
    buf_consume(&p->in, p->used);
    p->used = 0;
    for (;;) {
        enum frame_result r;

        while (receive(p))
            ;
        r = frame_decode(buf_data(&p->in), p->in.size, FRAME_CONTROL_MAX, ret, &p->used);
        if (r == FRAME_OK)
            return true;
        if (r == FRAME_MORE) {
            p->used = 0;
            return false;
        }
        ASSERT_EQ(r, FRAME_SYNCED);
        buf_consume(&p->in, p->used);
        p->used = 0;
    }
}

static void wait_frame(struct peer *p, struct frame *ret)
{
    PEER_WAIT(p, next_frame(p, ret));
}

bool peer_quiet(struct peer *p)
{
    struct frame frame;

    for (int i = 0; i < 3; i++)
        peer_turn(p);
    return !next_frame(p, &frame);
}

Hearth__V1__Request *peer_request(struct peer *p, uint32_t *ret_channel)
{
    Hearth__V1__Request *request;
    struct frame frame;

    wait_frame(p, &frame);
    ASSERT_EQ(frame.kind, FRAME_CONTROL);
    request = hearth__v1__request__unpack(NULL, frame.size, frame.payload);
    ASSERT_TRUE(request);
    *ret_channel = frame.channel;
    return request;
}

uint32_t peer_expect(struct peer *p, int op_case)
{
    uint32_t channel;
    Hearth__V1__Request *request = peer_request(p, &channel);

    ASSERT_EQ(request->op_case, op_case);
    hearth__v1__request__free_unpacked(request, NULL);
    return channel;
}

size_t peer_expect_data(struct peer *p, uint32_t channel, uint8_t stream, uint64_t offset, void *to,
                        size_t to_size)
{
    struct frame frame;

    wait_frame(p, &frame);
    ASSERT_EQ(frame.kind, FRAME_DATA);
    ASSERT_EQ(frame.channel, channel);
    ASSERT_EQ(frame.stream, stream);
    ASSERT_EQ(frame.offset, offset);
    ASSERT_TRUE(frame.size <= to_size);
    memcpy(to, frame.payload, frame.size);
    return frame.size;
}

/* Looks for the last hello in what has come, with whatever stands before it. */
static bool find_hello(struct peer *p)
{
    bool any = false;

    while (receive(p))
        ;
    for (;;) {
        Hearth__V1__Request *request;
        struct frame frame;
        size_t used;
        bool found;

        buf_consume(&p->in, frame_skip_to_sync(buf_data(&p->in), p->in.size, &found));
        if (!found || frame_decode(buf_data(&p->in) + FRAME_SYNC_SIZE, p->in.size - FRAME_SYNC_SIZE,
                                   FRAME_CONTROL_MAX, &frame, &used) != FRAME_OK)
            return any;
        request = hearth__v1__request__unpack(NULL, frame.size, frame.payload);
        ASSERT_TRUE(request);
        ASSERT_EQ(request->op_case, HEARTH__V1__REQUEST__OP_HELLO);
        ASSERT_EQ(request->hello->nonce.len, sizeof(p->nonce));
        memcpy(p->nonce, request->hello->nonce.data, sizeof(p->nonce));
        p->hello_channel = frame.channel;
        hearth__v1__request__free_unpacked(request, NULL);
        buf_consume(&p->in, FRAME_SYNC_SIZE + used);
        any = true;
    }
}

void peer_expect_hello(struct peer *p)
{
    PEER_WAIT(p, find_hello(p));
}

/* ---- what the guest says ---- */

static void put_frame(struct buf *to, enum frame_kind kind, uint8_t stream, uint32_t channel,
                      uint64_t offset, const void *data, size_t size)
{
    uint8_t header[FRAME_HEADER_SIZE];

    frame_encode_header(header, kind, stream, channel, offset, (uint32_t)size);
    ASSERT_OK(buf_append(to, header, sizeof(header)));
    ASSERT_OK(buf_append(to, data, size));
}

void put_event(struct buf *to, uint32_t channel, const Hearth__V1__Event *event)
{
    size_t size = hearth__v1__event__get_packed_size(event);
    _cleanup_free_ uint8_t *data = malloc(size + 1);

    ASSERT_TRUE(data);
    (void)hearth__v1__event__pack(event, data);
    put_frame(to, FRAME_CONTROL, 0, channel, 0, data, size);
}

void put_data(struct buf *to, uint32_t channel, uint8_t stream, uint64_t offset, const void *data,
              size_t size)
{
    put_frame(to, FRAME_DATA, stream, channel, offset, data, size);
}

void put_hello(struct buf *to, uint32_t channel, const uint8_t nonce[16], bool sync)
{
    Hearth__V1__HelloReply reply = HEARTH__V1__HELLO_REPLY__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    uint8_t copy[16];
    char version[] = "1.2\x1b[31m", kernel[] = "6.1.0-test";

    memcpy(copy, nonce, sizeof(copy));
    reply.version = PROTOCOL_VERSION;
    reply.nonce.data = copy;
    reply.nonce.len = sizeof(copy);
    reply.init_version = version;
    reply.kernel = kernel;
    reply.thawed = true;
    reply.uptime_usec = 77;
    event.event_case = HEARTH__V1__EVENT__EVENT_HELLO;
    event.hello = &reply;
    if (sync)
        ASSERT_OK(buf_append(to, frame_sync, FRAME_SYNC_SIZE));
    put_event(to, channel, &event);
}

void put_started(struct buf *to, uint32_t channel, uint64_t process_id)
{
    Hearth__V1__Started started = HEARTH__V1__STARTED__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;

    started.process_id = process_id;
    started.pid = 42;
    event.event_case = HEARTH__V1__EVENT__EVENT_STARTED;
    event.started = &started;
    put_event(to, channel, &event);
}

void put_exit(struct buf *to, uint32_t channel, uint32_t status, uint64_t end1, uint64_t end2)
{
    Hearth__V1__Exit exit_info = HEARTH__V1__EXIT__INIT;
    Hearth__V1__StreamLimit ends[2] = {HEARTH__V1__STREAM_LIMIT__INIT,
                                       HEARTH__V1__STREAM_LIMIT__INIT};
    Hearth__V1__StreamLimit *list[2] = {&ends[0], &ends[1]};
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;

    ends[0].stream = 1;
    ends[0].offset = end1;
    ends[1].stream = 2;
    ends[1].offset = end2;
    exit_info.status = status;
    exit_info.ends = list;
    exit_info.n_ends = 2;
    event.event_case = HEARTH__V1__EVENT__EVENT_EXIT;
    event.exit = &exit_info;
    put_event(to, channel, &event);
}

void put_window(struct buf *to, uint32_t channel, uint32_t stream, uint64_t offset)
{
    Hearth__V1__Window window = HEARTH__V1__WINDOW__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;

    window.stream = stream;
    window.offset = offset;
    event.event_case = HEARTH__V1__EVENT__EVENT_WINDOW;
    event.window = &window;
    put_event(to, channel, &event);
}

void put_stream_end(struct buf *to, uint32_t channel, uint32_t stream, uint64_t offset)
{
    Hearth__V1__StreamEnd end = HEARTH__V1__STREAM_END__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;

    end.stream = stream;
    end.offset = offset;
    event.event_case = HEARTH__V1__EVENT__EVENT_STREAM_END;
    event.stream_end = &end;
    put_event(to, channel, &event);
}

void put_closed(struct buf *to, uint32_t channel, const char *reason)
{
    Hearth__V1__Closed closed = HEARTH__V1__CLOSED__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    _cleanup_free_ char *copy = strdup(reason);

    closed.reason = copy;
    event.event_case = HEARTH__V1__EVENT__EVENT_CLOSED;
    event.closed = &closed;
    put_event(to, channel, &event);
}

void put_done(struct buf *to, uint32_t channel)
{
    Hearth__V1__Done done = HEARTH__V1__DONE__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;

    event.event_case = HEARTH__V1__EVENT__EVENT_DONE;
    event.done = &done;
    put_event(to, channel, &event);
}

void put_error(struct buf *to, uint32_t channel, int code, int errnum, const char *message)
{
    Hearth__V1__Error error = HEARTH__V1__ERROR__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    _cleanup_free_ char *copy = strdup(message);

    error.code = (Hearth__V1__Code)code;
    error.errnum = (uint32_t)errnum;
    error.message = copy;
    event.event_case = HEARTH__V1__EVENT__EVENT_ERROR;
    event.error = &error;
    put_event(to, channel, &event);
}

void put_reply(struct buf *to, uint32_t channel, uint64_t *offset, const Hearth__V1__Reply *reply)
{
    size_t size = hearth__v1__reply__get_packed_size(reply);
    _cleanup_free_ uint8_t *data = malloc(size + 4);

    ASSERT_TRUE(data);
    for (unsigned i = 0; i < 4; i++)
        data[i] = (uint8_t)(size >> (8 * i));
    (void)hearth__v1__reply__pack(reply, data + 4);
    put_data(to, channel, 3, *offset, data, size + 4);
    *offset += size + 4;
}

void peer_send_bytes(struct peer *p, const void *data, size_t size)
{
    const uint8_t *at = data;

    while (size > 0) {
        ssize_t n = send(p->fd, at, size, MSG_NOSIGNAL);

        if (n < 0) {
            ASSERT_EQ(errno, EAGAIN);
            peer_turn(p);
            continue;
        }
        at += n;
        size -= (size_t)n;
    }
}

void peer_send(struct peer *p, struct buf *bytes)
{
    peer_send_bytes(p, buf_data(bytes), bytes->size);
    buf_clear(bytes);
}
