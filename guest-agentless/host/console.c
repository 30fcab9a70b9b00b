#include "host/console.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "host/console-internal.h"
#include "protocol/frame.h"

/*
 * Theory of operation. NEW -> OPENING (hello.c looks for the guest's reply) -> OPEN (frames go to
 * their channels) -> BROKEN (told once) -> FREED. From OPEN to PARKED and back on another
 * connection while the guest stands still (still.c); a connection that fails there is its opener's
 * business, the conversation stays parked. Input is decoded in place: payloads point into `in`,
 * which stays until the outermost event function returns, whatever callbacks free. Any rule the
 * guest breaks ends in console_break() with the reason; nothing is repaired.
 */
#define READS_PER_EVENT 4u /* then the other sources of the loop get their turn */

static void close_connection(struct console *c)
{
    c->io = source_free(c->io);
    c->timer = source_free(c->timer);
    c->half = source_free(c->half);
    c->fd = fd_close(c->fd);
}

void console_enter(struct console *c)
{
    c->depth++;
}

void console_leave(struct console *c)
{
    if (--c->depth > 0)
        return;
    if (c->state == CONSOLE_FREED) {
        buf_done(&c->out);
        buf_done(&c->still.later);
        free(c->in);
        free(c->name);
        free(c);
        return;
    }
    if (!c->out_blocked)
        outbox_flush(c);
}

int console_new(struct loop *loop, const char *name, console_broken_fn broken, void *userdata,
                struct console **ret)
{
    struct console *c = calloc(1, sizeof(*c));

    if (!c)
        return -ENOMEM;
    c->loop = loop;
    c->broken = broken;
    c->userdata = userdata;
    c->fd = -EBADF;
    buf_init(&c->out, CONSOLE_OUT_MAX);
    buf_init(&c->still.later, CONSOLE_OUT_MAX);
    c->name = strdup(name ? name : "console");
    c->in = malloc(CONSOLE_INPUT_SIZE);
    if (!c->name || !c->in) {
        console_free(c);
        return -ENOMEM;
    }
    *ret = c;
    return 0;
}

struct console *console_free(struct console *c)
{
    if (!c || c->state == CONSOLE_FREED)
        return NULL;
    console_enter(c);
    c->state = CONSOLE_FREED;
    close_connection(c);
    channels_close(c, NULL);
    console_leave(c);
    return NULL;
}

/* Without a connection; what was half said on it counts for nothing. */
static void park(struct console *c)
{
    close_connection(c);
    buf_clear(&c->out);
    c->out_blocked = c->out_watched = false;
    c->in_start = c->in_size = 0;
    c->state = CONSOLE_PARKED;
}

static void tell_hello(struct console *c, const struct error *err)
{
    console_done_fn done = c->hello.done;

    c->hello.done = NULL;
    if (done)
        done(c, err, c->hello.userdata);
}

void console_break(struct console *c, const struct error *reason)
{
    enum console_state before = c->state;
    struct error copy = *reason;

    if (before == CONSOLE_PARKED && !c->lost) {
        console_enter(c);
        park(c);
        tell_hello(c, &copy);
        console_leave(c);
        return;
    }
    if (before != CONSOLE_OPENING && before != CONSOLE_OPEN && before != CONSOLE_PARKED)
        return;
    console_enter(c);
    c->state = CONSOLE_BROKEN;
    close_connection(c);
    buf_done(&c->out);
    buf_clear(&c->still.later);
    c->out_blocked = false;
    error_copy(&c->reason, &copy);
    channels_close(c, &copy);
    if (before != CONSOLE_OPEN && c->state == CONSOLE_BROKEN)
        tell_hello(c, &copy);
    if (c->state == CONSOLE_BROKEN && c->broken)
        c->broken(c, &copy, c->userdata);
    console_leave(c);
}

/* ---- input ---- */

