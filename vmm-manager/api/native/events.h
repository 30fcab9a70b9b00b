#pragma once

#include "base/loop.h"

/*
 * Changes of sandboxes as server-sent events. The last EVENTS_KEPT are kept, so that a client which
 * comes back with the number it has seen misses nothing; when it was away for longer, it is told to
 * look for itself.
 */
struct core;
struct event_hub;

#define EVENTS_KEPT 1024u
#define EVENT_CLIENTS_MAX 256u

int event_hub_new(struct core *core, struct loop *loop, struct event_hub **ret);
struct event_hub *event_hub_free(struct event_hub *hub); /* no client is left. Always NULL */
