#pragma once

#include "core/core.h"

/* What happens to a sandbox. Flows and callbacks report events; only the table changes states. */
enum sandbox_event {
    EVENT_READY,     /* the guest answers and has its identity; a pause was given up */
    EVENT_FAILED,    /* it cannot go on */
    EVENT_GUEST_OFF, /* the guest powered itself off */
    EVENT_REMOVE,    /* a client wants it gone */
    EVENT_EXPIRED,   /* its life time is over */
    EVENT_OVERDUE,   /* the state lasted longer than it may */
    EVENT_PAUSE,     /* it shall sleep */
    EVENT_PAUSED,    /* its snapshot is safe and no VM is left */
    EVENT_RESUME,    /* it shall wake, or not fall asleep */
    EVENT_ROLLBACK,  /* sb->snapshot is what it shall be, whatever it is now */
};
#define SANDBOX_EVENT_COUNT (EVENT_ROLLBACK + 1)

const char *sandbox_event_name(enum sandbox_event event);

/*
 * Reports an event; `reason` may be NULL where the event needs none. The sandbox may be freed when
 * a removal has nothing to wait for, so the caller does not touch it afterwards. -EBADMSG: this
 * event cannot happen in this state (a mistake of ours, logged).
 */
int sandbox_event(struct sandbox *sb, enum sandbox_event event, const struct error *reason);

/* The longest time a state may last, USEC_INFINITY: as long as the life time. */
uint64_t sandbox_state_timeout_usec(enum sandbox_state state);
