#include "core/lifecycle.h"

#include <assert.h>

#include "base/clock.h"
#include "base/log.h"
#include "core/create.h"
#include "core/events.h"
#include "core/sandbox-private.h"
#include "core/take.h"
#include "core/wake.h"

/*
 * Theory of operation. A sandbox is always in one state; flows (create.c, take.c, wake.c,
 * recover.c, teardown.c) and callbacks report events; the table below says for each pair what
 * happens. STOPPING ends with the sandbox gone, unless its VMM will not die: then it is FAILED and
 * can be removed again. Each state that waits for somebody has a deadline; the others last until
 * the life time ends. PAUSING ends in PAUSED, or back in RUNNING when the pause was cancelled or
 * could not be done; RESUMING ends in RUNNING, or back in PAUSED with the reason: a snapshot that
 * could not be restored now is not lost.
 */
typedef void (*transition_fn)(struct sandbox *sb, const struct error *reason);

static const char *const event_names[] = {
    [EVENT_READY] = "ready",       [EVENT_FAILED] = "failed",   [EVENT_GUEST_OFF] = "guest-off",
    [EVENT_REMOVE] = "remove",     [EVENT_EXPIRED] = "expired", [EVENT_OVERDUE] = "overdue",
    [EVENT_PAUSE] = "pause",       [EVENT_PAUSED] = "paused",   [EVENT_RESUME] = "resume",
    [EVENT_ROLLBACK] = "rollback",
};
static_assert(ARRAY_SIZE(event_names) == SANDBOX_EVENT_COUNT, "every event has a name");

const char *sandbox_event_name(enum sandbox_event event)
{
    return event_names[event];
}

static const uint64_t state_timeouts[] = {
    [SANDBOX_CREATING] = 900 * USEC_PER_SEC, /* queueing, a template's boot, a clone's start */
    [SANDBOX_RUNNING] = USEC_INFINITY,
    [SANDBOX_PAUSING] = 900 * USEC_PER_SEC, /* much memory to write */
    [SANDBOX_PAUSED] = USEC_INFINITY,
    [SANDBOX_RESUMING] = 600 * USEC_PER_SEC,
    [SANDBOX_STOPPING] = 180 * USEC_PER_SEC, /* a call that cannot be taken back, then the kill */
    [SANDBOX_STOPPED] = USEC_INFINITY,
    [SANDBOX_FAILED] = USEC_INFINITY,
};
static_assert(ARRAY_SIZE(state_timeouts) == SANDBOX_STATE_COUNT, "every state has a deadline");

uint64_t sandbox_state_timeout_usec(enum sandbox_state state)
{
    return state_timeouts[state];
}

static void set_state(struct sandbox *sb, enum sandbox_state state)
{
    struct error err = {0};

    log_sandbox(LOG_LEVEL_NOTICE, sb->id, "Sandbox is %s (was %s)%s%s", sandbox_state_name(state),
                sandbox_state_name(sb->state), state == SANDBOX_FAILED ? ": " : "",
                state == SANDBOX_FAILED ? sb->failure.text : "");
    sb->state = state;
    core_tell(sb, sandbox_state_name(state));
    sandbox_arm_deadline(sb, state_timeouts[state]);
    if (sandbox_store(sb, &err) < 0)
        log_sandbox(LOG_LEVEL_WARNING, sb->id, "Failed to store the state: %s, ignoring", err.text);
    sandbox_waits_kick(sb);
}

/* Nothing of a snapshot or a restore goes on by itself any more. */
static void let_go(struct sandbox *sb, const struct error *reason)
{
    take_abort(sb, reason);
    wake_abort(sb);
}

static void note_failure(struct sandbox *sb, const struct error *reason)
{
    if (reason)
        error_copy(&sb->failure, reason);
    else
        (void)error_set_code(&sb->failure, ERR_INTERNAL, "sandbox '%s': failed", sb->id);
}

static void enter_running(struct sandbox *sb, const struct error *reason)
{
    bool created = sb->state == SANDBOX_CREATING;

    (void)reason;
    if (sb->state == SANDBOX_RESUMING)
        sb->woken_wall_usec = clock_wall_usec();
    error_clear(&sb->failure);
    sandbox_used(sb);
    set_state(sb, SANDBOX_RUNNING);
    if (!created)
        (void)sandbox_arm_lifetime(sb);
    sandbox_arm_idle(sb);
    wake_finish(sb);
    creation_finish(sb);
}

