#include "api/native/pipe.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/buf.h"
#include "base/log.h"

/*
 * Theory of operation. Bytes wait in one buffer per stream, and a ring of segments keeps their
 * order: (stream, count). Frames are cut only when they are written, so many small pieces become
 * one frame. Stream 0 stands for control frames, which are complete when they are queued. When the
 * ring is full a piece joins the last segment of its own stream: order between the streams is then
 * lost, never within one, and a guest that alternates single bytes costs no memory.
 *
 * Writes are tried at once and else by EPOLLOUT. An error in writing is not acted on: the same
 * socket reports EPOLLHUP to on_io(), the only place that ends the pipe.
 */
#define SEGMENTS_MAX 1024u
#define SEGMENTS_CONTROL 8u /* of them are kept for STARTED, one WINDOW, EXIT or ERROR */
#define CONTROL_MAX (256u * 1024u)
#define INPUT_MAX (STREAM_HEADER_SIZE + STREAM_PAYLOAD_MAX)
#define GRANT_MIN (16u * 1024u) /* smaller grants wait for company */
#define READS_PER_EVENT 4u      /* then others have their turn */

struct segment {
    uint8_t stream;
    size_t size;
};

struct pipe {
    struct loop *loop; /* weak */
    const struct pipe_ops *ops;
    void *owner;
    struct upgrade *up; /* owned; NULL before pipe_open() */
    struct source *io;  /* owned */
    uint32_t events;

    struct buf out[3]; /* 0: control frames */
    struct segment segments[SEGMENTS_MAX];
    size_t first, count;
    uint8_t header[STREAM_HEADER_SIZE]; /* of the frame that is being written */
    size_t header_left, payload_left;

    struct buf in;     /* undecoded */
    struct buf input;  /* for the process, within the window */
    size_t window;     /* what the client may still send */
    size_t to_grant;   /* passed on, not yet granted again */
    bool input_ended;  /* STDIN_EOF came */
    bool input_closed; /* and was passed on */
    bool input_dead;   /* nobody reads it */
    bool read_ended;   /* the client closed its sending half */
    bool finished;     /* the last frame is queued */
    bool failed;       /* no memory: the connection is to be dropped */
};

int pipe_new(struct loop *loop, const struct pipe_ops *ops, void *owner, size_t output_max,
             struct pipe **ret)
{
    struct pipe *p = calloc(1, sizeof(*p));

    if (!p)
        return -ENOMEM;
    p->loop = loop;
    p->ops = ops;
    p->owner = owner;
    p->window = STREAM_STDIN_WINDOW;
    buf_init(&p->out[0], CONTROL_MAX);
    buf_init(&p->out[1], output_max);
    buf_init(&p->out[2], output_max);
    buf_init(&p->in, INPUT_MAX);
    buf_init(&p->input, STREAM_STDIN_WINDOW);
    *ret = p;
    return 0;
}

struct pipe *pipe_free(struct pipe *p)
{
    if (!p)
        return NULL;
    p->io = source_free(p->io);
    p->up = upgrade_close(p->up);
    for (size_t i = 0; i < ARRAY_SIZE(p->out); i++)
        buf_done(&p->out[i]);
    buf_done(&p->in);
    buf_done(&p->input);
    free(p);
    return NULL;
}

/* ---- to the client ---- */

static bool pipe_has_output(const struct pipe *p)
{
    return p->header_left > 0 || p->payload_left > 0 || p->count > 0;
}

static void pipe_set_events(struct pipe *p)
{
    /* A finished pipe waits for one more "writable" to end from the loop. */
    uint32_t events =
        (p->read_ended ? 0 : EPOLLIN) | (pipe_has_output(p) || p->finished ? EPOLLOUT : 0);

    if (!p->io || events == p->events)
        return;
    p->events = events;
    (void)source_set_io_events(p->io, events);
}

/* Begins the next frame if none is under way. */
static struct segment *pipe_head(struct pipe *p)
{
    struct segment *s = &p->segments[p->first];

    if (s->stream != 0 && p->header_left == 0 && p->payload_left == 0) {
        p->payload_left = MIN(s->size, (size_t)STREAM_PAYLOAD_MAX);
        p->header_left = STREAM_HEADER_SIZE;
        stream_encode_header(s->stream == 1 ? STREAM_STDOUT : STREAM_STDERR, p->payload_left,
                             p->header);
    }
    return s;
}

static void pipe_wrote(struct pipe *p, struct segment *s, size_t size)
{
    uint8_t stream = s->stream;
    size_t header = MIN(size, p->header_left);

    p->header_left -= header;
    size -= header;
    if (size == 0)
        return;
    buf_consume(&p->out[stream], size);
    s->size -= size;
    if (stream != 0)
        p->payload_left -= size;
    if (s->size == 0) {
        p->first = (p->first + 1) % SEGMENTS_MAX;
        p->count--;
    }
    if (stream != 0)
        p->ops->consumed(p->owner, stream, size);
}

