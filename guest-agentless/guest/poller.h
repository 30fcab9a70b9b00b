#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * The event loop of hearth-init: one epoll descriptor, sources that their owners embed. A source
 * may be removed at any time, also from inside a callback of the same batch: a removed one is never
 * called. Time-outs are the caller's: it gives the wait its deadline.
 */
struct source;
typedef void (*source_fn)(struct source *s, uint32_t events);

struct source {
    source_fn fn; /* NULL: not registered */
    int fd;       /* weak: closing it is the owner's business, after source_remove() */
    uint32_t events;
};

#define POLLER_BATCH 32

struct poller {
    int fd;                             /* owned */
    struct source *batch[POLLER_BATCH]; /* weak, of the batch under way; NULL when removed */
    int n_batch;
};

int poller_init(struct poller *p);
void poller_done(struct poller *p);

int source_add(struct poller *p, struct source *s, int fd, uint32_t events, source_fn fn);
/*
 * Changes what is waited for; costs nothing when it is the same. 0 takes it out of the epoll set:
 * a hang-up is level-triggered and would be reported over and over otherwise.
 */
void source_set_events(struct poller *p, struct source *s, uint32_t events);
void source_remove(struct poller *p, struct source *s);

/* Waits until deadline_usec (monotonic; USEC_INFINITY: for ever) and runs one batch. */
int poller_run(struct poller *p, uint64_t deadline_usec);
