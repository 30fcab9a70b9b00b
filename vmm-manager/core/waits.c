#include <stdlib.h>

#include "base/log.h"
#include "core/lifecycle.h"
#include "core/sandbox-private.h"
#include "core/take.h"

/*
 * Theory of operation. Those who wait are looked at from the loop whenever the sandbox's state, or
 * what it is held for, has changed. A wait for use ends when the console is there and nothing holds
 * the sandbox; one for sleep when it is paused. A sandbox that fell asleep while somebody waits to
 * use it is woken again here.
 */
enum wait_kind {
    WAIT_USE,
    WAIT_SLEEP,
};

struct sandbox_wait {
    struct sandbox *sandbox; /* weak; NULL once told */
    enum wait_kind kind;
    struct sandbox_wait_callbacks cb;
    void *userdata;
    bool seen; /* by the look that is under way */
    struct sandbox_wait *next;
};

static void unlist(struct sandbox_wait *w)
{
    for (struct sandbox_wait **p = &w->sandbox->waits; *p; p = &(*p)->next) {
        if (*p == w) {
            *p = w->next;
            break;
        }
    }
    w->sandbox = NULL;
}

struct sandbox_wait *sandbox_wait_free(struct sandbox_wait *w)
{
    if (!w)
        return NULL;
    if (w->sandbox)
        unlist(w);
    free(w);
    return NULL;
}

static int wait_new(struct sandbox *sb, enum wait_kind kind,
                    const struct sandbox_wait_callbacks *cb, void *userdata,
                    struct sandbox_wait **ret, struct error *err)
{
    struct sandbox_wait *w = calloc(1, sizeof(*w));

    if (!w)
        return error_set(err, ENOMEM, "sandbox '%s': out of memory", sb->id);
    w->sandbox = sb;
    w->kind = kind;
    w->cb = *cb;
    w->userdata = userdata;
    w->next = sb->waits;
    sb->waits = w;
    *ret = w;
    return 0;
}

bool sandbox_waits_use(const struct sandbox *sb)
{
    for (const struct sandbox_wait *w = sb->waits; w; w = w->next) {
        if (w->kind == WAIT_USE)
            return true;
    }
    return false;
}

void sandbox_waits_progress(struct sandbox *sb, const char *step, int percent)
{
    for (struct sandbox_wait *w = sb->waits; w; w = w->next) {
        if (w->cb.on_progress)
            w->cb.on_progress(step, percent, w->userdata);
    }
}

/* The wait is over: `sb` NULL when the sandbox is gone. The wait may be freed by the call. */
static void tell(struct sandbox_wait *w, struct sandbox *sb, const struct error *err)
{
    unlist(w);
    w->cb.on_done(sb, err, w->userdata);
}

/* 1: over, well when err is unset; 0: goes on. */
static int look(const struct sandbox *sb, enum wait_kind kind, struct error *err)
{
    switch (sb->state) {
    case SANDBOX_RUNNING:
        if (kind == WAIT_SLEEP && sb->pause_wanted)
            return 0;
        if (kind == WAIT_SLEEP) {
            if (sb->pause_error.errnum)
                error_copy(err, &sb->pause_error);
            else
                (void)error_set_code(err, ERR_CANCELLED, "sandbox '%s': woken again", sb->id);
            return 1;
        }
        return !sb->held && (guest_link_console(sb->link) || !sb->reconnecting);
    case SANDBOX_PAUSED:
        if (kind == WAIT_SLEEP)
            return 1;
        if (!sb->failure.errnum)
            return 0; /* woken below */
        error_copy(err, &sb->failure);
        return 1;
    case SANDBOX_CREATING:
    case SANDBOX_PAUSING:
    case SANDBOX_RESUMING:
        return 0;
    case SANDBOX_STOPPING:
    case SANDBOX_STOPPED:
    case SANDBOX_FAILED:
        if (sb->state == SANDBOX_FAILED)
            (void)error_set_code(err, ERR_SANDBOX_FAILED, "sandbox '%s' has failed: %s", sb->id,
                                 sb->failure.text);
        else
            (void)error_set_code(err, ERR_SANDBOX_NOT_RUNNING,
                                 "sandbox '%s' is not running: it is %s", sb->id,
                                 sandbox_state_name(sb->state));
        return 1;
    }
    return 0;
}

