#include "api/front/tunnel.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/buf.h"

#define READ_MAX (64u * 1024u)

struct tunnel {
    struct upgrade *up;        /* owned */
    struct source *io;         /* owned */
    struct transfer *transfer; /* weak; NULL: over */
    struct buf out;
    void (*over)(void *owner);
    void *owner; /* weak */
    bool client_ended;
    uint32_t events;
};

struct tunnel *tunnel_free(struct tunnel *t)
{
    if (!t)
        return NULL;
    t->io = source_free(t->io);
    t->up = upgrade_close(t->up);
    buf_done(&t->out);
    free(t);
    return NULL;
}

static void set_events(struct tunnel *t)
{
    bool reads = t->transfer && !t->client_ended && transfer_writable(t->transfer) > 0;
    /* With nothing left to come, one more "writable" ends it from the loop. */
    bool writes = t->out.size > 0 || !t->transfer;
    uint32_t events = (reads ? EPOLLIN : 0) | (writes ? EPOLLOUT : 0);

    if (events == t->events)
        return;
    t->events = events;
    (void)source_set_io_events(t->io, events);
}

static void flush_out(struct tunnel *t)
{
    while (t->out.size > 0) {
        ssize_t n =
            send(upgrade_fd(t->up), buf_data(&t->out), t->out.size, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n <= 0)
            break;
        buf_consume(&t->out, (size_t)n);
        if (t->transfer)
            transfer_consumed(t->transfer, (size_t)n);
    }
    set_events(t);
}

static void read_client(struct tunnel *t)
{
    static uint8_t data[READ_MAX]; /* one thread, used within one call */
    size_t room;
    ssize_t n;

    if (!t->transfer || t->client_ended)
        return;
    room = MIN(sizeof(data), transfer_writable(t->transfer));
    if (room == 0)
        return;
    n = recv(upgrade_fd(t->up), data, room, MSG_DONTWAIT);
    if (n > 0) {
        (void)transfer_write(t->transfer, data, (size_t)n);
    } else if (n == 0) {
        t->client_ended = true;
        (void)transfer_finish(t->transfer);
    }
}

static int on_io(struct source *s, int fd, uint32_t events, void *userdata)
{
    struct tunnel *t = userdata;

    (void)s;
    (void)fd;
    if (events & EPOLLIN)
        read_client(t);
    if (events & EPOLLOUT)
        flush_out(t);
    if ((events & (EPOLLHUP | EPOLLERR)) || (!t->transfer && t->out.size == 0)) {
        t->over(t->owner);
        return 0;
    }
    set_events(t);
    return 0;
}

int tunnel_new(struct loop *loop, struct upgrade *up_consume, struct transfer *transfer,
               void (*over)(void *owner), void *owner, struct tunnel **ret)
{
    struct tunnel *t = calloc(1, sizeof(*t));
    const void *extra;
    size_t size;
    int r;

    if (!t) {
        (void)upgrade_close(up_consume);
        return -ENOMEM;
    }
    t->up = up_consume;
    t->transfer = transfer;
    t->over = over;
    t->owner = owner;
    t->events = EPOLLIN | EPOLLOUT;
    buf_init(&t->out, TUNNEL_MAX);
    r = loop_add_io(loop, "tunnel", upgrade_fd(t->up), t->events, on_io, t, &t->io);
    extra = upgrade_extra(t->up, &size);
    /* A first window is larger than one connection's memory. */
    if (r >= 0 && size > 0 && transfer)
        r = transfer_write(transfer, extra, size);
    if (r < 0) {
        (void)tunnel_free(t);
        return r;
    }
    *ret = t;
    return 0;
}

int tunnel_data(struct tunnel *t, const uint8_t *data, size_t size)
{
    int r = buf_append(&t->out, data, size);

    if (r >= 0)
        flush_out(t);
    return r;
}

void tunnel_writable(struct tunnel *t)
{
    set_events(t);
}

void tunnel_guest_ended(struct tunnel *t)
{
    t->transfer = NULL;
    set_events(t);
}
