#include "core/timeouts.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "core/lifecycle.h"
#include "core/sandbox-private.h"
#include "core/take.h"

#define BOOT_KVM_USEC (30 * USEC_PER_SEC)
#define BOOT_EMULATED_USEC (120 * USEC_PER_SEC)
#define ANSWER_USEC (20 * USEC_PER_SEC)
#define RESTORE_USEC (60 * USEC_PER_SEC)
#define SAVE_USEC (60 * USEC_PER_SEC)
#define WARM_USEC (60 * USEC_PER_SEC)
#define STEP_USEC (3600 * USEC_PER_SEC)
#define RECONNECT_USEC (10 * USEC_PER_SEC)
#define FREEZE_USEC (60 * USEC_PER_SEC)
#define SNAPSHOT_USEC (60 * USEC_PER_SEC)
#define SNAPSHOT_MIB_USEC (20 * USEC_PER_MSEC) /* and for each MiB of memory: 50 MiB/s */
#define RETRY_SLEEP_USEC (60 * USEC_PER_SEC)   /* after a pause that failed */

uint64_t core_boot_timeout_usec(const struct core *core, const char *accelerator)
{
    if (core->answer_timeout_usec)
        return core->answer_timeout_usec;
    return strcmp(accelerator, "kvm") == 0 ? BOOT_KVM_USEC : BOOT_EMULATED_USEC;
}

uint64_t core_answer_timeout_usec(const struct core *core)
{
    return core->answer_timeout_usec ? core->answer_timeout_usec : ANSWER_USEC;
}

uint64_t core_reconnect_timeout_usec(const struct core *core)
{
    return core->answer_timeout_usec ? core->answer_timeout_usec : RECONNECT_USEC;
}

/* Where guests may take long, so may their VMMs. */
static uint64_t at_least(uint64_t usec, const struct core *core)
{
    return MAX(usec, core->answer_timeout_usec);
}

uint64_t core_restore_timeout_usec(const struct core *core)
{
    return at_least(RESTORE_USEC, core);
}

uint64_t core_save_timeout_usec(const struct core *core)
{
    return at_least(SAVE_USEC, core);
}

uint64_t core_warm_timeout_usec(const struct core *core)
{
    return at_least(WARM_USEC, core);
}

uint64_t core_step_timeout_usec(void)
{
    return STEP_USEC;
}

static int on_deadline(struct source *s, uint64_t now_usec, void *userdata)
{
    (void)s;
    (void)now_usec;
    return sandbox_event(userdata, EVENT_OVERDUE, NULL);
}

void sandbox_arm_deadline(struct sandbox *sb, uint64_t timeout_usec)
{
    int r;

    sb->deadline = source_free(sb->deadline);
    if (timeout_usec == USEC_INFINITY)
        return;
    r = loop_add_timer(sb->core->loop, "sandbox-deadline", clock_now_usec() + timeout_usec,
                       on_deadline, sb, &sb->deadline);
    if (r < 0)
        (void)log_warning_errno(r, "Failed to set the deadline of sandbox '%s', ignoring", sb->id);
}

uint64_t core_freeze_timeout_usec(const struct core *core)
{
    return at_least(FREEZE_USEC, core);
}

uint64_t core_snapshot_timeout_usec(const struct core *core, uint32_t memory_mib)
{
    return at_least(SNAPSHOT_USEC, core) + memory_mib * SNAPSHOT_MIB_USEC;
}

/* ---- the end of its life, or of its sleep ---- */

static int on_lifetime(struct source *s, uint64_t now_usec, void *userdata)
{
    struct sandbox *sb = userdata;

    if (sb->state != SANDBOX_PAUSED && sandbox_spec_hibernates(&sb->spec)) {
        if (sb->state != SANDBOX_RUNNING)
            return 0; /* armed again when it runs */
        log_sandbox(LOG_LEVEL_NOTICE, sb->id, "Life time of %u s is over: to sleep",
                    sb->spec.timeout_sec);
        if (!sb->take && sandbox_can_snapshot(sb, NULL) >= 0)
            (void)sandbox_event(sb, EVENT_PAUSE, NULL);
        return sb->state == SANDBOX_RUNNING ? source_set_time(s, now_usec + RETRY_SLEEP_USEC) : 0;
    }
    log_sandbox(LOG_LEVEL_NOTICE, sb->id, "%s of %u s is over",
                sb->state == SANDBOX_PAUSED ? "Time asleep" : "Life time",
                sb->state == SANDBOX_PAUSED ? sb->spec.retention_sec : sb->spec.timeout_sec);
    return sandbox_event(sb, EVENT_EXPIRED, NULL);
}

