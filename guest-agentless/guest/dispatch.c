#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "guest/event.h"
#include "guest/pty.h"
#include "guest/server.h"
#include "guest/spawn.h"
#include "protocol/frame.h"

/* What the host asks for, request by request. */

#define PING_MAX 256u

/* The parked conversation that the host wants to go on with, NULL: none or another. */
static struct conn *continued_by(const struct server *s, const Hearth__V1__Hello *hello)
{
    struct conn *old = s->active;
    const ProtobufCBinaryData *wanted = &hello->continues;

    if (!old || !old->parked || old->overflow || wanted->len == 0 ||
        wanted->len != old->nonce_size || memcmp(wanted->data, old->nonce, wanted->len) != 0)
        return NULL;
    return old;
}

static void on_hello(struct server *s, struct conn *c, uint32_t channel,
                     const Hearth__V1__Hello *hello)
{
    bool refused = hello->nonce.len > CONN_NONCE_MAX || hello->version_min > PROTOCOL_VERSION ||
                   hello->version_max < PROTOCOL_VERSION;
    struct conn *old = refused ? NULL : continued_by(s, hello);

    if (s->active && s->active != c && !old) { /* newest wins: the old conversation goes silent */
        if (s->active->parked)
            conn_close(s->active);
        else
            conn_lose(s->active);
    }
    s->active = c;
    if (conn_send_sync(c) < 0) {
        if (old)
            conn_close(old);
        return;
    }
    if (refused) {
        event_error(s, channel, HEARTH__V1__CODE__CODE_UNSUPPORTED, EPROTO,
                    "this guest speaks version %u only, not %u to %u", PROTOCOL_VERSION,
                    hello->version_min, hello->version_max);
        return;
    }
    c->greeted = true;
    if (hello->nonce.len > 0)
        memcpy(c->nonce, hello->nonce.data, hello->nonce.len);
    c->nonce_size = hello->nonce.len;
    event_hello(s, channel, hello, old != NULL);
    if (old && conn_continue(c, old) < 0)
        c->overflow = true;
}

static void on_ping(struct server *s, uint32_t channel, const Hearth__V1__Ping *ping)
{
    Hearth__V1__Pong pong = HEARTH__V1__PONG__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;

    if (ping->payload.len > PING_MAX) {
        event_error(s, channel, HEARTH__V1__CODE__CODE_LIMIT, EMSGSIZE,
                    "ping of more than %u bytes", PING_MAX);
        return;
    }
    pong.payload = ping->payload;
    pong.realtime_nsec = clock_wall_usec() * 1000;
    event.event_case = HEARTH__V1__EVENT__EVENT_PONG;
    event.pong = &pong;
    (void)event_send(s, channel, &event);
}

static void no_process(struct server *s, uint32_t channel, uint64_t id)
{
    event_error(s, channel, HEARTH__V1__CODE__CODE_NO_PROCESS, ESRCH, "no process %llu",
                (unsigned long long)id);
}

static struct stream *output_of(struct process *p, uint32_t number)
{
    struct stream *s = number < PROCESS_STREAMS ? &p->streams[number] : NULL;

    return s && s->present && !s->to_guest ? s : NULL;
}

static void on_attach(struct server *s, uint32_t channel, const Hearth__V1__Attach *attach)
{
    struct process *p = process_find(s, attach->process_id), *other;

    if (!p || p->op || p->state == PROCESS_SPAWNING) {
        no_process(s, channel, attach->process_id);
        return;
    }
    other = process_find_channel(s, channel);
    if (other && other != p) {
        event_error(s, channel, HEARTH__V1__CODE__CODE_INVALID, EINVAL, "channel %u is in use",
                    channel);
        return;
    }
    process_attach(p, channel);
    for (size_t i = 0; i < attach->n_from; i++) {
        struct stream *stream = output_of(p, attach->from[i]->stream);

        if (stream)
            stream->sent = stream->told =
                MIN(MAX(attach->from[i]->offset, stream->ring.start), stream->ring.end);
    }
    for (size_t i = 0; i < attach->n_windows; i++) {
        struct stream *stream = output_of(p, attach->windows[i]->stream);

        if (stream)
            stream_set_window(stream, attach->windows[i]->offset);
    }
    event_started(p);
    process_mark_ready(p);
}

