#include "guest/conn.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/server.h"
#include "protocol/frame.h"

#define READ_SIZE (64u * 1024u)
#define READS_PER_TURN 8u
#define IDLE_CAPACITY (256u * 1024u) /* an empty buffer bigger than this is given back */

static void on_event(struct source *source, uint32_t events)
{
    struct conn *c = container_of(source, struct conn, source);

    if (events & ~(uint32_t)EPOLLOUT)
        c->readable = true;
    if (events & EPOLLOUT)
        c->writable = true;
}

int conn_open_consume(struct conn *c, struct server *s, int fd, bool persistent)
{
    int r;

    *c = (struct conn){.server = s,
                       .fd = fd,
                       .persistent = persistent,
                       .lost = true,
                       .readable = true,
                       .writable = true};
    c->recheck_usec = USEC_INFINITY;
    buf_init(&c->in, FRAME_CONTROL_MAX + FRAME_HEADER_SIZE + READ_SIZE);
    buf_init(&c->out, CONN_OUT_MAX);
    r = fd_set_nonblock(fd, true);
    if (r == 0)
        r = source_add(&s->poller, &c->source, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                       on_event);
    if (r < 0)
        c->fd = fd_close(c->fd);
    return r;
}

static void close_fd(struct conn *c)
{
    if (c->fd >= 0)
        source_remove(&c->server->poller, &c->source);
    c->fd = fd_close(c->fd);
    c->readable = c->writable = false;
}

void conn_close(struct conn *c)
{
    if (c->fd < 0 && !c->parked)
        return;
    if (c->server->active == c)
        server_conn_lost(c->server, c);
    close_fd(c);
    buf_done(&c->in);
    buf_done(&c->out);
    c->parked = c->still = false;
}

/* Bytes that may go now. */
static size_t conn_sendable(const struct conn *c)
{
    return c->still ? c->due : c->out.size;
}

/* Of what had to go and did not, the host has seen no end: it goes on behind it or not at all. */
static bool conn_park(struct conn *c)
{
    if (!c->still || c->persistent || c->in.size > 0 || c->server->active != c)
        return false;
    close_fd(c);
    buf_consume(&c->out, c->due);
    c->due = 0;
    c->parked = true;
    return true;
}

void conn_yield(struct conn *c)
{
    if (c->fd >= 0 && !conn_park(c))
        conn_close(c);
}

void conn_stand_still(struct conn *c)
{
    c->still = true;
    c->due = c->out.size;
}

void conn_go_on(struct conn *c)
{
    c->still = false;
}

int conn_continue(struct conn *c, struct conn *from)
{
    int r;

    conn_stand_still(c);
    r = from->out.size > 0 ? buf_append(&c->out, buf_data(&from->out), from->out.size) : 0;
    memcpy(c->nonce, from->nonce, from->nonce_size);
    c->nonce_size = from->nonce_size;
    c->server->active = c;
    conn_close(from);
    return r;
}

void conn_lose(struct conn *c)
{
    c->lost = true;
    c->greeted = c->still = false;
    buf_clear(&c->out);
    if (c->server->active == c)
        server_conn_lost(c->server, c);
}

static void conn_hang_up(struct conn *c)
{
    if (c->persistent && clock_now_usec() - c->synced_usec < CONN_RECHECK_USEC) {
        c->readable = false;
        c->recheck_usec = clock_now_usec() + CONN_RECHECK_USEC;
        return;
    }
    if (conn_park(c))
        return;
    conn_lose(c);
    buf_clear(&c->in);
    c->readable = false;
    if (!c->persistent)
        c->broken = true;
}

static void conn_parse(struct conn *c)
{
    while (c->in.size > 0 && c->out.size < CONN_OUT_STOP) {
        size_t used = 0;
        struct frame f;

        if (c->lost) {
            bool found;

            buf_consume(&c->in, frame_skip_to_sync(buf_data(&c->in), c->in.size, &found));
            if (!found)
                return;
            c->lost = false;
        }
        switch (frame_decode(buf_data(&c->in), c->in.size, FRAME_CONTROL_MAX, &f, &used)) {
        case FRAME_MORE:
            return;
        case FRAME_SYNCED:
            conn_lose(c);
            c->lost = false;
            c->synced_usec = clock_now_usec();
            break;
        case FRAME_BAD:
            conn_lose(c);
            break;
        case FRAME_OK:
            server_dispatch(c->server, c, &f);
            break;
        }
        buf_consume(&c->in, used);
    }
}

