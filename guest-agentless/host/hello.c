#include "host/console-internal.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "host/wire.h"
#include "protocol/frame.h"

/*
 * Theory of operation. The hello is repeated until the guest answers, because the guest may still
 * boot, may be stuck in a half frame of an earlier host, or the port may have swallowed bytes. Each
 * try has its own number in the nonce, and only the reply to the last one sent opens the console:
 * the guest forgets all channels with each hello, so none may still be under way when the first
 * channel is opened. A reply to an earlier try shows that the guest lives; then the next try waits
 * longer, so that a guest slower than the interval is not outrun for ever. Nothing new is sent
 * while old bytes wait for the socket. A hello that goes on with a parked conversation is said
 * once: it comes on a fresh connection, and a second one would end what the first has gone on with.
 */
#define HELLO_INTERVAL_USEC (250 * USEC_PER_MSEC)
#define HELLO_ALIVE_USEC (2 * USEC_PER_SEC)
#define HELLO_RANDOM_SIZE 12u
#define HELLO_CHANNEL 1u
#define HELLO_REPLY_MAX 4096u /* a longer one is none */

static int send_hello(struct console *c)
{
    Hearth__V1__Hello hello = HEARTH__V1__HELLO__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    struct console_hello *h = &c->hello;
    int r;

    h->tries++;
    for (unsigned i = 0; i < 4; i++)
        h->nonce[HELLO_RANDOM_SIZE + i] = (uint8_t)(h->tries >> (8 * i));
    hello.version_min = PROTOCOL_VERSION;
    hello.version_max = PROTOCOL_VERSION;
    hello.nonce.data = h->nonce;
    hello.nonce.len = sizeof(h->nonce);
    if (c->state == CONSOLE_PARKED) {
        hello.continues.data = c->conversation;
        hello.continues.len = sizeof(c->conversation);
    }
    request.op_case = HEARTH__V1__REQUEST__OP_HELLO;
    request.hello = &hello;
    /* The zeros fill up a half frame; a guest in step takes them for a bad header and finds the
     * sync. */
    if (h->tries >= 2 && (h->tries - 2) % 4 == 0) {
        r = outbox_zeros(c, FRAME_FLUSH_SIZE);
        if (r < 0)
            return r;
    }
    r = outbox_append(c, frame_sync, FRAME_SYNC_SIZE);
    if (r < 0)
        return r;
    return outbox_request(c, HELLO_CHANNEL, &request);
}

static int arm(struct console *c)
{
    return source_set_time(c->timer, MIN(c->hello.next_usec, c->hello.deadline_usec));
}

int hello_start(struct console *c)
{
    int r;

    if (getrandom(c->hello.nonce, HELLO_RANDOM_SIZE, 0) != (ssize_t)HELLO_RANDOM_SIZE)
        return -EIO;
    c->hello.tries = 0;
    c->hello.next_usec = USEC_INFINITY;
    if (c->state == CONSOLE_OPENING) {
        c->channels.last_id = HELLO_CHANNEL; /* used up */
        c->hello.next_usec = clock_now_usec() + HELLO_INTERVAL_USEC;
    }
    r = arm(c);
    if (r < 0)
        return r;
    return send_hello(c);
}

int hello_retry(struct console *c, uint64_t now_usec, struct error *err)
{
    int r = 0;

    if (now_usec >= c->hello.deadline_usec)
        return error_set_code(err, ERR_GUEST_UNRESPONSIVE,
                              "guest did not answer on its console in time (%u tries)",
                              c->hello.tries);
    if (now_usec >= c->hello.next_usec) {
        c->hello.next_usec = now_usec + HELLO_INTERVAL_USEC;
        if (c->out.size == 0)
            r = send_hello(c);
        if (r < 0)
            return error_set(err, -r, "saying hello to the guest");
    }
    return arm(c);
}

static int take_reply(struct console *c, const Hearth__V1__HelloReply *reply, struct error *err)
{
    if (c->state == CONSOLE_PARKED)
        return reply->continued
                   ? 1
                   : error_set_code(err, ERR_GUEST_PROTOCOL,
                                    "guest does not go on with the conversation that it had");
    if (reply->version != PROTOCOL_VERSION)
        return error_set_code(err, ERR_GUEST_PROTOCOL,
                              "guest speaks version %u of the console protocol, expected %u",
                              reply->version, PROTOCOL_VERSION);
    memcpy(c->conversation, c->hello.nonce, sizeof(c->conversation));
    c->info.version = reply->version;
    c->info.thawed = reply->thawed;
    c->info.uptime_usec = reply->uptime_usec;
    (void)wire_escape_string(c->info.init_version, sizeof(c->info.init_version),
                             reply->init_version);
    (void)wire_escape_string(c->info.kernel, sizeof(c->info.kernel), reply->kernel);
    return 1;
}

/* The event after a sync: 1 taken, 0 not the reply we wait for, negative with err filled. */
static int look_at_event(struct console *c, const struct frame *frame, struct error *err)
{
    Hearth__V1__Event *event;
    int r = 0;

    if (frame->kind != FRAME_CONTROL)
        return 0;
    event = hearth__v1__event__unpack(NULL, frame->size, frame->payload);
    if (!event)
        return 0;
    if (event->event_case == HEARTH__V1__EVENT__EVENT_HELLO) {
        const ProtobufCBinaryData *nonce = &event->hello->nonce;

        if (nonce->len != sizeof(c->hello.nonce) ||
            memcmp(nonce->data, c->hello.nonce, HELLO_RANDOM_SIZE) != 0)
            r = 0; /* to another conversation */
        else if (memcmp(nonce->data, c->hello.nonce, sizeof(c->hello.nonce)) == 0)
            r = take_reply(c, event->hello, err);
        else
            c->hello.next_usec = clock_now_usec() + HELLO_ALIVE_USEC;
    }
    hearth__v1__event__free_unpacked(event, NULL);
    return r;
}

int hello_scan(struct console *c, struct error *err)
{
    for (;;) {
        const uint8_t *data = c->in + c->in_start;
        struct frame frame;
        bool found;
        size_t used, skip = frame_skip_to_sync(data, c->in_size, &found);
        enum frame_result result;
        int r = 0;

        c->in_start += skip;
        c->in_size -= skip;
        if (!found)
            return 0;
        result = frame_decode(data + skip + FRAME_SYNC_SIZE, c->in_size - FRAME_SYNC_SIZE,
                              HELLO_REPLY_MAX, &frame, &used);
        if (result == FRAME_MORE && c->in_size < HELLO_REPLY_MAX) {
            /* A half frame of old ends where the next sync begins. */
            (void)frame_skip_to_sync(data + skip + 1, c->in_size - 1, &found);
            if (!found)
                return 0;
        }
        if (result == FRAME_OK)
            r = look_at_event(c, &frame, err);
        if (r < 0)
            return r;
        /* Not it: whatever followed may hide the next sync, so go on right behind this one's start.
         */
        used = r > 0 ? FRAME_SYNC_SIZE + used : 1;
        c->in_start += used;
        c->in_size -= used;
        if (r > 0)
            return 1;
    }
}