/* ---- sleep ---- */

static void enter_failed(struct sandbox *sb, const struct error *reason);

static void enter_pausing(struct sandbox *sb, const struct error *reason)
{
    (void)reason;
    error_clear(&sb->pause_error);
    sb->pause_wanted = false;
    set_state(sb, SANDBOX_PAUSING);
    take_hibernate(sb);
}

static void cancel_pause(struct sandbox *sb, const struct error *reason)
{
    (void)reason;
    (void)take_cancel(sb);
}

static void enter_paused(struct sandbox *sb, const struct error *reason)
{
    struct error asleep = {0};

    (void)reason;
    (void)error_set_code(&asleep, ERR_SANDBOX_NOT_RUNNING, "sandbox '%s': hibernated", sb->id);
    if (sb->state == SANDBOX_PAUSING)
        sb->slept_wall_usec = clock_wall_usec();
    sb->held = false;
    sb->idle = source_free(sb->idle);
    set_state(sb, SANDBOX_PAUSED);
    take_drop_disk(sb);
    sandbox_drop_console(sb, &asleep);
    (void)sandbox_arm_lifetime(sb);
    take_finish(sb);
    wake_finish(sb);
}

static void enter_resuming(struct sandbox *sb, const struct error *reason)
{
    (void)reason;
    error_clear(&sb->failure);
    set_state(sb, SANDBOX_RESUMING);
    wake_resume(sb);
}

/* Back to a checkpoint: the VM that there is goes, then it is like any resume. */
static void enter_rollback(struct sandbox *sb, const struct error *reason)
{
    struct error back = {0};

    (void)reason;
    (void)error_set_code(&back, ERR_CANCELLED, "sandbox '%s': rolled back", sb->id);
    error_clear(&sb->failure);
    set_state(sb, SANDBOX_RESUMING);
    sandbox_drop_console(sb, &back);
    wake_resume(sb);
}

/* Its snapshot is still there: back to sleep, once the VM of the attempt is gone. */
static void resume_failed(struct sandbox *sb, const struct error *reason)
{
    struct error why = {0};

    if (wake_is_stuck(sb)) {
        enter_failed(sb, reason);
        return;
    }
    note_failure(sb, reason);
    error_copy(&why, &sb->failure);
    log_sandbox(LOG_LEVEL_WARNING, sb->id, "Failed to resume: %s", why.text);
    wake_abort(sb);
    sandbox_drop_console(sb, &why);
    wake_undo(sb);
}

static void resume_overdue(struct sandbox *sb, const struct error *reason)
{
    struct error late = {0};

    (void)reason;
    (void)error_set_code(&late, ERR_TIMEOUT, "sandbox '%s': resuming took too long", sb->id);
    resume_failed(sb, &late);
}

/* ---- ends ---- */

static void enter_stopping(struct sandbox *sb, const struct error *reason)
{
    struct error gone = {0};

    (void)reason;
    (void)error_set_code(&gone, ERR_SANDBOX_NOT_RUNNING, "sandbox '%s': removed", sb->id);
    set_state(sb, SANDBOX_STOPPING);
    let_go(sb, &gone);
    teardown_start(sb);
}

/* Creation failed: nothing of it is left, its maker hears why. */
static void undo_creation(struct sandbox *sb, const struct error *reason)
{
    note_failure(sb, reason);
    enter_stopping(sb, reason);
}

static void cancel_creation(struct sandbox *sb, const struct error *reason)
{
    (void)reason;
    (void)error_set_code(&sb->failure, ERR_CANCELLED,
                         "sandbox '%s': removed while it was being created", sb->id);
    enter_stopping(sb, NULL);
}

static void creation_overdue(struct sandbox *sb, const struct error *reason)
{
    (void)reason;
    (void)error_set_code(&sb->failure, ERR_TIMEOUT,
                         "sandbox '%s': creation took longer than %llu s", sb->id,
                         (unsigned long long)(state_timeouts[SANDBOX_CREATING] / USEC_PER_SEC));
    enter_stopping(sb, NULL);
}

/* The guest or its VMM broke: the row stays, with the reason, until somebody removes it. */
static void enter_failed(struct sandbox *sb, const struct error *reason)
{
    note_failure(sb, reason);
    set_state(sb, SANDBOX_FAILED);
    let_go(sb, &sb->failure);
    sandbox_drop_console(sb, &sb->failure);
    sandbox_kill_vm(sb);
}