static int dispatch(struct console *c, const struct frame *frame, struct error *err)
{
    Hearth__V1__Event *event;
    int r;

    if (frame->kind == FRAME_DATA)
        return channels_data(c, frame->channel, frame->stream, frame->offset, frame->payload,
                             frame->size, err);
    event = hearth__v1__event__unpack(NULL, frame->size, frame->payload);
    if (!event)
        return error_set_code(err, ERR_GUEST_PROTOCOL,
                              "guest sent a malformed event of %u bytes on channel %u", frame->size,
                              frame->channel);
    r = channels_event(c, frame->channel, event, err);
    hearth__v1__event__free_unpacked(event, NULL);
    return r;
}

/* The conversation stands: tells the owner, who may free the console. */
static void opened(struct console *c)
{
    c->state = CONSOLE_OPEN;
    if (!c->lost)
        (void)source_set_time(c->timer, USEC_INFINITY);
    tell_hello(c, NULL);
}

/* Handles all whole frames of the input. */
static int parse(struct console *c, struct error *err)
{
    int r;

    if (c->state == CONSOLE_OPENING || c->state == CONSOLE_PARKED) {
        r = hello_scan(c, err);
        if (r <= 0)
            return r;
        opened(c);
    }
    while (c->state == CONSOLE_OPEN && c->in_size > 0) {
        struct frame frame;
        size_t used;

        switch (frame_decode(c->in + c->in_start, c->in_size, FRAME_EVENT_MAX, &frame, &used)) {
        case FRAME_MORE:
            return 0;
        case FRAME_BAD:
            return error_set_code(err, ERR_GUEST_PROTOCOL, "guest sent bytes that are no frame");
        case FRAME_SYNCED:
            return error_set_code(err, ERR_GUEST_PROTOCOL,
                                  "guest began a new conversation unasked");
        case FRAME_OK:
            break;
        }
        c->in_start += used;
        c->in_size -= used;
        r = dispatch(c, &frame, err);
        if (r < 0)
            return error_fill(err, r, "handling a frame of the guest");
    }
    return 0;
}

/* Makes room behind the unparsed rest, which is less than a frame. */
static size_t make_room(struct console *c)
{
    if (c->in_start > 0) {
        memmove(c->in, c->in + c->in_start, c->in_size);
        c->in_start = 0;
    }
    return CONSOLE_INPUT_SIZE - c->in_size;
}

static int read_input(struct console *c, struct error *err)
{
    for (unsigned i = 0; i < READS_PER_EVENT; i++) {
        size_t room = make_room(c);
        ssize_t n = read(c->fd, c->in + c->in_size, room);
        int r;

        if (n < 0) {
            if (errno == EAGAIN || errno == EINTR)
                return 0;
            return error_set_errno(err, ERR_GUEST_GONE, errno, "reading the guest's console: %s",
                                   errno_text(errno));
        }
        if (n == 0)
            return error_set_code(err, ERR_GUEST_GONE, "guest's console was closed%s",
                                  c->in_size > 0 ? " in the middle of a frame" : "");
        c->in_size += (size_t)n;
        r = parse(c, err);
        if (r < 0)
            return r;
        if ((size_t)n < room || c->fd < 0)
            return 0;
    }
    return 0;
}

/* Every byte that comes starts the wait for the rest of its frame anew. */
static void watch_half_frame(struct console *c)
{
    if (c->state == CONSOLE_OPEN && c->half)
        (void)source_set_time(c->half, c->in_size > 0 ? clock_now_usec() + CONSOLE_HALF_USEC
                                                      : USEC_INFINITY);
}

static int on_half_frame(struct source *s, uint64_t now_usec, void *userdata)
{
    struct console *c = userdata;
    struct error err = {0};

    (void)s;
    (void)now_usec;
    (void)error_set_code(&err, ERR_GUEST_PROTOCOL, "guest stopped in the middle of a frame");
    console_break(c, &err);
    return 0;
}

