#include "guest/stream.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <termios.h>
#include <unistd.h>

#include "base/fd.h"
#include "guest/event.h"
#include "guest/server.h"

#define READ_SIZE (64u * 1024u)

static struct poller *poller_of(const struct stream *s)
{
    return &s->process->server->poller;
}

void stream_init(struct stream *s, struct process *p, uint8_t number)
{
    *s = (struct stream){.process = p, .number = number, .fd = -EBADF};
}

static void stream_close_fd(struct stream *s)
{
    source_remove(poller_of(s), &s->source);
    s->fd = fd_close(s->fd);
}

void stream_done(struct stream *s)
{
    if (!s->present)
        return;
    stream_close_fd(s);
    if (s->to_guest)
        buf_done(&s->pending);
    else
        ring_done(&s->ring);
}

/* ---- output ---- */

uint64_t stream_next(const struct stream *s)
{
    return MAX(s->sent, s->ring.start);
}

uint64_t stream_keep(const struct stream *s)
{
    const struct process *p = s->process;
    uint64_t acked = 0, floor;

    if (p->drop_when_full && !s->marked && (p->channel == 0 || s->window <= stream_next(s)))
        return s->ring.end;
    /*
     * Sent bytes that the host has not acknowledged by moving its window may be lost with the
     * connection: they are kept too, but never more than half of the ring.
     */
    if (s->credit > 0 && s->window > s->credit)
        acked = s->window - s->credit;
    floor = s->sent > s->ring.max / 2 ? s->sent - s->ring.max / 2 : 0;
    return MIN(s->sent, MAX(acked, floor));
}

static void stream_stall(struct stream *s)
{
    s->stalled = true;
    source_set_events(poller_of(s), &s->source, 0);
}

static void stream_end(struct stream *s)
{
    stream_close_fd(s);
    s->ended = true;
    s->stalled = false;
    if (!s->drained) {
        s->drained = true;
        s->exit_end = s->ring.end;
    }
    process_mark_ready(s->process);
}

static void stream_drained_by(struct stream *s, size_t size)
{
    if (s->drained || s->process->state < PROCESS_EXITED)
        return;
    s->drain_left -= MIN((uint64_t)size, s->drain_left);
    if (s->drain_left == 0) {
        s->drained = true;
        s->exit_end = s->ring.end;
    }
}

/* Nothing to read now: a terminal has given all that it held. */
static void stream_dry(struct stream *s)
{
    if (s->process->state >= PROCESS_EXITED && !s->drained) {
        s->drained = true;
        s->exit_end = s->ring.end;
        process_mark_ready(s->process);
    }
}

/* Reads and throws away: the host has released the process, its children still write. */
static ssize_t stream_discard(struct stream *s)
{
    static uint8_t waste[READ_SIZE];

    return read(s->fd, waste, sizeof(waste));
}

static size_t waiting(const struct stream *s)
{
    int n = 0;

    if (s->fd < 0 || ioctl(s->fd, FIONREAD, &n) < 0 || n < 0)
        return 0;
    return (size_t)n;
}

/* What to ask of the ring: room that is not used would cost history for nothing. */
static size_t read_size(const struct stream *s, size_t max)
{
    size_t size = MIN(max, (size_t)READ_SIZE), used = (size_t)(s->ring.end - s->ring.start);

    if (used + size <= s->ring.capacity)
        return size;
    return MIN(size, MAX(waiting(s), s->tty ? (size_t)STREAM_TTY_READ : 1));
}

/*
 * One read into the ring of at most `max` bytes. Returns the count; 0 when nothing more can be read
 * now (no data, no room, or ended).
 */
static size_t stream_read(struct stream *s, size_t max)
{
    struct iovec iov[2];
    ssize_t n;

    if (s->fd < 0)
        return 0;
    if (s->process->state == PROCESS_RELEASED) {
        n = stream_discard(s);
    } else {
        if (ring_prepare(&s->ring, stream_keep(s), read_size(s, max), iov) == 0) {
            stream_stall(s);
            return 0;
        }
        n = readv(s->fd, iov, iov[1].iov_len > 0 ? 2 : 1);
        if (n > 0)
            ring_commit(&s->ring, (size_t)n);
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        if (errno == EAGAIN)
            stream_dry(s);
        return 0;
    }
    if (n <= 0) {
        /* A terminal says EIO when its last user has closed it. */
        stream_end(s);
        return 0;
    }
    stream_drained_by(s, (size_t)n);
    process_mark_ready(s->process);
    urgency_output(&s->process->server->urgency);
    return (size_t)n;
}

