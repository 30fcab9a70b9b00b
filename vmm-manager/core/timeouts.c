#include "core/timeouts.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "core/lifecycle.h"
#include "core/sandbox-private.h"

#define BOOT_KVM_USEC (30 * USEC_PER_SEC)
#define BOOT_EMULATED_USEC (120 * USEC_PER_SEC)
#define ANSWER_USEC (20 * USEC_PER_SEC)
#define RESTORE_USEC (60 * USEC_PER_SEC)
#define SAVE_USEC (60 * USEC_PER_SEC)
#define WARM_USEC (60 * USEC_PER_SEC)
#define RECONNECT_USEC (10 * USEC_PER_SEC)

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

uint64_t core_restore_timeout_usec(void)
{
    return RESTORE_USEC;
}

uint64_t core_save_timeout_usec(void)
{
    return SAVE_USEC;
}

uint64_t core_warm_timeout_usec(void)
{
    return WARM_USEC;
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

static int on_lifetime(struct source *s, uint64_t now_usec, void *userdata)
{
    struct sandbox *sb = userdata;

    (void)s;
    (void)now_usec;
    log_sandbox(LOG_LEVEL_NOTICE, sb->id, "Life time of %u s is over", sb->spec.timeout_sec);
    return sandbox_event(sb, EVENT_EXPIRED, NULL);
}

uint64_t sandbox_expires_wall_usec(const struct sandbox *sb)
{
    if (sb->spec.timeout_sec == 0)
        return 0;
    return sb->created_wall_usec + sb->spec.timeout_sec * USEC_PER_SEC;
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