static int on_io(struct source *s, int fd, uint32_t epoll_events, void *userdata)
{
    struct console *c = userdata;
    struct error err = {0};

    (void)s;
    (void)fd;
    console_enter(c);
    if (epoll_events & EPOLLOUT) {
        outbox_flush(c);
        channels_wake(c);
    }
    if ((epoll_events & ~(uint32_t)EPOLLOUT) && c->fd >= 0) {
        if (read_input(c, &err) < 0)
            console_break(c, &err);
        else
            watch_half_frame(c);
    }
    console_leave(c);
    return 0;
}

/* What the guest said before it went is still worth hearing. */
static void break_lost(struct console *c)
{
    struct error reason = c->reason, err = {0};

    if (c->state == CONSOLE_OPEN)
        (void)read_input(c, &err);
    console_break(c, err.code == ERR_GUEST_PROTOCOL ? &err : &reason);
}

static int on_timer(struct source *s, uint64_t now_usec, void *userdata)
{
    struct console *c = userdata;
    struct error err = {0};
    int r = 0;

    (void)s;
    console_enter(c);
    if (c->lost)
        break_lost(c);
    else if (c->state == CONSOLE_OPENING || c->state == CONSOLE_PARKED)
        r = hello_retry(c, now_usec, &err);
    else if (c->state == CONSOLE_OPEN)
        r = outbox_check(c, now_usec, &err);
    if (r < 0) {
        (void)error_fill(&err, r, "waiting for the guest");
        console_break(c, &err);
    }
    console_leave(c);
    return 0;
}

void console_break_later(struct console *c, const struct error *reason)
{
    if (c->lost || (c->state != CONSOLE_OPENING && !console_is_live(c)))
        return;
    c->lost = true;
    error_copy(&c->reason, reason);
    if (c->timer)
        (void)source_set_time(c->timer, /* at_usec= */ 0);
}

/* ---- opening ---- */

static int say_hello_consume(struct console *c, int fd, uint64_t deadline_usec,
                             console_done_fn done, void *userdata)
{
    int r;

    c->fd = fd;
    c->hello.deadline_usec = deadline_usec;
    c->hello.done = done;
    c->hello.userdata = userdata;
    r = fd_set_nonblock(fd, true);
    if (r >= 0)
        r = loop_add_io(c->loop, c->name, fd, EPOLLIN, on_io, c, &c->io);
    if (r >= 0)
        r = loop_add_timer(c->loop, c->name, USEC_INFINITY, on_timer, c, &c->timer);
    if (r >= 0)
        r = loop_add_timer(c->loop, c->name, USEC_INFINITY, on_half_frame, c, &c->half);
    return r < 0 ? r : hello_start(c);
}

int console_open_consume(struct console *c, int fd, uint64_t deadline_usec, console_done_fn done,
                         void *userdata)
{
    int r;

    if (c->state != CONSOLE_NEW) {
        fd_close(fd);
        return -EALREADY;
    }
    c->state = CONSOLE_OPENING;
    r = say_hello_consume(c, fd, deadline_usec, done, userdata);
    if (r < 0) {
        c->state = CONSOLE_BROKEN;
        close_connection(c);
    }
    return r;
}

int console_park(struct console *c)
{
    if (c->state != CONSOLE_OPEN || c->lost)
        return -ENOTCONN;
    if (!c->still.frozen)
        return -EBUSY;
    if (c->in_size > 0) /* the guest did not stand still */
        return -EPROTO;
    park(c);
    return 0;
}

int console_continue_consume(struct console *c, int fd, uint64_t deadline_usec,
                             console_done_fn done, void *userdata)
{
    int r;

    if (c->state != CONSOLE_PARKED || c->fd >= 0 || c->lost) {
        fd_close(fd);
        return -EALREADY;
    }
    r = say_hello_consume(c, fd, deadline_usec, done, userdata);
    if (r < 0) {
        park(c);
        c->hello.done = NULL;
    }
    return r;
}

const struct console_info *console_get_info(const struct console *c)
{
    return &c->info;
}

size_t console_queued(const struct console *c)
{
    return c->out.size + c->still.later.size;
}