/* Reads all that stands in stream `number` now; false when its ring has no room for it. */
static bool catch_up(struct process *p, unsigned number)
{
    struct stream *s = &p->streams[number];
    size_t left;

    if (!s->present || s->to_guest || s->fd < 0)
        return true;
    /* FIONREAD of a terminal leaves out what is on its way; one that reads dry has given all. */
    left = s->tty ? STREAM_TTY_BUFFER : waiting(s);
    while (left > 0 && s->fd >= 0) {
        size_t n = stream_read(s, left);

        if (n == 0)
            return !s->stalled;
        left -= MIN(n, left);
    }
    return true;
}

static void put_le(uint8_t *to, uint64_t value, unsigned size)
{
    for (unsigned i = 0; i < size; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t end_of(const struct process *p, unsigned number)
{
    const struct stream *s = &p->streams[number];

    return s->present && !s->to_guest ? s->ring.end : 0;
}

/* Records go whole or not at all, so that the ring always starts with one. */
static bool marked_room(struct stream *s, size_t size)
{
    struct iovec iov[2];

    while (ring_prepare(&s->ring, 0, size, iov) < size) {
        uint8_t head[STREAM_RECORD_HEADER];
        size_t record;

        if (s->ring.end - s->ring.start < STREAM_RECORD_HEADER)
            return false;
        ring_copy(&s->ring, s->ring.start, head, sizeof(head));
        record =
            STREAM_RECORD_HEADER + ((size_t)head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16);
        if (s->ring.start + record > stream_keep(s))
            return false;
        ring_drop(&s->ring, record);
    }
    return true;
}

static void marked_append(struct stream *s, const uint8_t *data, size_t size)
{
    struct iovec iov[2];
    size_t n;

    if (ring_prepare(&s->ring, 0, size, iov) < size)
        return;
    n = MIN(size, iov[0].iov_len);
    memcpy(iov[0].iov_base, data, n);
    if (n < size)
        memcpy(iov[1].iov_base, data + n, size - n);
    ring_commit(&s->ring, size);
}

/*
 * The number of marked bytes is taken first, then all output that stands in the other pipes is
 * read, then those bytes and no more: what was written before them is below the offsets noted.
 */
static size_t stream_read_marked(struct stream *s)
{
    struct process *p = s->process;
    static uint8_t record[STREAM_RECORD_HEADER + STREAM_RECORD_MAX]; /* too large to be cleared */
    size_t size = MIN(waiting(s), (size_t)STREAM_RECORD_MAX);
    bool out, err;
    ssize_t n;

    if (size == 0) {
        struct pollfd pollfd = {.fd = s->fd, .events = POLLIN};

        /* Asked in this order: once all writers are gone, no byte can come after. */
        if (poll(&pollfd, 1, 0) > 0 && (pollfd.revents & (POLLHUP | POLLERR)) && waiting(s) == 0)
            stream_end(s);
        return 0;
    }
    out = catch_up(p, 1);
    err = catch_up(p, 2);
    if (!out || !err || !marked_room(s, STREAM_RECORD_HEADER + size)) {
        stream_stall(s);
        return 0;
    }
    n = read(s->fd, record + STREAM_RECORD_HEADER, size);
    if (n <= 0)
        return 0;
    put_le(record, (uint64_t)n, 4);
    put_le(record + 8, end_of(p, 1), 8);
    put_le(record + 16, end_of(p, 2), 8);
    marked_append(s, record, STREAM_RECORD_HEADER + (size_t)n);
    stream_drained_by(s, (size_t)n);
    process_mark_ready(p);
    urgency_output(&p->server->urgency);
    p->look = p->server->look = true;
    return (size_t)n;
}

static size_t stream_read_some(struct stream *s)
{
    if (s->marked && s->process->state != PROCESS_RELEASED)
        return stream_read_marked(s);
    return stream_read(s, READ_SIZE);
}

static void on_readable(struct source *source, uint32_t events)
{
    struct stream *s = container_of(source, struct stream, source);

    (void)events;
    (void)stream_read_some(s);
}

int stream_start_output_consume(struct stream *s, int fd, uint32_t ring_max)
{
    int r;

    s->present = true;
    s->fd = fd;
    ring_init(&s->ring, ring_max, &s->process->server->pool);
    r = fd_set_nonblock(fd, true);
    if (r < 0)
        return r;
    return source_add(poller_of(s), &s->source, fd, EPOLLIN, on_readable);
}

void stream_set_window(struct stream *s, uint64_t offset)
{
    /*
     * Dropped bytes use up no window: the host counts from what it knows and moves its limit by the
     * gap when it sees it. Bytes are dropped only while the window is used up, so the gap is known
     * here.
     */
    uint64_t gap = stream_next(s) - s->told;

    if (s->credit == 0 && offset > s->told)
        s->credit = offset - s->told;
    offset += MIN(gap, UINT64_MAX - offset);
    if (offset <= s->window)
        return;
    s->window = offset;
    process_mark_ready(s->process);
}

void stream_unstall(struct stream *s)
{
    struct process *p = s->process;

    if (s->stalled) {
        s->stalled = false;
        source_set_events(poller_of(s), &s->source, EPOLLIN);
    }
    /* Marked streams wait for room in stdout and stderr. */
    for (unsigned i = 3; i < PROCESS_STREAMS; i++) {
        struct stream *marked = &p->streams[i];

        if (marked->present && marked->marked && marked->stalled) {
            marked->stalled = false;
            source_set_events(poller_of(marked), &marked->source, EPOLLIN);
        }
    }
}

void stream_begin_drain(struct stream *s)
{
    if (s->fd < 0) {
        s->drained = true;
        s->exit_end = s->ring.end;
        return;
    }
    s->drain_left = s->tty ? STREAM_TTY_BUFFER : waiting(s);
    if (s->drain_left == 0) {
        s->drained = true;
        s->exit_end = s->ring.end;
    }
    while (!s->drained && stream_read_some(s) > 0)
        ;
}

/* ---- input ---- */

static void stream_input_failed(struct stream *s)
{
    /* The reader is gone: what comes is counted and dropped, so that the host does not hang. */
    stream_close_fd(s);
    buf_clear(&s->pending);
}

/* End of file on a terminal is a character, and only at the start of a line. */
static void terminal_end(struct stream *s)
{
    struct termios t;
    uint8_t eof[2];
    size_t n = 1;

    if (tcgetattr(s->fd, &t) < 0)
        return;
    eof[0] = eof[1] = t.c_cc[VEOF];
    if ((t.c_lflag & ICANON) && s->received > 0 && s->last_byte != '\n')
        n = 2;
    (void)!write(s->fd, eof, n);
}

static void stream_flush(struct stream *s)
{
    while (s->fd >= 0 && s->pending.size > 0) {
        ssize_t n;

        n = write(s->fd, buf_data(&s->pending), s->pending.size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0) {
            stream_input_failed(s);
            break;
        }
        s->last_byte = buf_data(&s->pending)[n - 1];
        buf_consume(&s->pending, (size_t)n);
    }
    if (s->fd >= 0 && s->pending.size == 0 && s->close_asked) {
        if (s->tty) {
            terminal_end(s);
            s->close_asked = false;
        } else {
            stream_close_fd(s);
        }
    }
    if (s->fd >= 0)
        source_set_events(poller_of(s), &s->source, s->pending.size > 0 ? EPOLLOUT : 0);
    stream_grant(s, false);
}

static void on_writable(struct source *source, uint32_t events)
{
    (void)events;
    stream_flush(container_of(source, struct stream, source));
}

int stream_start_input_consume(struct stream *s, int fd)
{
    int r;

    s->present = true;
    s->to_guest = true;
    s->fd = fd;
    buf_init(&s->pending, STREAM_INPUT_WINDOW);
    r = fd_set_nonblock(fd, true);
    if (r < 0)
        return r;
    r = source_add(poller_of(s), &s->source, fd, EPOLLOUT, on_writable);
    if (r < 0)
        return r;
    source_set_events(poller_of(s), &s->source, 0);
    return 0;
}

int stream_input(struct stream *s, uint64_t offset, const uint8_t *data, uint32_t size)
{
    int r;

    if (offset != s->received || size > s->granted - s->received || s->close_asked)
        return -EINVAL;
    if (s->fd >= 0) {
        r = buf_append(&s->pending, data, size);
        if (r < 0)
            return r;
    }
    s->received += size;
    urgency_input(&s->process->server->urgency);
    if (s->number >= 3 && size > 0)
        process_snapshot(s->process);
    stream_flush(s);
    return 0;
}

void stream_close_input(struct stream *s)
{
    s->close_asked = true;
    stream_flush(s);
}

void stream_grant(struct stream *s, bool force)
{
    uint64_t limit = s->received - s->pending.size + STREAM_INPUT_WINDOW;

    if (!force && limit - s->granted < STREAM_INPUT_WINDOW / 2)
        return;
    s->granted = limit;
    if (s->process->channel != 0 && s->process->state != PROCESS_SPAWNING)
        event_window(s);
}