/* A life that ends in sleep begins anew with every resume. */
/* One that sleeps at the end of its time gets all of it anew when it wakes. */
static uint64_t lifetime_since(const struct sandbox *sb)
{
    return sandbox_spec_hibernates(&sb->spec) ? MAX(sb->created_wall_usec, sb->woken_wall_usec)
                                              : sb->created_wall_usec;
}

uint64_t sandbox_expires_wall_usec(const struct sandbox *sb)
{
    uint64_t since = lifetime_since(sb), expires = 0, retained;
    bool sleeps = sandbox_spec_hibernates(&sb->spec);

    if (sb->spec.timeout_sec > 0 && !(sleeps && sb->state == SANDBOX_PAUSED))
        expires = since + sb->spec.timeout_sec * USEC_PER_SEC;
    if (sb->state == SANDBOX_PAUSED && sb->spec.retention_sec > 0) {
        retained = sb->slept_wall_usec + sb->spec.retention_sec * USEC_PER_SEC;
        if (expires == 0 || retained < expires)
            expires = retained;
    }
    return expires;
}

int sandbox_set_timeout(struct sandbox *sb, uint32_t sec, struct error *err)
{
    uint64_t now = clock_wall_usec(), since = lifetime_since(sb);
    uint64_t lived = now > since ? (now - since) / USEC_PER_SEC : 0;
    int r;

    sb->spec.timeout_sec = (uint32_t)MIN(MAX(lived + sec, UINT64_C(1)), (uint64_t)UINT32_MAX);
    r = sandbox_store(sb, err);
    if (r < 0)
        return r;
    r = sandbox_arm_lifetime(sb);
    return r < 0 ? error_set(err, -r, "sandbox '%s': %s", sb->id, errno_text(-r)) : 0;
}

int sandbox_arm_lifetime(struct sandbox *sb)
{
    uint64_t expires = sandbox_expires_wall_usec(sb), now = clock_wall_usec();

    sb->lifetime = source_free(sb->lifetime);
    if (expires == 0)
        return 0;
    return loop_add_timer(sb->core->loop, "sandbox-lifetime",
                          clock_now_usec() + (expires > now ? expires - now : 0), on_lifetime, sb,
                          &sb->lifetime);
}

/* ---- nobody uses it ---- */

void sandbox_used(struct sandbox *sb)
{
    sb->used_usec = clock_now_usec();
}

static int on_idle(struct source *s, uint64_t now_usec, void *userdata)
{
    struct sandbox *sb = userdata;
    uint64_t idle = sb->spec.idle_sec * USEC_PER_SEC;

    if (sb->state != SANDBOX_RUNNING)
        return 0;
    if (sb->watches || sb->take || sandbox_waits_use(sb) || sandbox_sessions_busy(sb))
        sandbox_used(sb);
    if (now_usec < sb->used_usec + idle)
        return source_set_time(s, sb->used_usec + idle);
    log_sandbox(LOG_LEVEL_NOTICE, sb->id, "Nobody used it for %u s: to sleep", sb->spec.idle_sec);
    sandbox_used(sb); /* if it cannot, the next try comes after as long again */
    if (sandbox_can_snapshot(sb, NULL) < 0)
        return 0;
    return sandbox_event(sb, EVENT_PAUSE, NULL);
}

void sandbox_arm_idle(struct sandbox *sb)
{
    int r;

    sb->idle = source_free(sb->idle);
    if (sb->spec.idle_sec == 0)
        return;
    r = loop_add_timer(sb->core->loop, "sandbox-idle",
                       clock_now_usec() + sb->spec.idle_sec * USEC_PER_SEC, on_idle, sb, &sb->idle);
    if (r < 0)
        (void)log_warning_errno(r, "Failed to watch whether '%s' is used, ignoring", sb->id);
}