/* The VM is of no use any more once all it was is written down. */
static void pausing_lost(struct sandbox *sb, const struct error *reason)
{
    if (!take_outlives_vm(sb))
        enter_failed(sb, reason);
}

/* First given up, so that the sandbox goes on; then it is lost. */
static void pause_overdue(struct sandbox *sb, const struct error *reason)
{
    struct error late = {0};

    (void)reason;
    if (take_cancel(sb)) {
        sandbox_arm_deadline(sb, state_timeouts[SANDBOX_PAUSING]);
        return;
    }
    (void)error_set_code(&late, ERR_TIMEOUT, "sandbox '%s': pausing took too long", sb->id);
    enter_failed(sb, &late);
}

static void enter_stopped(struct sandbox *sb, const struct error *reason)
{
    struct error off = {0};

    (void)reason;
    (void)error_set_code(&off, ERR_SANDBOX_NOT_RUNNING, "sandbox '%s': the guest powered off",
                         sb->id);
    set_state(sb, SANDBOX_STOPPED);
    let_go(sb, &off);
    sandbox_drop_console(sb, &off);
    sandbox_kill_vm(sb);
}

/* The VMM outlived its kill: not forgotten, so that a later removal can try again. */
static void stop_failed(struct sandbox *sb, const struct error *reason)
{
    note_failure(sb, reason);
    set_state(sb, SANDBOX_FAILED);
    teardown_failed(sb);
}

static void stop_overdue(struct sandbox *sb, const struct error *reason)
{
    struct error late = {0};

    (void)reason;
    (void)error_set_code(&late, ERR_TIMEOUT, "sandbox '%s': its VMM did not end in time", sb->id);
    stop_failed(sb, &late);
}

/* Nothing to do: it is already on its way there, or the news is old. */
static void nothing(struct sandbox *sb, const struct error *reason)
{
    (void)sb;
    (void)reason;
}

/* NULL marks a pair that cannot happen. */
static const transition_fn table[SANDBOX_STATE_COUNT][SANDBOX_EVENT_COUNT] = {
    /* clang-format off */
    /*                     ready          failed         guest-off      remove           expired          overdue           pause          paused        resume, rollback */
    [SANDBOX_CREATING] = { enter_running, undo_creation, undo_creation, cancel_creation, cancel_creation, creation_overdue, NULL,          NULL,         NULL, NULL },
    [SANDBOX_RUNNING]  = { NULL,          enter_failed,  enter_stopped, enter_stopping,  enter_stopping,  NULL,             enter_pausing, NULL,         nothing, enter_rollback },
    [SANDBOX_PAUSING]  = { enter_running, pausing_lost,  pausing_lost,  enter_stopping,  enter_stopping,  pause_overdue,    nothing,       enter_paused, cancel_pause, NULL },
    [SANDBOX_PAUSED]   = { NULL,          enter_failed,  enter_failed,  enter_stopping,  enter_stopping,  NULL,             nothing,       NULL,         enter_resuming, enter_resuming },
    [SANDBOX_RESUMING] = { enter_running, resume_failed, resume_failed, enter_stopping,  enter_stopping,  resume_overdue,   nothing,       enter_paused, nothing, NULL },
    [SANDBOX_STOPPING] = { NULL,          stop_failed,   nothing,       nothing,         nothing,         stop_overdue,     nothing,       nothing,      nothing, NULL },
    [SANDBOX_STOPPED]  = { NULL,          nothing,       nothing,       enter_stopping,  enter_stopping,  NULL,             NULL,          nothing,      NULL, enter_resuming },
    [SANDBOX_FAILED]   = { NULL,          nothing,       nothing,       enter_stopping,  enter_stopping,  NULL,             NULL,          nothing,      NULL, enter_resuming },
    /* clang-format on */
};

int sandbox_event(struct sandbox *sb, enum sandbox_event event, const struct error *reason)
{
    transition_fn fn = table[sb->state][event];

    if (!fn) {
        log_sandbox(LOG_LEVEL_ERROR, sb->id, "Event '%s' cannot happen in state '%s', ignoring",
                    event_names[event], sandbox_state_name(sb->state));
        return -EBADMSG;
    }
    log_sandbox(LOG_LEVEL_DEBUG, sb->id, "Event '%s' in state '%s'", event_names[event],
                sandbox_state_name(sb->state));
    fn(sb, reason);
    return 0;
}
