#include "base/clock.h"
#include "base/log.h"
#include "core/lifecycle.h"
#include "core/take-private.h"
#include "core/timeouts.h"

#define RELINK_PAUSE_USEC (50 * USEC_PER_MSEC)

/* ---- the way back ---- */

static void released(struct take *t)
{
    struct sandbox *sb = t->sandbox;
    struct error err = {0};

    t->release = RELEASE_DONE;
    sb->held = false;
    t->figures.still_usec = t->freeze_usec ? clock_now_usec() - t->freeze_usec : 0;
    if (t->paused_usec)
        log_sandbox(LOG_LEVEL_INFO, sb->id, "Goes on after %llu us of standing still",
                    (unsigned long long)(clock_now_usec() - t->paused_usec));
    if (take_is_sleep(t)) {
        error_copy(&sb->pause_error, &t->err);
        (void)sandbox_event(sb, EVENT_READY, NULL);
    } else if (sandbox_store(sb, &err) < 0) {
        log_sandbox(LOG_LEVEL_WARNING, sb->id, "Failed to store its row: %s, ignoring", err.text);
    }
    sandbox_waits_kick(sb);
    if (t->busy == 0)
        take_end(t);
}

/* The guest cannot be let go: then it is lost. */
static void release_failed(struct take *t, const struct error *err)
{
    struct error why = *err;

    error_wrap(&why, "sandbox '%s': it does not go on after a snapshot", t->sandbox->id);
    (void)sandbox_event(t->sandbox, EVENT_FAILED, &why);
}

static void release_relink(struct take *t)
{
    struct sandbox *sb = t->sandbox;
    struct error reason = {0};
    int r;

    if (t->release != RELEASE_RELINK) {
        t->release = RELEASE_RELINK;
        sb->reconnecting = true;
        sb->reconnect_until_usec = clock_now_usec() + core_answer_timeout_usec(sb->core);
    }
    (void)error_set_code(&reason, ERR_UNAVAILABLE,
                         "sandbox '%s': its console was closed by a snapshot; ask again", sb->id);
    sandbox_drop_console(sb, &reason);
    r = sandbox_reconnect(sb);
    if (r < 0) {
        (void)error_set(&reason, -r, "connect: %s", errno_text(-r));
        release_failed(t, &reason);
    }
}

static int on_relink(struct source *s, uint64_t now_usec, void *userdata)
{
    struct take *t = userdata;

    (void)s;
    (void)now_usec;
    t->soon = source_free(t->soon);
    release_relink(t);
    return 0;
}

/* A connection may still meet the end of the one before it. */
static void relink_broken(struct take *t, const struct error *reason)
{
    uint64_t now = clock_now_usec();

    t->soon = source_free(t->soon);
    if (reason->code != ERR_GUEST_PROTOCOL && now < t->sandbox->reconnect_until_usec &&
        loop_add_timer(t->sandbox->core->loop, "take-relink", now + RELINK_PAUSE_USEC, on_relink, t,
                       &t->soon) >= 0)
        return;
    release_failed(t, reason);
}

void take_reconnected(struct sandbox *sb)
{
    if (sb->take && sb->take->release == RELEASE_RELINK)
        released(sb->take);
}

static void on_continued(struct guest_link *link, void *userdata)
{
    struct sandbox *sb = userdata;
    struct take *t = sb->take;

    (void)link;
    if (!t || t->release != RELEASE_CONTINUE)
        return;
    t->frozen = false;
    released(t);
}

/* All that was under way when the guest was frozen goes on with it. */
static void release_continue(struct take *t)
{
    static const struct guest_link_callbacks callbacks = {on_continued, sandbox_console_broken};
    struct sandbox *sb = t->sandbox;

    t->release = RELEASE_CONTINUE;
    if (guest_link_continue(sb->link, clock_now_usec() + core_answer_timeout_usec(sb->core),
                            &callbacks, sb) < 0)
        release_relink(t);
}

static void on_thawed(struct console *c, const struct error *err, void *userdata)
{
    struct take *t = userdata;

    (void)c;
    if (t->release != RELEASE_THAW)
        return;
    if (!err) {
        t->frozen = false;
        released(t);
        return;
    }
    log_sandbox(LOG_LEVEL_WARNING, t->sandbox->id, "Thaw failed: %s; connecting again", err->text);
    t->frozen = false; /* a new connection finds out */
    take_release(t);
}

static void release_thaw(struct take *t)
{
    struct sandbox *sb = t->sandbox;
    struct console *console = guest_link_console(sb->link);
    const struct console_identity identity = {
        .hostname = sb->identity.hostname,
        .machine_id = sb->identity.machine_id,
        .boot_id = sb->identity.boot_id,
    };

    if (t->step == TAKE_PREPARE && console && !sb->held) {
        released(t); /* nothing was done to the guest */
        return;
    }
    if (guest_link_parked(sb->link)) {
        release_continue(t);
        return;
    }
    if (!console || !t->frozen || t->cut_off) {
        release_relink(t);
        return;
    }
    t->release = RELEASE_THAW;
    if (console_thaw(console, &identity, clock_now_usec() + core_answer_timeout_usec(sb->core),
                     on_thawed, t) < 0)
        release_relink(t);
}

static void on_resumed(const struct error *err, void *userdata)
{
    struct take *t = userdata;

    if (!take_end_call(t))
        return;
    if (err) {
        release_failed(t, err);
        return;
    }
    t->paused = false;
    release_thaw(t);
}

static void release_resume(struct take *t)
{
    struct sandbox *sb = t->sandbox;
    struct backend *backend = sb->slot->backend;
    struct error err = {0};
    int r;

    if (!t->paused) {
        release_thaw(t);
        return;
    }
    t->release = RELEASE_RESUME;
    take_begin_call(t);
    r = backend->ops->resume(backend, sb->id, on_resumed, t);
    if (r < 0) {
        (void)error_set(&err, -r, "resume: %s", errno_text(-r));
        on_resumed(&err, t);
    }
}

static int on_soon(struct source *s, void *userdata)
{
    struct take *t = userdata;

    (void)s;
    t->soon = source_free(t->soon);
    release_resume(t);
    return 0;
}

void take_release(struct take *t)
{
    struct error err = {0};
    int r;

    if (t->vm_lost) {
        t->release = RELEASE_DONE; /* there is nothing to go on with */
        (void)sandbox_event(t->sandbox, EVENT_FAILED, &t->err);
        return;
    }
    if (t->release == RELEASE_SOON)
        return;
    t->release = RELEASE_SOON;
    r = loop_add_defer(t->sandbox->core->loop, "take-release", on_soon, t, &t->soon);
    if (r < 0) {
        (void)error_set(&err, -r, "%s", errno_text(-r));
        release_failed(t, &err);
    }
}

bool take_console_broken(struct sandbox *sb, const struct error *reason)
{
    struct take *t = sb->take;
    struct error why = *reason;

    if (!t || !sb->held)
        return false;
    if (t->release == RELEASE_RELINK) {
        relink_broken(t, &why);
        return true;
    }
    if (t->release == RELEASE_CONTINUE) {
        release_relink(t);
        return true;
    }
    /* Calls to it have failed by now; the way back connects again. */
    sandbox_drop_console(sb, &why);
    return true;
}
