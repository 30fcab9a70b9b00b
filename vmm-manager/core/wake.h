#pragma once

#include "core/core.h"

/*
 * Makes a machine of a snapshot; see wake.c: for a sandbox that resumes, that is rolled back, or
 * that is a new child of a fork. Ends with EVENT_READY or EVENT_FAILED.
 */
struct wake;

struct wake_options {
    const char *snapshot; /* id, copied */
    bool child;           /* state CREATING: what a child needs to know is in the snapshot */
    void (*on_progress)(const char *step, int percent, void *userdata); /* may be NULL */
    /* For a child, once: it runs, or err and nothing is left of it. */
    void (*done)(struct sandbox *sb, const struct error *err, void *userdata);
    void *userdata;
};

int wake_start(struct sandbox *sb, const struct wake_options *options, struct error *err);
/* The sandbox is RESUMING: from sb->snapshot. */
void wake_resume(struct sandbox *sb);
/* It runs, or sleeps again. */
void wake_finish(struct sandbox *sb);
/* No more steps; calls under way come home to nobody. */
void wake_abort(struct sandbox *sb);
/* RESUMING came to nothing: EVENT_PAUSED when no VM is left. */
void wake_undo(struct sandbox *sb);
/* The VM that had to go first is gone, or (err) will not go. */
void wake_vm_killed(struct sandbox *sb, const struct error *err);
bool wake_is_stuck(const struct sandbox *sb);
/* Before the sandbox is freed: its maker hears why there is none. */
void wake_report_failure(struct sandbox *sb);
void wake_forget(struct sandbox *sb);
struct wake *wake_free(struct wake *w);
