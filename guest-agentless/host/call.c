#include "host/call.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "host/console-internal.h"

static void call_free(struct call *call)
{
    call->timer = source_free(call->timer);
    if (call->done)
        call->done(call);
    free(call);
}

static void complete(struct call *call, const struct error *err)
{
    call->ch = NULL;
    call->timer = source_free(call->timer);
    call->finish(call, err);
    call_free(call);
}

static int on_event(void *owner, const Hearth__V1__Event *event, struct error *err)
{
    struct call *call = owner;
    int r = call->reply(call, event, err);

    if (r <= 0)
        return r;
    call->ch = channel_end(call->ch);
    complete(call, NULL);
    return 0;
}

static int on_stream_end(void *owner, uint8_t stream, uint64_t offset, struct error *err)
{
    struct call *call = owner;

    (void)offset;
    return error_set_code(err, ERR_GUEST_PROTOCOL, "guest ended stream %u of '%s'", stream,
                          call->what);
}

static void on_closed(void *owner, const Hearth__V1__Closed *closed, const Hearth__V1__Error *error,
                      const struct error *reason)
{
    struct call *call = owner;
    struct error err = {0};

    if (error) {
        wire_error(error, call->subject, call->what, &err);
    } else if (closed) {
        (void)error_set_code(&err, ERR_GUEST_PROTOCOL, "%s: guest closed without an answer",
                             call->what);
    } else {
        error_copy(&err, reason);
        error_wrap(&err, "%s", call->what);
    }
    complete(call, &err);
}

static void on_orphaned(void *owner)
{
    call_free(owner);
}

static const struct channel_ops call_ops = {
    .event = on_event,
    .stream_end = on_stream_end,
    .closed = on_closed,
    .orphaned = on_orphaned,
};

static int on_deadline(struct source *s, uint64_t now_usec, void *userdata)
{
    struct call *call = userdata;
    struct console *c = call->console;
    struct error err = {0};

    (void)s;
    (void)now_usec;
    console_enter(c);
    call->ch = channel_release(call->ch);
    (void)error_set_code(&err, ERR_GUEST_UNRESPONSIVE, "%s: guest did not answer in time",
                         call->what);
    complete(call, &err);
    console_leave(c);
    return 0;
}

int call_start_consume(struct console *c, struct call *call, const Hearth__V1__Request *request,
                       uint64_t deadline_usec)
{
    int r = 0;

    call->console = c;
    if (deadline_usec != USEC_INFINITY)
        r = loop_add_timer(c->loop, "console-call", deadline_usec, on_deadline, call, &call->timer);
    if (r >= 0)
        r = channel_open(c, request, &call_ops, call, &call->ch, NULL);
    if (r < 0)
        call_free(call);
    return r;
}

static int plain_reply(struct call *call, const Hearth__V1__Event *event, struct error *err)
{
    (void)call;
    if (event->event_case != HEARTH__V1__EVENT__EVENT_DONE)
        return channel_unexpected(event, "instead of Done", err);
    return 1;
}

static void plain_finish(struct call *call, const struct error *err)
{
    if (call->fn)
        call->fn(call->console, err, call->userdata);
}

int call_plain(struct console *c, const char *what, enum wire_subject subject,
               const Hearth__V1__Request *request, uint64_t deadline_usec, console_done_fn fn,
               void *userdata)
{
    struct call *call = calloc(1, sizeof(*call));

    if (!call)
        return -ENOMEM;
    call->what = what;
    call->subject = subject;
    call->reply = plain_reply;
    call->finish = plain_finish;
    call->fn = fn;
    call->userdata = userdata;
    return call_start_consume(c, call, request, deadline_usec);
}
