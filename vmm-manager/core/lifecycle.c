#include "core/lifecycle.h"

#include <assert.h>

#include "base/clock.h"
#include "base/log.h"
#include "core/create.h"
#include "core/sandbox-private.h"

/*
 * Theory of operation. A sandbox is always in one state; flows (create.c, recover.c, teardown.c)
 * and callbacks report events; the table below says for each pair what happens. STOPPING ends with
 * the sandbox gone, unless its VMM will not die: then it is FAILED and can be removed again. Each
 * state that waits for somebody has a deadline; the others last until the life time ends. Pausing
 * and resuming have their rows, so that an event that meets them is defined; nothing enters them
 * yet.
 */
typedef void (*transition_fn)(struct sandbox *sb, const struct error *reason);

static const char *const event_names[] = {
    [EVENT_READY] = "ready",   [EVENT_FAILED] = "failed",   [EVENT_GUEST_OFF] = "guest-off",
    [EVENT_REMOVE] = "remove", [EVENT_EXPIRED] = "expired", [EVENT_OVERDUE] = "overdue",
};
static_assert(ARRAY_SIZE(event_names) == SANDBOX_EVENT_COUNT, "every event has a name");

const char *sandbox_event_name(enum sandbox_event event)
{
    return event_names[event];
}

static const uint64_t state_timeouts[] = {
    [SANDBOX_CREATING] = 900 * USEC_PER_SEC, /* queueing, a template's boot, a clone's start */
    [SANDBOX_RUNNING] = USEC_INFINITY,       [SANDBOX_PAUSING] = 60 * USEC_PER_SEC,
    [SANDBOX_PAUSED] = USEC_INFINITY,        [SANDBOX_RESUMING] = 60 * USEC_PER_SEC,
    [SANDBOX_STOPPING] = 180 * USEC_PER_SEC, /* a call that cannot be taken back, then the kill */
    [SANDBOX_STOPPED] = USEC_INFINITY,       [SANDBOX_FAILED] = USEC_INFINITY,
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
    sandbox_arm_deadline(sb, state_timeouts[state]);
    if (sandbox_store(sb, &err) < 0)
        log_sandbox(LOG_LEVEL_WARNING, sb->id, "Failed to store the state: %s, ignoring", err.text);
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
    (void)reason;
    set_state(sb, SANDBOX_RUNNING);
    creation_finish(sb);
}

static void enter_stopping(struct sandbox *sb, const struct error *reason)
{
    (void)reason;
    set_state(sb, SANDBOX_STOPPING);
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
    sandbox_drop_console(sb, &sb->failure);
    sandbox_kill_vm(sb);
}

static void change_overdue(struct sandbox *sb, const struct error *reason)
{
    struct error late = {0};

    (void)reason;
    (void)error_set_code(&late, ERR_TIMEOUT, "sandbox '%s': %s took too long", sb->id,
                         sandbox_state_name(sb->state));
    enter_failed(sb, &late);
}

static void enter_stopped(struct sandbox *sb, const struct error *reason)
{
    struct error off = {0};

    (void)reason;
    (void)error_set_code(&off, ERR_SANDBOX_NOT_RUNNING, "sandbox '%s': the guest powered off",
                         sb->id);
    set_state(sb, SANDBOX_STOPPED);
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
    /*                     ready          failed         guest-off      remove           expired         overdue */
    [SANDBOX_CREATING] = { enter_running, undo_creation, undo_creation, cancel_creation, cancel_creation, creation_overdue },
    [SANDBOX_RUNNING]  = { NULL,          enter_failed,  enter_stopped, enter_stopping,  enter_stopping, NULL },
    [SANDBOX_PAUSING]  = { NULL,          enter_failed,  enter_stopped, enter_stopping,  enter_stopping, change_overdue },
    [SANDBOX_PAUSED]   = { NULL,          enter_failed,  enter_failed,  enter_stopping,  enter_stopping, NULL },
    [SANDBOX_RESUMING] = { enter_running, enter_failed,  enter_stopped, enter_stopping,  enter_stopping, change_overdue },
    [SANDBOX_STOPPING] = { NULL,          stop_failed,   nothing,       nothing,         nothing,        stop_overdue },
    [SANDBOX_STOPPED]  = { NULL,          nothing,       nothing,       enter_stopping,  enter_stopping, NULL },
    [SANDBOX_FAILED]   = { NULL,          nothing,       nothing,       enter_stopping,  enter_stopping, NULL },
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