static void on_release(struct server *s, uint32_t channel, const Hearth__V1__Release *release)
{
    struct process *p = process_find(s, release->process_id);

    if (!p) {
        no_process(s, channel, release->process_id);
        return;
    }
    if (p->state < PROCESS_EXITED) {
        event_error(s, channel, HEARTH__V1__CODE__CODE_INVALID, EBUSY, "process %llu is running",
                    (unsigned long long)p->id);
        return;
    }
    process_release(p);
    event_done(s, channel);
}

/*
 * Signal and Resize name a process and have a channel of their own, which is answered; or they come
 * on the channel of the process, whose end an Error would be: there they fail in silence.
 */
static struct process *target(struct server *s, uint32_t channel, uint64_t id, bool *ret_answer)
{
    struct process *p = id ? process_find(s, id) : process_find_channel(s, channel);

    *ret_answer = !process_find_channel(s, channel);
    if (!p && *ret_answer && id)
        no_process(s, channel, id);
    return p;
}

static void answer(struct server *s, uint32_t channel, bool wanted, int r, const char *what)
{
    if (!wanted)
        return;
    if (r == 0)
        event_done(s, channel);
    else if (r == -EINVAL)
        event_error(s, channel, HEARTH__V1__CODE__CODE_INVALID, EINVAL, "%s: no such value", what);
    else
        event_error(s, channel, HEARTH__V1__CODE__CODE_SYSTEM, -r, "%s: %s", what, errno_text(-r));
}

static void on_signal(struct server *s, uint32_t channel, const Hearth__V1__Signal *req)
{
    bool wanted;
    struct process *p = target(s, channel, req->process_id, &wanted);

    if (!p)
        return;
    answer(s, channel, wanted,
           req->signo > 64 ? -EINVAL : process_signal(p, (int)req->signo, (int)req->scope),
           "signal");
}

static void on_resize(struct server *s, uint32_t channel, const Hearth__V1__Resize *resize)
{
    bool wanted;
    struct process *p = target(s, channel, resize->process_id, &wanted);
    int r = -ENOTTY;

    if (!p)
        return;
    if (p->tty && p->streams[1].fd >= 0)
        r = pty_resize(p->streams[1].fd, resize->rows, resize->cols);
    answer(s, channel, wanted, r, "resize");
}

static void on_layer(struct server *s, uint32_t channel)
{
    struct error err = {0};

    if (!s->options.new_layer) {
        event_error(s, channel, HEARTH__V1__CODE__CODE_UNSUPPORTED, EOPNOTSUPP,
                    "this guest has no layers");
        return;
    }
    process_kill_all(s, SIGKILL);
    if (s->options.new_layer(s->layers + 1, &err) < 0) {
        event_error(s, channel, HEARTH__V1__CODE__CODE_SYSTEM, err.errnum, "new layer: %s",
                    err.text);
        return;
    }
    s->layers++;
    event_done(s, channel);
}

static void on_window(struct server *s, uint32_t channel, const Hearth__V1__Window *window)
{
    struct process *p = process_find_channel(s, channel);
    struct stream *stream = p ? output_of(p, window->stream) : NULL;

    if (stream)
        stream_set_window(stream, window->offset);
}

static struct stream *input_of(struct server *s, uint32_t channel, uint32_t number)
{
    struct process *p = process_find_channel(s, channel);

    if (!p || number >= PROCESS_STREAMS || !p->streams[number].present ||
        !p->streams[number].to_guest)
        return NULL;
    return &p->streams[number];
}

static void on_data(struct server *s, const struct frame *f)
{
    /* Data for a channel that has just closed is a race, not a mistake. */
    struct stream *stream = input_of(s, f->channel, f->stream);
    struct process *p;
    int r;

    if (!stream)
        return;
    r = stream_input(stream, f->offset, f->payload, f->size);
    if (r == 0)
        return;
    p = stream->process;
    event_error(s, f->channel, HEARTH__V1__CODE__CODE_INVALID, -r,
                "data of stream %u at offset %llu, %u bytes: expected offset %llu, limit %llu",
                f->stream, (unsigned long long)f->offset, f->size,
                (unsigned long long)stream->received, (unsigned long long)stream->granted);
    process_detach(p);
}

