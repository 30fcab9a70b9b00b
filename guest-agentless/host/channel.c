#include "host/channel.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "host/console-internal.h"
#include "host/exec.h"
#include "host/wire.h"
#include "protocol/frame.h"

static_assert(CHANNEL_STREAMS == EXEC_STREAMS_MAX, "one number of streams");
static_assert(CHANNEL_WINDOW == EXEC_WINDOW, "one window size");
static_assert((CHANNELS_MAX & (CHANNELS_MAX - 1)) == 0, "slots are found by masking");

/* A grant beyond this is the guest's business, not a reason to count on it. */
#define INPUT_WINDOW_MAX (UINT64_C(1) << 40)

struct stream_from {
    uint64_t received; /* offset of the next byte */
    uint64_t granted;  /* the guest may send up to here */
    uint64_t consumed;
    bool ended;
};

struct stream_to {
    uint64_t sent;  /* offset of the next byte */
    uint64_t limit; /* we may send up to here */
    bool open;      /* takes input at all */
    bool closed;    /* we said that no more comes */
    bool starved;   /* its writer waits for room */
};

struct channel {
    struct console *console; /* weak */
    uint32_t id;
    const struct channel_ops *ops; /* NULL: a tombstone */
    void *owner;                   /* weak */
    bool gaps;
    struct stream_from from[CHANNEL_STREAMS];
    struct stream_to to[CHANNEL_STREAMS];
};

static const char *event_name(int event_case)
{
    switch (event_case) {
    case HEARTH__V1__EVENT__EVENT_HELLO:
        return "HelloReply";
    case HEARTH__V1__EVENT__EVENT_ERROR:
        return "Error";
    case HEARTH__V1__EVENT__EVENT_DONE:
        return "Done";
    case HEARTH__V1__EVENT__EVENT_PONG:
        return "Pong";
    case HEARTH__V1__EVENT__EVENT_STATS:
        return "StatsReply";
    case HEARTH__V1__EVENT__EVENT_LIST:
        return "ListReply";
    case HEARTH__V1__EVENT__EVENT_STARTED:
        return "Started";
    case HEARTH__V1__EVENT__EVENT_EXIT:
        return "Exit";
    case HEARTH__V1__EVENT__EVENT_WINDOW:
        return "Window";
    case HEARTH__V1__EVENT__EVENT_CLOSED:
        return "Closed";
    case HEARTH__V1__EVENT__EVENT_STREAM_END:
        return "StreamEnd";
    default:
        return "empty event";
    }
}

int channel_unexpected(const Hearth__V1__Event *event, const char *where, struct error *err)
{
    return error_set_code(err, ERR_GUEST_PROTOCOL, "guest sent %s %s",
                          event_name((int)event->event_case), where);
}

/* ---- table ---- */

static struct channel **slot_of(struct console *c, uint32_t id)
{
    return &c->channels.slots[id & (CHANNELS_MAX - 1)];
}

static struct channel *find(struct console *c, uint32_t id)
{
    struct channel *ch = *slot_of(c, id);

    return ch && ch->id == id ? ch : NULL;
}

static void forget(struct channel *ch)
{
    *slot_of(ch->console, ch->id) = NULL;
    ch->console->channels.count--;
    free(ch);
}

static int not_open(const struct console *c, struct error *err)
{
    if (c->lost || c->state == CONSOLE_BROKEN)
        return error_set_errno(err, c->reason.code ? c->reason.code : ERR_GUEST_GONE, ENOTCONN,
                               "console is broken: %s", c->reason.text);
    return error_set_errno(err, ERR_UNAVAILABLE, ENOTCONN, "console is not open");
}

int channel_open(struct console *c, const Hearth__V1__Request *request,
                 const struct channel_ops *ops, void *owner, struct channel **ret,
                 struct error *err)
{
    struct channel *ch;
    size_t size;
    int r;

