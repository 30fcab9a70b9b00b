#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/create-private.h"
#include "core/events.h"
#include "core/image-defaults.h"
#include "core/lifecycle.h"
#include "core/pool.h"
#include "core/resolve-cache.h"
#include "core/timeouts.h"

/*
 * Theory of operation. A claimed sandbox has run for a while as nobody's. Now it gets its owner's
 * spec, a row without the mark, and a thaw: fresh entropy, the wall clock, its host name.
 *
 * The answer waits for one short write: store-claims.c has a note of it that outlives the daemon.
 * The row itself, the log and the thaw come a moment later.
 *
 * Nor does it wait for the guest, which would cost more than all the rest: waking it takes a
 * processor. The thaw is sent when somebody first asks for the console, or a moment later. The
 * console is one ordered stream, and hearth-init applies a thaw before it looks at the next request
 * as long as no process runs, which is so after the warm-up: no instruction of a user comes before
 * it. A guest that cannot be thawed fails. Where processes of the template run on, the thaw is done
 * beside them; then a claim that changes the host name waits for its end.
 */
#define THAW_DELAY_USEC (3 * USEC_PER_MSEC)
#define FOLD_DELAY_USEC (50 * USEC_PER_MSEC)
#define FOLD_RETRY_USEC USEC_PER_SEC

/* ---- thaw ---- */

static int on_answer(struct source *s, void *userdata)
{
    struct sandbox *sb = userdata;

    (void)s;
    sb->creation->answer = source_free(sb->creation->answer);
    if (sb->state == SANDBOX_RUNNING) {
        creation_finish(sb);
        return 0;
    }
    creation_report_failure(sb);
    if (sb->state != SANDBOX_STOPPING)
        (void)sandbox_remove(sb, NULL, NULL);
    return 0;
}

static int answer_soon(struct sandbox *sb)
{
    return loop_add_defer(sb->core->loop, "claim", on_answer, sb, &sb->creation->answer);
}

static void on_thawed(struct console *c, const struct error *err, void *userdata)
{
    struct sandbox *sb = userdata;
    struct error why = {0};

    (void)c;
    if (err) {
        error_copy(&why, err);
        error_wrap(&why, "sandbox '%s': claim", sb->id);
        (void)sandbox_event(sb, EVENT_FAILED, &why);
    }
    if (sb->creation && !sb->creation->answer && answer_soon(sb) < 0)
        log_sandbox(LOG_LEVEL_ERROR, sb->id, "Failed to tell that it runs: out of memory");
}

static int thaw(struct sandbox *sb)
{
    struct link_identity identity;
    struct console_identity given = {
        .hostname = identity.hostname,
        .machine_id = identity.machine_id,
        .boot_id = identity.boot_id,
    };

    log_sandbox(LOG_LEVEL_INFO, sb->id, "Claimed from the pool of template '%s'", sb->template_id);
    sandbox_identity(sb, &identity);
    return console_thaw(guest_link_console(sb->link), &given,
                        clock_now_usec() + core_answer_timeout_usec(sb->core), on_thawed, sb);
}

void claim_settle(struct sandbox *sb)
{
    struct error err = {0};
    int r;

    if (!sb->late_thaw || !guest_link_console(sb->link))
        return;
    sb->late_thaw = source_free(sb->late_thaw);
    r = thaw(sb);
    if (r >= 0)
        return;
    (void)error_set(&err, -r, "sandbox '%s': claim: %s", sb->id, errno_text(-r));
    (void)sandbox_event(sb, EVENT_FAILED, &err);
}

static int on_late_thaw(struct source *s, uint64_t now_usec, void *userdata)
{
    struct sandbox *sb = userdata;

    if (!guest_link_console(sb->link)) /* being looked for again */
        return source_set_time(s, now_usec + 10 * THAW_DELAY_USEC);
    claim_settle(sb);
    return 0;
}

/* ---- its row ---- */

static int on_fold(struct source *s, uint64_t now_usec, void *userdata)
{
    struct core *core = userdata;
    struct error err = {0};

    if (store_fold(core->store, &err) < 0) {
        log_warning("Failed to write the rows of claims: %s; again in a second", err.text);
        return source_set_time(s, now_usec + FOLD_RETRY_USEC);
    }
    core->claims_fold = source_free(core->claims_fold);
    return 0;
}

/* Without memory for the timer the rows are written with the next ones. */
static void fold_soon(struct core *core)
{
    if (!core->claims_fold)
        (void)loop_add_timer(core->loop, "claims-fold", clock_now_usec() + FOLD_DELAY_USEC, on_fold,
                             core, &core->claims_fold);
}

/* ---- claim ---- */

/* The owner's spec in place of the pool's. */
static int take_over(struct sandbox *sb, const struct sandbox_spec *spec)
{
    const struct resolution *known = resolve_cache_peek(sb->core, spec); /* pool_claim() looked */
    struct sandbox_spec copy;
    int r;

    r = sandbox_spec_copy(spec, &copy);
    if (r < 0)
        return r;
    if (known && known->config && image_defaults(&copy, known->config) < 0) {
        sandbox_spec_done(&copy);
        return -ENOMEM;
    }
    sandbox_spec_done(&sb->spec);
    sb->spec = copy;
    sb->pooled = false;
    sb->created_wall_usec = clock_wall_usec();
    link_identity_name(&sb->identity, spec->name ? spec->name : sb->id);
    core_move_last(sb->core, sb); /* the list is by age */
    return 0;
}

static int start_thaw(struct sandbox *sb, bool waits)
{
    return waits ? thaw(sb)
                 : loop_add_timer(sb->core->loop, "claim-thaw", clock_now_usec() + THAW_DELAY_USEC,
                                  on_late_thaw, sb, &sb->late_thaw);
}

int creation_claim(struct sandbox *sb, const struct sandbox_spec *spec, bool at_once,
                   const struct sandbox_create_callbacks *cb, void *userdata, struct error *err)
{
    uint64_t began = clock_now_usec();
    bool waits = spec->name && template_has_recipe(sb->core, sb->template_id);
    int r;

    r = take_over(sb, spec);
    if (r >= 0)
        r = sandbox_arm_lifetime(sb);
    if (r >= 0 && (!at_once || waits)) {
        sb->creation = creation_new(sb, cb, userdata);
        r = sb->creation ? 0 : -ENOMEM;
    }
    if (r >= 0 && !at_once && !waits)
        r = answer_soon(sb);
    if (r >= 0)
        r = start_thaw(sb, waits);
    if (r < 0)
        return error_set(err, -r, "sandbox '%s': claim: %s", sb->id, errno_text(-r));
    sb->timings = (struct timings){.claimed = true, .total_usec = clock_now_usec() - began};
    r = sandbox_store_claim(sb, err);
    if (r < 0)
        return r;
    (void)fault_at("claim-noted");
    fold_soon(sb->core);
    sandbox_used(sb);
    sandbox_arm_idle(sb);
    core_tell(sb, sandbox_state_name(SANDBOX_CREATING));
    core_tell(sb, sandbox_state_name(SANDBOX_RUNNING));
    sb->timings.total_usec = clock_now_usec() - began;
    return !sb->creation;
}