static bool served_while_frozen(Hearth__V1__Request__OpCase op)
{
    return op == HEARTH__V1__REQUEST__OP_THAW || op == HEARTH__V1__REQUEST__OP_PING ||
           op == HEARTH__V1__REQUEST__OP_POWER_OFF || op == HEARTH__V1__REQUEST__OP_WINDOW ||
           op == HEARTH__V1__REQUEST__OP_CLOSE_STREAM;
}

static void on_request(struct server *s, struct conn *c, uint32_t channel,
                       const Hearth__V1__Request *request)
{
    struct stream *stream;

    if (request->op_case == HEARTH__V1__REQUEST__OP_HELLO) {
        on_hello(s, c, channel, request->hello);
        return;
    }
    if (!c->greeted || s->active != c)
        return;
    if (request->op_case != HEARTH__V1__REQUEST__OP_WINDOW) /* which comes with every stream */
        urgency_input(&s->urgency);
    if (!s->thawed && !served_while_frozen(request->op_case)) {
        event_error(s, channel, HEARTH__V1__CODE__CODE_NOT_THAWED, EAGAIN,
                    "the guest has no identity yet or is frozen");
        return;
    }
    if (request->op_case == HEARTH__V1__REQUEST__OP_THAW ||
        request->op_case == HEARTH__V1__REQUEST__OP_POWER_OFF)
        conn_go_on(c); /* the answer has to get out */
    switch (request->op_case) {
    case HEARTH__V1__REQUEST__OP_THAW:
        control_thaw(s, channel, request->thaw);
        return;
    case HEARTH__V1__REQUEST__OP_FREEZE:
        control_freeze(s, channel);
        return;
    case HEARTH__V1__REQUEST__OP_PING:
        on_ping(s, channel, request->ping);
        return;
    case HEARTH__V1__REQUEST__OP_POWER_OFF:
        control_power_off(s, channel, request->power_off->grace_msec);
        return;
    case HEARTH__V1__REQUEST__OP_STATS:
        event_stats(s, channel);
        return;
    case HEARTH__V1__REQUEST__OP_LIST:
        event_list(s, channel);
        return;
    case HEARTH__V1__REQUEST__OP_EXEC:
        spawn_exec(s, channel, request->exec);
        return;
    case HEARTH__V1__REQUEST__OP_FILE:
    case HEARTH__V1__REQUEST__OP_DIAL:
        spawn_op(s, channel, request);
        return;
    case HEARTH__V1__REQUEST__OP_ATTACH:
        on_attach(s, channel, request->attach);
        return;
    case HEARTH__V1__REQUEST__OP_RELEASE:
        on_release(s, channel, request->release);
        return;
    case HEARTH__V1__REQUEST__OP_SIGNAL:
        on_signal(s, channel, request->signal);
        return;
    case HEARTH__V1__REQUEST__OP_RESIZE:
        on_resize(s, channel, request->resize);
        return;
    case HEARTH__V1__REQUEST__OP_WINDOW:
        on_window(s, channel, request->window);
        return;
    case HEARTH__V1__REQUEST__OP_CLOSE_STREAM:
        stream = input_of(s, channel, request->close_stream->stream);
        if (stream)
            stream_close_input(stream);
        return;
    case HEARTH__V1__REQUEST__OP_LAYER:
        on_layer(s, channel);
        return;
    default:
        event_error(s, channel, HEARTH__V1__CODE__CODE_UNSUPPORTED, EOPNOTSUPP,
                    "this guest does not know the request");
    }
}

void server_dispatch(struct server *s, struct conn *c, const struct frame *f)
{
    Hearth__V1__Request *request;

    if (f->kind == FRAME_DATA) {
        if (c->greeted && s->active == c)
            on_data(s, f);
        return;
    }
    request = hearth__v1__request__unpack(NULL, f->size, f->payload);
    if (!request) {
        if (c->greeted && s->active == c)
            event_error(s, f->channel, HEARTH__V1__CODE__CODE_INVALID, EBADMSG,
                        "the request cannot be decoded");
        return;
    }
    if (f->channel != 0)
        on_request(s, c, f->channel, request);
    hearth__v1__request__free_unpacked(request, NULL);
}
