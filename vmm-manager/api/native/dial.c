#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "api/native/handlers.h"
#include "api/native/native.h"
#include "base/buf.h"
#include "host/files.h"

/*
 * Theory of operation. A TCP connection in the guest joined to the client's upgraded socket, raw
 * bytes both ways. Nothing is read from the client but what the guest takes at once, so there is no
 * buffer in that direction; the other one waits in `out` and is acknowledged as the client takes
 * it. A half that was closed is closed on the other side too; the end comes with the guest's.
 */
#define READ_MAX (64u * 1024u)
#define OUT_MAX (2u * EXEC_WINDOW)

struct dial {
    struct loop *loop;           /* weak */
    struct request *req;         /* weak; NULL after the upgrade */
    struct sandbox_watch *watch; /* owned */
    struct transfer *transfer;   /* owned; NULL: over */
    struct upgrade *up;          /* owned */
    struct source *io;           /* owned */
    struct buf out;
    bool ready;
    bool client_ended;
    uint32_t events;
};

static void dial_free(struct dial *d)
{
    d->io = source_free(d->io);
    d->up = upgrade_close(d->up);
    d->transfer = transfer_free(d->transfer);
    d->watch = sandbox_watch_free(d->watch);
    buf_done(&d->out);
    free(d);
}

static void on_over(void *state, enum request_end why)
{
    (void)why;
    dial_free(state);
}

static void dial_set_events(struct dial *d)
{
    bool reads = d->transfer && !d->client_ended && transfer_writable(d->transfer) > 0;
    /* With nothing left to come, one more "writable" ends it from the loop. */
    bool writes = d->out.size > 0 || !d->transfer;
    uint32_t events = (reads ? EPOLLIN : 0) | (writes ? EPOLLOUT : 0);

    if (!d->io || events == d->events)
        return;
    d->events = events;
    (void)source_set_io_events(d->io, events);
}

static void dial_flush(struct dial *d)
{
    while (d->up && d->out.size > 0) {
        ssize_t n =
            send(upgrade_fd(d->up), buf_data(&d->out), d->out.size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n <= 0)
            break;
        buf_consume(&d->out, (size_t)n);
        if (d->transfer)
            transfer_consumed(d->transfer, (size_t)n);
    }
    dial_set_events(d);
}

/* ---- from the guest ---- */

static void dial_end(struct dial *d, const struct error *err)
{
    d->transfer = transfer_free(d->transfer);
    if (d->req && !d->ready)
        request_answer_error(d->req, err);
    else
        dial_set_events(d);
}

static void on_upgraded(struct upgrade *up, void *state);

static void on_ready(struct transfer *t, uint64_t size, void *userdata)
{
    struct dial *d = userdata;

    (void)t;
    (void)size;
    d->ready = true;
    request_upgrade(d->req, "hearth-stream", on_upgraded);
}

static void on_data(struct transfer *t, const uint8_t *data, size_t size, void *userdata)
{
    struct dial *d = userdata;
    struct error err;

    (void)t;
    if (buf_append(&d->out, data, size) < 0) {
        error_set(&err, ENOBUFS, "dial: the guest sent more than it may");
        dial_end(d, &err);
        return;
    }
    dial_flush(d);
}

static void on_writable(struct transfer *t, void *userdata)
{
    (void)t;
    dial_set_events(userdata);
}

static void on_done(struct transfer *t, const struct error *err, void *userdata)
{
    struct error ended;

    (void)t;
    error_set_code(&ended, ERR_UNAVAILABLE, "dial: the guest closed the connection at once");
    dial_end(userdata, err ? err : &ended);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct dial *d = userdata;

    (void)sb;
    d->watch = sandbox_watch_free(d->watch);
    if (d->transfer)
        dial_end(d, reason);
}

/* ---- from the client ---- */

static void dial_read(struct dial *d)
{
    static uint8_t data[READ_MAX]; /* one thread, used within one call */

    if (!d->transfer || d->client_ended)
        return;
    size_t room = MIN(sizeof(data), transfer_writable(d->transfer));
    if (room == 0)
        return;
    ssize_t n = recv(upgrade_fd(d->up), data, room, MSG_DONTWAIT);
    if (n > 0) {
        (void)transfer_write(d->transfer, data, (size_t)n);
    } else if (n == 0) {
        d->client_ended = true;
        (void)transfer_finish(d->transfer);
    }
}

static int on_io(struct source *s, int fd, uint32_t events, void *userdata)
{
    struct dial *d = userdata;

    (void)s;
    (void)fd;
    if (events & EPOLLIN)
        dial_read(d);
    if (events & EPOLLOUT)
        dial_flush(d);
    if ((events & (EPOLLHUP | EPOLLERR)) || (!d->transfer && d->out.size == 0)) {
        dial_free(d);
        return 0;
    }
    dial_set_events(d);
    return 0;
}

static void on_upgraded(struct upgrade *up, void *state)
{
    struct dial *d = state;
    size_t size;

    d->req = NULL;
    d->up = up;
    d->events = EPOLLIN | EPOLLOUT;
    int r = loop_add_io(d->loop, "dial", upgrade_fd(up), d->events, on_io, d, &d->io);
    const void *extra = upgrade_extra(up, &size);
    /* A first window is larger than one connection's memory. */
    if (r >= 0 && size > 0 && d->transfer)
        r = transfer_write(d->transfer, extra, size);
    if (r < 0)
        dial_free(d);
}

void handle_dial(struct request *req)
{
    struct body {
        uint16_t port;
        char *host;
        uint32_t timeout_ms;
    } body = {.timeout_ms = 10000};
    static const struct field fields[] = {
        {"port", FIELD_U16, offsetof(struct body, port), 1, UINT16_MAX, true},
        {"host", FIELD_STRING, offsetof(struct body, host), 1, 255, false},
        {"timeout_ms", FIELD_U32, offsetof(struct body, timeout_ms), 1, 600000, false},
    };
    static const struct transfer_callbacks callbacks = {
        .on_ready = on_ready,
        .on_data = on_data,
        .on_writable = on_writable,
        .on_done = on_done,
    };
    struct error err = {0};
    struct sandbox *sb;

    struct console *c = native_console(req, &sb);
    if (!c)
        return;
    if (native_decode(req, fields, ARRAY_SIZE(fields), &body)) {
        struct dial *d = calloc(1, sizeof(*d));
        int r = d ? sandbox_watch_new(sb, on_gone, d, &d->watch) : -ENOMEM;
        if (d) {
            d->req = req;
            d->loop = native_of(req)->loop;
            buf_init(&d->out, OUT_MAX);
        }
        if (r >= 0)
            r = dial_start(c, body.host ? body.host : "127.0.0.1", body.port, body.timeout_ms,
                           &callbacks, d, &d->transfer, &err);
        if (r < 0) {
            error_fill(&err, r, "dial port %u", body.port);
            if (d)
                dial_free(d);
            request_answer_error(req, &err);
        } else {
            request_own(req, d, on_over);
        }
    }
    free(body.host);
}