/* Drops the connection, from the loop: EPOLLHUP follows. */
static void pipe_fail(struct pipe *p)
{
    p->failed = true;
    if (p->up)
        (void)shutdown(upgrade_fd(p->up), SHUT_RDWR);
}

/* Adds to the last segment if it is of this stream; with a full ring, to the last one that is. */
static bool pipe_extend(struct pipe *p, uint8_t stream, size_t size)
{
    size_t reach = stream != 0 && p->count >= SEGMENTS_MAX - SEGMENTS_CONTROL
                       ? p->count
                       : MIN(p->count, (size_t)1);

    for (size_t back = 1; back <= reach; back++) {
        struct segment *s = &p->segments[(p->first + p->count - back) % SEGMENTS_MAX];
        if (s->stream == stream) {
            s->size += size;
            return true;
        }
    }
    return false;
}

static void pipe_queue(struct pipe *p, uint8_t stream, const void *data, size_t size)
{
    int r = buf_append(&p->out[stream], data, size);

    if (r < 0) {
        log_warning_errno(r, "api: a stream is dropped");
        pipe_fail(p);
        return;
    }
    if (pipe_extend(p, stream, size))
        return;
    if (p->count == SEGMENTS_MAX) {
        pipe_fail(p);
        return;
    }
    p->segments[(p->first + p->count++) % SEGMENTS_MAX] =
        (struct segment){.stream = stream, .size = size};
}

static void pipe_control(struct pipe *p, enum stream_type type, const void *payload, size_t size)
{
    uint8_t header[STREAM_HEADER_SIZE];

    if (p->failed)
        return;
    if (buf_room(&p->out[0]) < size + sizeof(header)) {
        pipe_fail(p);
        return;
    }
    stream_encode_header(type, size, header);
    pipe_queue(p, 0, header, sizeof(header));
    if (size > 0)
        pipe_queue(p, 0, payload, size);
}

