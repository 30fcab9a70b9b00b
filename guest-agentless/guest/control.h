#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "guest/poller.h"
#include "protocol/session.pb-c.h"

/*
 * Thaw, Freeze and PowerOff: one at a time. What can block (writing files of the guest, sync) runs
 * in a helper process, whose end moves the step on. Where no process of a user's lives, nobody can
 * make a file system wait and nobody has to be frozen: then thaw needs neither helper nor freezer,
 * which makes a clone answer sooner.
 *
 *   THAW      the helper applies the identity; then the cgroup is let go and the server opens
 *   FREEZING  waits for cgroup.events to say frozen, with a deadline
 *   SYNCING   the helper syncs; then Done
 *   TERM      SIGTERM was sent to all, waits for them or the grace
 *   KILL      SIGKILL was sent; waits for all to be gone, with a deadline
 *   OFF_SYNC  the helper syncs; then the loop ends
 */
struct server;

enum control_step {
    CONTROL_IDLE,
    CONTROL_THAW,
    CONTROL_FREEZING,
    CONTROL_SYNCING,
    CONTROL_TERM,
    CONTROL_KILL,
    CONTROL_OFF_SYNC,
};
#define CONTROL_STEP_COUNT 7

struct control {
    enum control_step step;
    uint32_t channel;
    uint64_t deadline_usec; /* USEC_INFINITY: none */
    uint64_t frozen_usec;   /* since when; 0: not frozen */
    bool freezer;           /* the cgroup is frozen, or about to be */
    pid_t pid;              /* of the helper, 0: none */
    int pidfd, result_fd;   /* owned */
    struct source pid_source;
    int events_fd; /* owned: cgroup.events */
    struct source events_source;
};

void control_init(struct control *c);
void control_done(struct server *s);

void control_thaw(struct server *s, uint32_t channel, const Hearth__V1__Thaw *thaw);
void control_freeze(struct server *s, uint32_t channel);
void control_power_off(struct server *s, uint32_t channel, uint32_t grace_msec);

/* Reaps the helper if it has ended; true when it had. */
bool control_reap(struct server *s);

/* Acts when the deadline is over. Also called when a process ended. */
void control_run(struct server *s, uint64_t now_usec);