static int on_kick(struct source *s, void *userdata)
{
    struct sandbox *sb = userdata;
    struct sandbox_wait *w;

    (void)s;
    sb->waits_kick = source_free(sb->waits_kick);
    for (w = sb->waits; w; w = w->next)
        w->seen = false;
    /* From the start each time: a call may free other waits, or change the sandbox. */
    for (;;) {
        struct error err = {0};

        for (w = sb->waits; w && w->seen; w = w->next)
            continue;
        if (!w)
            break;
        w->seen = true;
        if (look(sb, w->kind, &err) != 0)
            tell(w, sb, err.errnum ? &err : NULL);
    }
    if (sb->state == SANDBOX_PAUSED && sandbox_waits_use(sb))
        return sandbox_event(sb, EVENT_RESUME, NULL);
    return 0;
}

void sandbox_waits_kick(struct sandbox *sb)
{
    if (!sb->waits || sb->waits_kick || sb->core->closing)
        return;
    if (loop_add_defer(sb->core->loop, "sandbox-waits", on_kick, sb, &sb->waits_kick) < 0)
        log_sandbox(LOG_LEVEL_ERROR, sb->id, "Failed to tell those who wait: out of memory");
}

void sandbox_waits_end(struct sandbox *sb, const struct error *reason)
{
    sb->waits_kick = source_free(sb->waits_kick);
    while (sb->waits)
        tell(sb->waits, NULL, reason);
}

/* ---- for clients ---- */

int sandbox_touch(struct sandbox *sb, const struct sandbox_wait_callbacks *cb, void *userdata,
                  struct sandbox_wait **ret, struct error *err)
{
    int r;

    sandbox_used(sb);
    if (sb->pause_wanted) {
        sb->pause_wanted = false;
        error_clear(&sb->pause_error);
        sandbox_waits_kick(sb);
    }
    if (sb->state == SANDBOX_RUNNING && !sb->held)
        return 1; /* its console may be looked for again: sandbox_console() tells */
    if (sb->state != SANDBOX_RUNNING && sb->state != SANDBOX_PAUSING &&
        sb->state != SANDBOX_PAUSED && sb->state != SANDBOX_RESUMING) {
        (void)sandbox_console(sb, err);
        return -err->errnum;
    }
    if (sb->state == SANDBOX_PAUSED)
        error_clear(&sb->failure); /* of the last try */
    r = wait_new(sb, WAIT_USE, cb, userdata, ret, err);
    if (r < 0)
        return r;
    if (sb->state == SANDBOX_PAUSING)
        (void)sandbox_event(sb, EVENT_RESUME, NULL);
    sandbox_waits_kick(sb);
    return 0;
}

int sandbox_hibernate(struct sandbox *sb, const struct sandbox_wait_callbacks *cb, void *userdata,
                      struct sandbox_wait **ret, struct error *err)
{
    int r;

    if (sb->state == SANDBOX_PAUSED)
        return 1;
    if (sb->state == SANDBOX_CREATING || sb->state == SANDBOX_RESUMING)
        return error_set_code(err, ERR_CONFLICT, "sandbox '%s': it is %s", sb->id,
                              sandbox_state_name(sb->state));
    if (sb->state != SANDBOX_PAUSING && !(sb->state == SANDBOX_RUNNING && sb->take) &&
        !sandbox_console(sb, err))
        return -err->errnum;
    r = sandbox_can_snapshot(sb, err);
    if (r < 0)
        return r;
    r = wait_new(sb, WAIT_SLEEP, cb, userdata, ret, err);
    if (r < 0)
        return r;
    if (sb->state == SANDBOX_RUNNING && sb->take)
        sb->pause_wanted = true; /* when the snapshot that is being taken is done */
    else
        (void)sandbox_event(sb, EVENT_PAUSE, NULL);
    return 0;
}