/* Sends what it can of the first segment; false: the socket is full or broken. */
static bool pipe_send(struct pipe *p)
{
    struct segment *s = pipe_head(p);
    struct iovec parts[2] = {
        {p->header + STREAM_HEADER_SIZE - p->header_left, p->header_left},
        {buf_data(&p->out[s->stream]), s->stream == 0 ? s->size : p->payload_left},
    };
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t n = sendmsg(upgrade_fd(p->up), &message, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (n > 0)
        pipe_wrote(p, s, (size_t)n);
    return n > 0;
}

/* Queues a WINDOW frame if one is due; one at a time: who does not read is granted no more. */
static bool pipe_grant(struct pipe *p)
{
    if (p->to_grant < GRANT_MIN || p->finished || p->failed || p->out[0].size > 0)
        return false;
    uint8_t payload[4] = {(uint8_t)(p->to_grant >> 24), (uint8_t)(p->to_grant >> 16),
                          (uint8_t)(p->to_grant >> 8), (uint8_t)p->to_grant};
    p->window += p->to_grant;
    p->to_grant = 0;
    pipe_control(p, STREAM_WINDOW, payload, sizeof(payload));
    return true;
}

/* Until there is nothing left or the socket is full. */
static void pipe_flush(struct pipe *p)
{
    do {
        while (p->up && !p->failed && p->count > 0 && pipe_send(p))
            continue;
    } while (pipe_grant(p));
    pipe_set_events(p);
}

void pipe_output(struct pipe *p, int stream, const uint8_t *data, size_t size)
{
    if (p->finished || p->failed || size == 0)
        return;
    pipe_queue(p, (uint8_t)stream, data, size);
    pipe_flush(p);
}

void pipe_event(struct pipe *p, enum stream_type type, json_t *json_consume)
{
    _cleanup_free_ char *text = json_consume ? json_dumps(json_consume, JSON_COMPACT) : NULL;

    json_decref(json_consume);
    if (p->finished)
        return;
    if (!text || strlen(text) > STREAM_PAYLOAD_MAX) {
        pipe_fail(p);
        return;
    }
    pipe_control(p, type, text, strlen(text));
    pipe_flush(p);
}

void pipe_finish(struct pipe *p, enum stream_type type, json_t *json_consume)
{
    pipe_event(p, type, json_consume);
    p->finished = true;
    pipe_set_events(p);
}

bool pipe_is_finished(const struct pipe *p)
{
    return p->finished;
}

size_t pipe_room(const struct pipe *p, int stream)
{
    return buf_room(&p->out[stream]);
}

/* ---- from the client ---- */

static void pipe_break(struct pipe *p, const struct error *err)
{
    pipe_finish(p, STREAM_ERROR, error_to_json(err));
}

void pipe_pump_input(struct pipe *p)
{
    while (p->input.size > 0 && !p->finished) {
        size_t size = p->input.size;
        if (!p->input_dead) {
            size = MIN(size, p->ops->writable(p->owner));
            if (size == 0)
                break;
            int r = p->ops->write(p->owner, buf_data(&p->input), size);
            if (r == -EAGAIN)
                break;
            if (r < 0)
                p->input_dead = true;
        }
        buf_consume(&p->input, size);
        p->to_grant += size;
    }
    if (p->input_ended && !p->input_closed && p->input.size == 0 && !p->finished) {
        p->input_closed = true;
        p->ops->close_input(p->owner);
    }
    pipe_flush(p);
}

static int pipe_take_input(struct pipe *p, const struct stream_frame *f, struct error *err)
{
    if (p->input_ended)
        return error_set(err, EPROTO, "stream: STDIN after STDIN_EOF");
    if (f->size > p->window)
        return error_set(err, EPROTO, "stream: %zu bytes of STDIN, only %zu were granted", f->size,
                         p->window);
    int r = buf_append(&p->input, f->payload, f->size);
    if (r < 0)
        return error_set(err, -r, "stream: cannot keep the input");
    p->window -= f->size;
    pipe_pump_input(p);
    return 0;
}

static int pipe_take(struct pipe *p, const struct stream_frame *f, struct error *err)
{
    switch (f->type) {
    case STREAM_STDIN:
        return pipe_take_input(p, f, err);
    case STREAM_STDIN_EOF:
        p->input_ended = true;
        pipe_pump_input(p);
        return 0;
    case STREAM_RESIZE:
        p->ops->resize(p->owner, f->rows, f->cols);
        return 0;
    case STREAM_SIGNAL:
        p->ops->signal(p->owner, f->signo);
        return 0;
    case STREAM_STDOUT:
    case STREAM_STDERR:
    case STREAM_STARTED:
    case STREAM_EXIT:
    case STREAM_ERROR:
    case STREAM_WINDOW:
        break; /* stream_decode() lets none of them through */
    }
    return 0;
}

static void pipe_decode(struct pipe *p)
{
    struct stream_frame frame;
    struct error err;

    while (!p->finished && !p->failed) {
        ssize_t n = stream_decode(buf_data(&p->in), p->in.size, &frame, &err);
        if (n == 0)
            return;
        if (n > 0 && pipe_take(p, &frame, &err) < 0)
            n = -EPROTO;
        if (n < 0) {
            /* What travels as EPROTO is the guest's fault elsewhere; here it is the client's. */
            err.code = ERR_INVALID_ARGUMENT;
            pipe_break(p, &err);
            return;
        }
        buf_consume(&p->in, (size_t)n);
    }
    /* Whoever sends after the end talks to himself. */
    buf_clear(&p->in);
}

static void pipe_read(struct pipe *p)
{
    for (unsigned i = 0; i < READS_PER_EVENT; i++) {
        uint8_t *room;
        size_t size = buf_room(&p->in);
        if (buf_reserve(&p->in, size, &room) < 0) {
            pipe_fail(p);
            return;
        }
        ssize_t n = recv(upgrade_fd(p->up), room, size, MSG_DONTWAIT);
        if (n == 0)
            p->read_ended = true;
        if (n <= 0)
            return;
        buf_commit(&p->in, (size_t)n);
        pipe_decode(p);
    }
}

static int on_io(struct source *s, int fd, uint32_t events, void *userdata)
{
    struct pipe *p = userdata;

    (void)s;
    (void)fd;
    if (events & EPOLLIN)
        pipe_read(p);
    if (events & EPOLLOUT)
        pipe_flush(p);
    if (p->finished && !pipe_has_output(p) && !p->failed)
        p->ops->over(p->owner, true);
    else if (p->failed || (events & (EPOLLHUP | EPOLLERR)))
        p->ops->over(p->owner, false);
    else
        pipe_set_events(p);
    return 0;
}

int pipe_open(struct pipe *p, struct upgrade *up)
{
    size_t size;

    p->up = up;
    p->events = EPOLLIN | EPOLLOUT;
    int r = loop_add_io(p->loop, "stream", upgrade_fd(up), p->events, on_io, p, &p->io);
    if (r < 0)
        return r;
    const void *extra = upgrade_extra(up, &size);
    /* At most one connection's memory, which is less than a frame. */
    if (size > 0 && buf_append(&p->in, extra, size) < 0)
        pipe_fail(p);
    if (p->failed)
        (void)shutdown(upgrade_fd(up), SHUT_RDWR);
    else
        pipe_decode(p);
    return 0;
}
