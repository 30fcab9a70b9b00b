#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/loop.h"

/*
 * The host's end of one guest's console: hello, identity, and the channels that exec, files and
 * dial use (channel.h). Runs on the loop, never blocks, knows no backend: it is given a connected
 * descriptor. Every byte from the guest is hostile: a protocol error breaks this console with a
 * reason and touches nothing else.
 */
struct console;

/* What the guest said of itself; strings are escaped and bounded. */
struct console_info {
    uint32_t version;
    bool thawed;
    uint64_t uptime_usec;
    char init_version[64];
    char kernel[64];
};

/*
 * The console is unusable: the peer closed, broke the protocol or missed a deadline. Called once,
 * from the loop; every open channel has already got its on_closed, every call its done with the
 * same reason, the one of console_open_consume() included. Only console_free() may follow. A
 * console that one of those callbacks has freed gets no further call.
 */
typedef void (*console_broken_fn)(struct console *c, const struct error *reason, void *userdata);
/* err is NULL on success. A call over its deadline fails alone (ERR_GUEST_UNRESPONSIVE). */
typedef void (*console_done_fn)(struct console *c, const struct error *err, void *userdata);

int console_new(struct loop *loop, const char *name, console_broken_fn broken, void *userdata,
                struct console **ret);
/* Closes the connection; open channels get no callback. */
struct console *console_free(struct console *c);

/*
 * Says hello on a connected, non-blocking stream descriptor and takes it, even on failure. Stale
 * bytes are skipped, the hello is repeated until deadline_usec (monotonic).
 */
int console_open_consume(struct console *c, int fd, uint64_t deadline_usec, console_done_fn done,
                         void *userdata);

/*
 * A frozen guest's connection may be replaced, because a snapshot ends it. Parked, the console has
 * none, its channels wait; it goes on when the hello on another connection is answered and the
 * guest is thawed. Whatever becomes of that connection until then, the console stays parked: `done`
 * gets the reason, and another one may be tried. -EPROTO, -EBUSY: the guest does not stand still.
 * The descriptor is taken even on failure.
 */
int console_park(struct console *c);
int console_continue_consume(struct console *c, int fd, uint64_t deadline_usec,
                             console_done_fn done, void *userdata);
const struct console_info *console_get_info(const struct console *c);

/* New identity for a booted or restored guest: fresh entropy and wall clock are added here. */
struct console_identity {
    const char *hostname;   /* 1 to 63 bytes */
    const char *machine_id; /* 32 hex digits */
    const char *boot_id;    /* UUID text */
};
int console_thaw(struct console *c, const struct console_identity *identity, uint64_t deadline_usec,
                 console_done_fn done, void *userdata);
/*
 * Freezes user processes and syncs the disks, before a snapshot. The conversation stands still
 * until the guest is thawed: what is said meanwhile reaches it then.
 */
int console_freeze(struct console *c, uint64_t deadline_usec, console_done_fn done, void *userdata);
/*
 * Kills all user processes and puts a fresh writable layer over the root; they are numbered from 1,
 * see layer_read_start(). For builds of images.
 */
int console_new_layer(struct console *c, uint64_t deadline_usec, console_done_fn done,
                      void *userdata);
int console_power_off(struct console *c, uint32_t grace_msec, uint64_t deadline_usec,
                      console_done_fn done, void *userdata);
/* A round trip; used as health probe. */
int console_ping(struct console *c, uint64_t deadline_usec, console_done_fn done, void *userdata);

struct console_stats {
    uint64_t memory_total, memory_available, disk_total, disk_free, cpu_usec, uptime_usec;
    uint32_t cpus, processes;
};
typedef void (*console_stats_fn)(struct console *c, const struct console_stats *stats,
                                 const struct error *err, void *userdata);
int console_stats(struct console *c, uint64_t deadline_usec, console_stats_fn done, void *userdata);

/* Bytes queued towards the guest; bounded. */
size_t console_queued(const struct console *c);