static void conn_read(struct conn *c)
{
    for (unsigned i = 0; i < READS_PER_TURN && c->readable; i++) {
        uint8_t *to;
        ssize_t n;

        if (c->out.size >= CONN_OUT_STOP)
            return;
        /* No room only while a parse waits for the output to drain. */
        if (buf_reserve(&c->in, READ_SIZE, &to) < 0)
            return;
        n = read(c->fd, to, READ_SIZE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            c->readable = false;
            return;
        }
        if (n <= 0) {
            conn_hang_up(c);
            return;
        }
        buf_commit(&c->in, (size_t)n);
        conn_parse(c);
    }
}

static void conn_write(struct conn *c)
{
    while (c->writable && conn_sendable(c) > 0) {
        ssize_t n = write(c->fd, buf_data(&c->out), conn_sendable(c));

        if (n > 0) {
            buf_consume(&c->out, (size_t)n);
            c->due -= MIN(c->due, (size_t)n);
        } else if (n < 0 && errno == EAGAIN) {
            c->writable = false;
        } else if (n == 0 || errno != EINTR) {
            c->writable = false;
            conn_hang_up(c);
            return;
        }
    }
}

/* Something the host must know did not fit, so the conversation is lost: it will say hello again.
 */
static void conn_check_overflow(struct conn *c)
{
    if (!c->overflow)
        return;
    c->overflow = false;
    conn_lose(c);
}

static void give_back(struct buf *b)
{
    if (b->size == 0 && b->capacity > IDLE_CAPACITY)
        buf_done(b);
}

void conn_turn(struct conn *c)
{
    if (c->fd < 0 || c->broken)
        return;
    if (c->recheck_usec <= clock_now_usec()) {
        c->recheck_usec = USEC_INFINITY;
        c->readable = true;
    }
    conn_parse(c);
    conn_read(c);
    if (c->server->active == c && !c->still)
        process_pump(c->server);
    conn_check_overflow(c);
    conn_write(c);
    give_back(&c->in);
    give_back(&c->out);
}

uint64_t conn_deadline(const struct conn *c)
{
    const struct server *s = c->server;

    if (c->fd < 0)
        return USEC_INFINITY;
    /* Output that can go on: a write made room, so there may be more to pump and to parse. */
    if (c->writable &&
        (conn_sendable(c) > 0 || (s->active == c && !c->still && !TAILQ_EMPTY(&s->ready))))
        return 0;
    if (c->broken || (c->readable && c->out.size < CONN_OUT_STOP))
        return 0;
    return c->recheck_usec;
}

int conn_send(struct conn *c, int kind, uint8_t stream, uint32_t channel, uint64_t offset,
              const void *data, uint32_t size)
{
    uint8_t *to;
    int r;

    if (c->lost || c->overflow)
        return -ENOTCONN;
    r = buf_reserve(&c->out, FRAME_HEADER_SIZE + (size_t)size, &to);
    if (r < 0) {
        c->overflow = true;
        return r;
    }
    frame_encode_header(to, kind == FRAME_DATA ? FRAME_DATA : FRAME_CONTROL, stream, channel,
                        offset, size);
    if (size > 0)
        memcpy(to + FRAME_HEADER_SIZE, data, size);
    buf_commit(&c->out, FRAME_HEADER_SIZE + (size_t)size);
    return 0;
}

int conn_send_sync(struct conn *c)
{
    c->still = false;
    buf_clear(&c->out);
    return buf_append(&c->out, frame_sync, FRAME_SYNC_SIZE);
}

bool conn_wants_data(const struct conn *c)
{
    return c->out.size < CONN_OUT_DATA;
}