    if (!console_is_live(c))
        return not_open(c, err);
    if (c->channels.count == CHANNELS_MAX)
        return error_set_code(err, ERR_TOO_MANY, "%u operations are open on this console already",
                              CHANNELS_MAX);
    size = hearth__v1__request__get_packed_size(request);
    if (size > FRAME_CONTROL_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED,
                              "request takes %zu bytes, the console carries %u", size,
                              FRAME_CONTROL_MAX);
    if (console_queued(c) + size > CONSOLE_OUT_REQUEST_MAX)
        return error_set_code(err, ERR_TOO_MANY, "%zu bytes wait for the guest already",
                              console_queued(c));
    ch = calloc(1, sizeof(*ch));
    if (!ch)
        return error_set(err, ENOMEM, "opening a channel to the guest");
    do
        c->channels.last_id++;
    while (c->channels.last_id == 0 || *slot_of(c, c->channels.last_id));
    ch->console = c;
    ch->id = c->channels.last_id;
    ch->ops = ops;
    ch->owner = owner;
    *slot_of(c, ch->id) = ch;
    c->channels.count++;
    r = outbox_request(c, ch->id, request);
    if (r < 0) {
        forget(ch);
        return error_fill(err, r, "sending a request to the guest");
    }
    *ret = ch;
    return 0;
}

struct channel *channel_release(struct channel *ch)
{
    if (ch) {
        ch->ops = NULL;
        ch->owner = NULL;
    }
    return NULL;
}

struct channel *channel_end(struct channel *ch)
{
    if (ch)
        forget(ch);
    return NULL;
}

int channel_request(struct channel *ch, const Hearth__V1__Request *request)
{
    return outbox_request(ch->console, ch->id, request);
}

/* ---- from the guest ---- */

static int send_window(struct channel *ch, uint8_t stream)
{
    Hearth__V1__Window window = HEARTH__V1__WINDOW__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;

    window.stream = stream;
    window.offset = ch->from[stream].granted;
    request.op_case = HEARTH__V1__REQUEST__OP_WINDOW;
    request.window = &window;
    return channel_request(ch, &request);
}

int channel_expect(struct channel *ch, uint8_t stream, uint64_t offset, bool announce)
{
    struct stream_from *s = &ch->from[stream];
    uint64_t limit = offset + CHANNEL_WINDOW;

    s->received = offset;
    s->consumed = offset;
    if (limit <= s->granted)
        return 0;
    s->granted = limit;
    return announce ? send_window(ch, stream) : 0;
}

void channel_allow_gaps(struct channel *ch)
{
    ch->gaps = true;
}

void channel_consumed(struct channel *ch, uint8_t stream, size_t size)
{
    struct stream_from *s = &ch->from[stream];
    uint64_t limit;

    s->consumed += MIN((uint64_t)size, s->received - s->consumed);
    limit = s->consumed + CHANNEL_WINDOW;
    if (s->ended || limit < s->granted + CHANNEL_WINDOW / 2)
        return;
    s->granted = limit;
    (void)send_window(ch, stream); /* a failure breaks the console by itself */
}

uint64_t channel_received(const struct channel *ch, uint8_t stream)
{
    return ch->from[stream].received;
}

struct channel *channel_abandon(struct channel *ch)
{
    Hearth__V1__Signal stop = HEARTH__V1__SIGNAL__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;

    if (!ch)
        return NULL;
    channel_release(ch);
    stop.signo = SIGTERM; /* not SIGKILL: it removes what it has half written */
    request.op_case = HEARTH__V1__REQUEST__OP_SIGNAL;
    request.signal = &stop;
    (void)channel_request(ch, &request);
    /* What it had written before it ended must get out of the guest's ring, or Closed never comes.
     */
    for (uint8_t i = 0; i < CHANNEL_STREAMS; i++) {
        if (ch->from[i].granted == 0 || ch->from[i].ended)
            continue;
        ch->from[i].granted = INT64_MAX;
        (void)send_window(ch, i);
    }
    return NULL;
}

int channels_data(struct console *c, uint32_t id, uint8_t stream, uint64_t offset,
                  const uint8_t *data, size_t size, struct error *err)
{
    struct channel *ch = find(c, id);
    struct stream_from *s;
    uint64_t gap;

    if (!ch)
        return error_set_code(err, ERR_GUEST_PROTOCOL,
                              "guest sent data on channel %u, which is not open", id);
    if (stream >= CHANNEL_STREAMS)
        return error_set_code(err, ERR_GUEST_PROTOCOL, "guest sent data on stream %u of channel %u",
                              stream, id);
    s = &ch->from[stream];
    if (s->ended)
        return error_set_code(err, ERR_GUEST_PROTOCOL,
                              "guest sent data after the end of stream %u of channel %u", stream,
                              id);
    if (size == 0)
        return error_set_code(err, ERR_GUEST_PROTOCOL,
                              "guest sent empty data on stream %u of channel %u", stream, id);
    if (offset != s->received && !(ch->gaps && offset > s->received))
        return error_set_code(err, ERR_GUEST_PROTOCOL,
                              "guest sent offset %llu of stream %u of channel %u, expected %llu",
                              (unsigned long long)offset, stream, id,
                              (unsigned long long)s->received);
    gap = offset - s->received;
    if (offset > INT64_MAX || size > s->granted - s->received)
        return error_set_code(err, ERR_GUEST_PROTOCOL,
                              "guest sent %zu bytes at %llu past its window %llu on stream %u of "
                              "channel %u",
                              size, (unsigned long long)offset, (unsigned long long)s->granted,
                              stream, id);
    /* What was dropped is nobody's any more and uses up no window. */
    s->consumed += gap;
    s->granted = MIN(s->granted + gap, (uint64_t)INT64_MAX);
    /* Windows that crossed the gap on their way did not count it: say it again. */
    if (gap > 0 && ch->ops)
        (void)send_window(ch, stream);
    s->received = offset + size;
    if (!ch->ops || !ch->ops->data)
        return 0;
    return ch->ops->data(ch->owner, stream, offset, data, size, err);
}

