#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protocol/session.pb-c.h>

#include "base/error.h"
#include "host/console.h"

/*
 * Internal to host/. One channel of a console: a number, its owner's functions, and the offsets of
 * its streams in both directions.
 *
 * Theory of operation. The console owns every channel; an owner (exec, transfer, file call, control
 * call) holds a weak pointer that is valid until its `closed` or `orphaned` function is called or
 * it lets go with channel_release(). A released channel stays in the table as a tombstone, because
 * the guest may have frames for it under way: they are checked like all others and then thrown
 * away, until the guest says Closed. The table is bounded, so tombstones are too.
 *
 * Owner functions may free anything: the owner, its channel, other channels, the console. So nobody
 * up the stack touches owner or channel after such a call; the console's own memory is kept until
 * its outermost event function returns (console_enter, console_leave).
 */
#define CHANNEL_STREAMS 8u
#define CHANNEL_WINDOW (256u * 1024u) /* bytes in flight per stream from the guest */
#define CHANNELS_MAX 1024u            /* a power of two; live ones and tombstones together */

struct channel;

struct channel_ops {
    /* Any event but those below. A negative result with err filled breaks the console. */
    int (*event)(void *owner, const Hearth__V1__Event *event, struct error *err);
    /* Bytes in order, within the window. May be NULL if no window is ever granted. */
    int (*data)(void *owner, uint8_t stream, uint64_t offset, const uint8_t *data, size_t size,
                struct error *err);
    int (*stream_end)(void *owner, uint8_t stream, uint64_t offset, struct error *err);
    void (*writable)(void *owner, uint8_t stream);
    /*
     * The channel is gone: the guest closed it (closed is set), refused the request (error is set)
     * or the console broke (only reason is set). Exactly one of the three pointers is not NULL.
     */
    void (*closed)(void *owner, const Hearth__V1__Closed *closed, const Hearth__V1__Error *error,
                   const struct error *reason);
    /* The console was freed: the channel is gone, and the owner's owner hears nothing. */
    void (*orphaned)(void *owner);
};

/*
 * Opens a channel by its first request. err may be NULL. -EAGAIN when the table or the queue
 * towards the guest is full, -ENOTCONN when the console is not open.
 */
int channel_open(struct console *c, const Hearth__V1__Request *request,
                 const struct channel_ops *ops, void *owner, struct channel **ret,
                 struct error *err);
/* The owner lets go: what still comes is thrown away. Always returns NULL. */
struct channel *channel_release(struct channel *ch);
/* The same, and asks the guest to end the operation behind it, whose output is let out and dropped.
 */
struct channel *channel_abandon(struct channel *ch);
/* For requests whose answer is the channel's end: forgets it at once. Always returns NULL. */
struct channel *channel_end(struct channel *ch);

/* A violation: the event makes no sense there ("before Started"). Fills err, returns -EPROTO. */
int channel_unexpected(const Hearth__V1__Event *event, const char *where, struct error *err);
/* Another request on an open channel. */
int channel_request(struct channel *ch, const Hearth__V1__Request *request);

/* ---- from the guest ---- */

/* Expects bytes from `offset` on and allows CHANNEL_WINDOW of them; tells the guest if `announce`.
 */
int channel_expect(struct channel *ch, uint8_t stream, uint64_t offset, bool announce);
/*
 * Offsets may jump forward on this channel: the guest drops what nobody takes. Dropped bytes use up
 * no window: both sides move it on by as many.
 */
void channel_allow_gaps(struct channel *ch);
/* Bytes are out of our hands: the window moves on. */
void channel_consumed(struct channel *ch, uint8_t stream, size_t size);
uint64_t channel_received(const struct channel *ch, uint8_t stream);

/* ---- to the guest ---- */

/* The stream takes input, the next byte has this offset. */
void channel_input(struct channel *ch, uint8_t stream, uint64_t offset);
size_t channel_writable(struct channel *ch, uint8_t stream);
int channel_write(struct channel *ch, uint8_t stream, const void *data, size_t size);
int channel_close_stream(struct channel *ch, uint8_t stream);

/* ---- for the console ---- */

struct channel_table {
    struct channel
        *slots[CHANNELS_MAX]; /* owned; a channel's place is its number modulo the size */
    uint32_t last_id;
    unsigned count;
};

/* One frame's content; a negative result with err filled breaks the console. */
int channels_event(struct console *c, uint32_t id, const Hearth__V1__Event *event,
                   struct error *err);
int channels_data(struct console *c, uint32_t id, uint8_t stream, uint64_t offset,
                  const uint8_t *data, size_t size, struct error *err);
/* The queue has room again: wakes the streams that found it full. */
void channels_wake(struct console *c);
/* Ends all channels; reason NULL: silently. */
void channels_close(struct console *c, const struct error *reason);
