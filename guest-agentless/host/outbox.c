#include "host/console-internal.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "protocol/frame.h"

/*
 * Theory of operation. Everything for the guest goes through one bounded queue. Inside an event
 * function of ours (depth > 0) it only grows: console_leave() writes it in one go. Outside, it is
 * written at once unless older bytes still wait for the socket. Stream data stops at
 * CONSOLE_OUT_DATA_MAX (see channel_writable), new channels at CONSOLE_OUT_REQUEST_MAX; the rest up
 * to CONSOLE_OUT_MAX is for small requests on open channels (windows, signals), whose number the
 * guest's reading bounds. While the conversation stands still (still.c) the same limits hold for
 * what waits behind it.
 */
#define IDLE_CAPACITY (256u * 1024u) /* an empty queue bigger than this is given back */

static void out_of_room(struct console *c, int r)
{
    struct error err = {0};

    if (r == -ENOBUFS)
        (void)error_set_code(&err, ERR_GUEST_UNRESPONSIVE,
                             "guest does not read its console: %zu bytes wait", console_queued(c));
    else
        (void)error_set(&err, -r, "queueing bytes for the guest");
    console_break_later(c, &err);
}

/* A starved writer is woken from the same event that says that the socket has room. */
static void watch(struct console *c)
{
    bool wanted = c->out_blocked || (c->data_starved && !c->still.on);

    if (wanted == c->out_watched)
        return;
    c->out_watched = wanted;
    (void)source_set_io_events(c->io, wanted ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void outbox_flush(struct console *c)
{
    struct error err = {0};

    if (c->fd < 0 || c->lost)
        return;
    while (c->out.size > 0) {
        ssize_t n = send(c->fd, buf_data(&c->out), c->out.size, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN)
                break;
            (void)error_set_errno(&err, ERR_GUEST_GONE, errno, "writing to the guest's console: %s",
                                  errno_text(errno));
            console_break_later(c, &err);
            return;
        }
        buf_consume(&c->out, (size_t)n);
        c->out_progress_usec = clock_now_usec();
    }
    if (!c->out_blocked && c->out.size > 0) {
        c->out_progress_usec = clock_now_usec();
        if (c->state == CONSOLE_OPEN)
            (void)source_set_time(c->timer, c->out_progress_usec + CONSOLE_STALL_USEC);
    }
    c->out_blocked = c->out.size > 0;
    if (!c->out_blocked && c->out.capacity > IDLE_CAPACITY)
        buf_done(&c->out);
    watch(c);
}

/* Where a request goes: past what waits, if it is one that ends the waiting. */
static struct buf *queue_of(struct console *c, Hearth__V1__Request__OpCase op)
{
    bool passes = op == HEARTH__V1__REQUEST__OP_HELLO || op == HEARTH__V1__REQUEST__OP_THAW;

    return c->still.on && !passes ? &c->still.later : &c->out;
}

static void appended(struct console *c, bool was_empty)
{
    if (c->depth == 0 && was_empty)
        outbox_flush(c);
}

int outbox_append(struct console *c, const void *data, size_t size)
{
    bool was_empty = c->out.size == 0;
    int r;

    if (c->lost)
        return -ENOTCONN;
    r = buf_append(&c->out, data, size);
    if (r < 0) {
        out_of_room(c, r);
        return r;
    }
    appended(c, was_empty);
    return 0;
}

int outbox_zeros(struct console *c, size_t size)
{
    bool was_empty = c->out.size == 0;
    uint8_t *to;
    int r;

    if (c->lost)
        return -ENOTCONN;
    r = buf_reserve(&c->out, size, &to);
    if (r < 0) {
        out_of_room(c, r);
        return r;
    }
    memset(to, 0, size);
    buf_commit(&c->out, size);
    appended(c, was_empty);
    return 0;
}

int outbox_request(struct console *c, uint32_t channel, const Hearth__V1__Request *request)
{
    size_t size = hearth__v1__request__get_packed_size(request);
    struct buf *queue = queue_of(c, request->op_case);
    bool was_empty = c->out.size == 0;
    uint8_t *to;
    int r;

    if (c->lost)
        return -ENOTCONN;
    if (size > FRAME_CONTROL_MAX)
        return -E2BIG;
    r = buf_reserve(queue, FRAME_HEADER_SIZE + size, &to);
    if (r < 0) {
        out_of_room(c, r);
        return r;
    }
    frame_encode_header(to, FRAME_CONTROL, 0, channel, 0, (uint32_t)size);
    (void)hearth__v1__request__pack(request, to + FRAME_HEADER_SIZE);
    buf_commit(queue, FRAME_HEADER_SIZE + size);
    appended(c, was_empty);
    return 0;
}

int outbox_data(struct console *c, uint32_t channel, uint8_t stream, uint64_t offset,
                const uint8_t *data, size_t size)
{
    struct buf *queue = queue_of(c, HEARTH__V1__REQUEST__OP__NOT_SET);
    bool was_empty = c->out.size == 0;

    if (c->lost)
        return -ENOTCONN;
    while (size > 0) {
        size_t part = MIN(size, (size_t)FRAME_DATA_MAX);
        uint8_t *to;
        int r = buf_reserve(queue, FRAME_HEADER_SIZE + part, &to);

        if (r < 0) {
            out_of_room(c, r);
            return r;
        }
        frame_encode_header(to, FRAME_DATA, stream, channel, offset, (uint32_t)part);
        memcpy(to + FRAME_HEADER_SIZE, data, part);
        buf_commit(queue, FRAME_HEADER_SIZE + part);
        data += part;
        offset += part;
        size -= part;
    }
    appended(c, was_empty);
    return 0;
}

int outbox_check(struct console *c, uint64_t now_usec, struct error *err)
{
    uint64_t due = c->out_progress_usec + CONSOLE_STALL_USEC;

    if (!c->out_blocked)
        return 0;
    if (now_usec < due)
        return source_set_time(c->timer, due);
    return error_set_code(err, ERR_GUEST_UNRESPONSIVE,
                          "guest did not read its console for %u s, %zu bytes wait",
                          (unsigned)(CONSOLE_STALL_USEC / USEC_PER_SEC), c->out.size);
}