/* ---- to the guest ---- */

void channel_input(struct channel *ch, uint8_t stream, uint64_t offset)
{
    struct stream_to *s = &ch->to[stream];

    s->open = true;
    s->sent = offset;
    s->limit = MAX(s->limit, offset);
    s->starved = true;
}

size_t channel_writable(struct channel *ch, uint8_t stream)
{
    struct stream_to *s = &ch->to[stream];
    struct console *c = ch->console;
    size_t room = 0, queued = console_queued(c);

    if (!s->open || s->closed || !console_is_live(c))
        return 0;
    if (queued < CONSOLE_OUT_DATA_MAX)
        room = CONSOLE_OUT_DATA_MAX - queued;
    else
        c->data_starved = true;
    room = (size_t)MIN((uint64_t)room, s->limit - s->sent);
    if (room == 0)
        s->starved = true;
    return room;
}

int channel_write(struct channel *ch, uint8_t stream, const void *data, size_t size)
{
    struct stream_to *s = &ch->to[stream];
    int r;

    if (!s->open)
        return -EBADF;
    if (s->closed)
        return -EPIPE;
    if (size > channel_writable(ch, stream)) {
        s->starved = true;
        if (size <= s->limit - s->sent)
            ch->console->data_starved = true;
        return console_is_live(ch->console) ? -EAGAIN : -EPIPE;
    }
    r = outbox_data(ch->console, ch->id, stream, s->sent, data, size);
    if (r < 0)
        return r;
    s->sent += size;
    (void)channel_writable(ch, stream); /* notes when the room is used up */
    return 0;
}

int channel_close_stream(struct channel *ch, uint8_t stream)
{
    Hearth__V1__CloseStream close_stream = HEARTH__V1__CLOSE_STREAM__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;

    if (!ch->to[stream].open)
        return -EBADF;
    if (ch->to[stream].closed)
        return 0;
    ch->to[stream].closed = true;
    close_stream.stream = stream;
    request.op_case = HEARTH__V1__REQUEST__OP_CLOSE_STREAM;
    request.close_stream = &close_stream;
    return channel_request(ch, &request);
}

/* ---- events ---- */

static int take_window(struct channel *ch, const Hearth__V1__Window *window, struct error *err)
{
    struct stream_to *s;
    uint8_t stream;

    if (window->stream >= CHANNEL_STREAMS || !ch->to[window->stream].open)
        return error_set_code(err, ERR_GUEST_PROTOCOL,
                              "guest granted input on stream %u of channel %u, which takes none",
                              window->stream, ch->id);
    stream = (uint8_t)window->stream;
    s = &ch->to[stream];
    if (window->offset < s->limit)
        return error_set_code(err, ERR_GUEST_PROTOCOL,
                              "guest took back its window on stream %u of channel %u", stream,
                              ch->id);
    s->limit = MIN(window->offset, s->sent + INPUT_WINDOW_MAX);
    if (!s->starved || s->closed || !ch->ops || channel_writable(ch, stream) == 0)
        return 0;
    s->starved = false;
    ch->ops->writable(ch->owner, stream);
    return 0;
}

