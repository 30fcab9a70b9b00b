#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "guest/poller.h"

/*
 * One byte stream to the host. Theory of operation: the descriptor is edge-triggered in epoll, so
 * `readable` and `writable` remember an edge until a call says EAGAIN. A virtio-serial port without
 * a host returns 0 from read() at once and reports a hang-up for ever; edge-triggered, that costs
 * one wake-up per change. conn_turn() does the work of one round of the loop.
 *
 * The kernel tells of a port's close and open from a worker, of its data from an interrupt: the
 * hello of a new host may be read before the close of the old one shows. So a hang-up right after
 * FRAME_SYNC is believed only when it is still there CONN_RECHECK_USEC later.
 *
 * Input is in step or lost (frame.h). A conversation begins with FRAME_SYNC and Hello; Hello on one
 * connection ends the conversation of any other, or goes on with it: between Freeze and Thaw a
 * conversation stands still (session.proto), and one that loses its connection then is parked. It
 * keeps its channels and what is queued, and waits for the connection on which it goes on.
 */
struct server;

#define CONN_NONCE_MAX 64u

struct conn {
    struct server *server; /* weak */
    struct source source;
    int fd;          /* owned; -EBADF: unused */
    bool persistent; /* a port: survives its host's end, never closed */
    bool readable, writable;
    bool lost;    /* skip to the next FRAME_SYNC */
    bool greeted; /* Hello was answered */
    bool broken;  /* ended: to be closed by its owner */
    bool still;   /* no more than the first `due` bytes of `out` may go */
    bool parked;  /* has no connection, but is the conversation */
    size_t due;
    size_t nonce_size;
    uint8_t nonce[CONN_NONCE_MAX]; /* of the Hello that began the conversation */
    uint64_t synced_usec;          /* when FRAME_SYNC last came */
    uint64_t recheck_usec;         /* look again whether the host is gone; USEC_INFINITY: no need */
    bool overflow;                 /* an event did not fit into `out` */
    struct buf in, out;
};

#define CONN_RECHECK_USEC (500u * 1000u)
#define CONN_OUT_MAX (4u * 1024u * 1024u) /* hard limit of queued output */
#define CONN_OUT_DATA (256u * 1024u)      /* no more stream data beyond this */
#define CONN_OUT_STOP (1024u * 1024u)     /* no more requests are read beyond this */

/* Takes the descriptor, which is made non-blocking, even on failure. */
int conn_open_consume(struct conn *c, struct server *s, int fd, bool persistent);
void conn_close(struct conn *c);
/* Out of step, or the host is gone or speaks elsewhere: what is queued belongs to nobody. */
void conn_lose(struct conn *c);
/* Another connection comes: closes this one, or parks it if it stands still. */
void conn_yield(struct conn *c);

/* Stands still behind what is queued now, until conn_go_on(). */
void conn_stand_still(struct conn *c);
void conn_go_on(struct conn *c);
/* The conversation of `from`, which is parked, goes on here behind what is queued now. */
int conn_continue(struct conn *c, struct conn *from);

/* Reads, serves and writes what can be without blocking. */
void conn_turn(struct conn *c);
/* When conn_turn() must run next: 0 when there is more to do at once. */
uint64_t conn_deadline(const struct conn *c);

/* Queues one DATA or CONTROL frame; a failure breaks the conversation at the end of the turn. */
int conn_send(struct conn *c, int kind, uint8_t stream, uint32_t channel, uint64_t offset,
              const void *data, uint32_t size);
/* Answer to FRAME_SYNC: throws away queued output and queues FRAME_SYNC itself. */
int conn_send_sync(struct conn *c);
/* Room for stream data. */
bool conn_wants_data(const struct conn *c);
