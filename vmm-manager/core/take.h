#pragma once

#include "core/core.h"
#include "store/snapshot.h"

/*
 * Takes a snapshot of a running sandbox; see take.c. One at a time for a sandbox. Whatever goes
 * wrong, the sandbox goes on.
 */
struct take;

/* The snapshot is sealed, or err says why there is none. Once, from the loop. */
typedef void (*take_done_fn)(struct sandbox *sb, const struct snapshot_info *info,
                             const struct error *err, void *userdata);

struct take_options {
    enum snapshot_kind kind; /* of those that let the sandbox go on */
    const char *name;        /* NULL: none; copied */
    void (*on_progress)(const char *step, int percent, void *userdata); /* may be NULL */
    take_done_fn done;
    void *userdata;
};

/* 0, or why this sandbox can never be snapshotted. */
int sandbox_can_snapshot(struct sandbox *sb, struct error *err);
/* The sandbox is RUNNING and stays so; it is held meanwhile, and used again before `done`. */
int take_start(struct sandbox *sb, const struct take_options *options, struct error *err);
/* No call to `done` and on_progress any more; the snapshot is removed when it is there. */
void take_forget(struct sandbox *sb, const void *userdata);

/* ---- for the lifecycle ---- */
/* The sandbox is PAUSING: ends with EVENT_PAUSED, EVENT_READY or EVENT_FAILED. */
void take_hibernate(struct sandbox *sb);
/* Somebody wants to use it: no pause, if there is still time. False: it was asked before. */
bool take_cancel(struct sandbox *sb);
/* All of it is written, so the end of its VM is no loss. */
bool take_outlives_vm(struct sandbox *sb);
/* The console that was looked for is there. */
void take_reconnected(struct sandbox *sb);
/* The console broke while a snapshot is being taken; true: it is looked after. */
bool take_console_broken(struct sandbox *sb, const struct error *reason);
/* The sandbox ends or has failed: no more steps. */
void take_abort(struct sandbox *sb, const struct error *reason);
/* It is PAUSED: nothing is left to do. */
void take_finish(struct sandbox *sb);
/* It sleeps, with its disk in the snapshot: its own name of that goes. */
void take_drop_disk(const struct sandbox *sb);
/* The core ends: nothing of it calls back on its own any more. */
void take_quiesce(struct take *t);
struct take *take_free(struct take *t);