static int take_stream_end(struct channel *ch, const Hearth__V1__StreamEnd *end, struct error *err)
{
    struct stream_from *s;

    if (end->stream >= CHANNEL_STREAMS)
        return error_set_code(err, ERR_GUEST_PROTOCOL, "guest ended stream %u of channel %u",
                              end->stream, ch->id);
    s = &ch->from[end->stream];
    if (s->ended || (end->offset != s->received && !(ch->gaps && end->offset > s->received)))
        return error_set_code(err, ERR_GUEST_PROTOCOL, "guest ended stream %u of channel %u %s",
                              end->stream, ch->id, s->ended ? "twice" : "at a wrong offset");
    s->received = end->offset;
    s->ended = true;
    if (!ch->ops)
        return 0;
    return ch->ops->stream_end(ch->owner, (uint8_t)end->stream, end->offset, err);
}

static void take_closed(struct channel *ch, const Hearth__V1__Closed *closed,
                        const Hearth__V1__Error *error)
{
    const struct channel_ops *ops = ch->ops;
    void *owner = ch->owner;

    forget(ch);
    if (ops)
        ops->closed(owner, closed, error, NULL);
}

/* Of what nobody waits for, only the end counts. */
static void tombstone_event(struct channel *ch, const Hearth__V1__Event *event)
{
    if (event->event_case == HEARTH__V1__EVENT__EVENT_DONE ||
        event->event_case == HEARTH__V1__EVENT__EVENT_PONG ||
        event->event_case == HEARTH__V1__EVENT__EVENT_STATS ||
        (event->event_case == HEARTH__V1__EVENT__EVENT_LIST && !event->list->more))
        forget(ch);
}

int channels_event(struct console *c, uint32_t id, const Hearth__V1__Event *event,
                   struct error *err)
{
    struct channel *ch = find(c, id);

    if (!ch)
        return error_set_code(err, ERR_GUEST_PROTOCOL,
                              "guest sent %s on channel %u, which is not open",
                              event_name((int)event->event_case), id);
    switch (event->event_case) {
    case HEARTH__V1__EVENT__EVENT_WINDOW:
        return take_window(ch, event->window, err);
    case HEARTH__V1__EVENT__EVENT_STREAM_END:
        return take_stream_end(ch, event->stream_end, err);
    case HEARTH__V1__EVENT__EVENT_CLOSED:
        take_closed(ch, event->closed, NULL);
        return 0;
    case HEARTH__V1__EVENT__EVENT_ERROR:
        take_closed(ch, NULL, event->error);
        return 0;
    case HEARTH__V1__EVENT__EVENT_HELLO:
    case HEARTH__V1__EVENT__EVENT__NOT_SET:
        return channel_unexpected(event, "in the middle of a conversation", err);
    case HEARTH__V1__EVENT__EVENT_DONE:
    case HEARTH__V1__EVENT__EVENT_PONG:
    case HEARTH__V1__EVENT__EVENT_STATS:
    case HEARTH__V1__EVENT__EVENT_LIST:
    case HEARTH__V1__EVENT__EVENT_STARTED:
    case HEARTH__V1__EVENT__EVENT_EXIT:
    default:
        break;
    }
    if (ch->ops)
        return ch->ops->event(ch->owner, event, err);
    tombstone_event(ch, event);
    return 0;
}

/* ---- all of them ---- */

static void wake_channel(struct console *c, uint32_t id)
{
    for (uint8_t i = 0; i < CHANNEL_STREAMS; i++) {
        struct channel *ch = console_is_live(c) ? find(c, id) : NULL;

        /* Looked up again each time: the call before may have freed it. */
        if (!ch || !ch->ops)
            return;
        if (!ch->to[i].open || !ch->to[i].starved || channel_writable(ch, i) == 0)
            continue;
        ch->to[i].starved = false;
        ch->ops->writable(ch->owner, i);
    }
}

void channels_wake(struct console *c)
{
    if (!c->data_starved || console_queued(c) >= CONSOLE_OUT_DATA_MAX / 2)
        return;
    c->data_starved = false;
    for (size_t i = 0; i < CHANNELS_MAX && console_is_live(c); i++)
        if (c->channels.slots[i])
            wake_channel(c, c->channels.slots[i]->id);
}

void channels_close(struct console *c, const struct error *reason)
{
    for (size_t i = 0; i < CHANNELS_MAX; i++) {
        struct channel *ch = c->channels.slots[i];
        const struct channel_ops *ops;
        void *owner;

        if (!ch)
            continue;
        ops = ch->ops;
        owner = ch->owner;
        forget(ch);
        if (!ops)
            continue;
        /* A callback may free the console: from then on the rest goes silently. */
        if (reason && c->state == CONSOLE_BROKEN)
            ops->closed(owner, NULL, NULL, reason);
        else
            ops->orphaned(owner);
    }
}
