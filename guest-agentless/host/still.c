#include <errno.h>

#include "host/call.h"
#include "host/console-internal.h"

/*
 * Theory of operation. A conversation stands still from Freeze to the Done of Thaw: what is said
 * meanwhile waits in `later`, behind everything. When the Done of Freeze has come, the guest has
 * taken all that we sent and we have all that it sent. So the connection may go (console_park) and
 * another one take its place (console_continue_consume) while every channel stays as it was. An
 * answer that is refused leaves the conversation as it stood: a frozen guest can still be thawed.
 */
static void go_on(struct console *c)
{
    struct buf later = c->still.later;

    c->still.on = c->still.frozen = false;
    buf_init(&c->still.later, CONSOLE_OUT_MAX);
    if (later.size > 0)
        (void)outbox_append(c, buf_data(&later), later.size);
    buf_done(&later);
    outbox_flush(c);
    channels_wake(c);
}

/* The user's, to be called last. */
static void tell(struct console *c, const struct error *err)
{
    console_done_fn done = c->still.done;

    c->still.done = NULL;
    if (done && c->state != CONSOLE_FREED)
        done(c, err, c->still.userdata);
}

static void on_frozen(struct console *c, const struct error *err, void *userdata)
{
    (void)userdata;
    c->still.frozen = !err;
    if (err && c->state == CONSOLE_OPEN && err->code != ERR_GUEST_UNRESPONSIVE)
        go_on(c); /* the guest goes on too */
    tell(c, err);
}

static void on_thawed(struct console *c, const struct error *err, void *userdata)
{
    (void)userdata;
    if (!err && c->still.on)
        go_on(c);
    tell(c, err);
}

int still_begin(struct console *c, const Hearth__V1__Request *freeze, uint64_t deadline_usec,
                console_done_fn done, void *userdata)
{
    int r;

    if (c->still.on || c->still.done)
        return -EBUSY;
    r = call_plain(c, "freezing the guest", WIRE_SUBJECT_GUEST, freeze, deadline_usec, on_frozen,
                   NULL);
    if (r < 0)
        return r;
    c->still.on = true;
    c->still.done = done;
    c->still.userdata = userdata;
    return 0;
}

int still_end(struct console *c, const Hearth__V1__Request *thaw, uint64_t deadline_usec,
              console_done_fn done, void *userdata)
{
    int r;

    if (c->still.done)
        return -EBUSY;
    r = call_plain(c, "giving the guest its identity", WIRE_SUBJECT_GUEST, thaw, deadline_usec,
                   on_thawed, NULL);
    if (r < 0)
        return r;
    c->still.done = done;
    c->still.userdata = userdata;
    return 0;
}
