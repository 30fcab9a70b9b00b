#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/create.h"
#include "core/events.h"
#include "core/lifecycle.h"
#include "core/pool.h"
#include "core/recover.h"
#include "core/sandbox-private.h"
#include "core/take.h"
#include "core/timeouts.h"
#include "core/wake.h"

#define RECONNECT_QUIET_USEC (60 * USEC_PER_SEC) /* two breaks within this are one too many */
#define RECONNECT_PAUSE_USEC (200 * USEC_PER_MSEC)

/* ---- making and finding ---- */

int sandbox_new(struct core *core, const struct sandbox_spec *spec, const char *id,
                struct sandbox **ret, struct error *err)
{
    struct sandbox *sb = calloc(1, sizeof(*sb));
    int r;

    if (!sb)
        return error_set(err, ENOMEM, "sandbox: out of memory");
    sb->core = core;
    sb->state = SANDBOX_CREATING;
    sb->created_wall_usec = clock_wall_usec();
    r = id ? snprintf(sb->id, sizeof(sb->id), "%s", id) : random_id(sb->id, SANDBOX_ID_LENGTH);
    if (r >= 0)
        r = sandbox_spec_copy(spec, &sb->spec);
    if (r >= 0) {
        sb->dir = string_printf("%s/%s", core->sandboxes_dir, sb->id);
        r = sb->dir ? 0 : -ENOMEM;
    }
    if (r < 0) {
        (void)sandbox_free(sb);
        return error_set(err, -r, "sandbox: %s", errno_text(-r));
    }
    link_identity_make(&sb->identity, sb->spec.name ? sb->spec.name : sb->id);
    *ret = sb;
    return 0;
}

void sandbox_quiesce(struct sandbox *sb)
{
    sandbox_sessions_free(sb);
    sb->link = guest_link_free(sb->link);
    sb->deadline = source_free(sb->deadline);
    sb->lifetime = source_free(sb->lifetime);
    sb->retry = source_free(sb->retry);
    sb->idle = source_free(sb->idle);
    sb->waits_kick = source_free(sb->waits_kick);
    take_quiesce(sb->take);
    sb->late_thaw = source_free(sb->late_thaw);
    creation_quiesce(sb);
}

struct sandbox *sandbox_free(struct sandbox *sb)
{
    struct error gone = {0};

    if (!sb)
        return NULL;
    sandbox_quiesce(sb);
    sb->creation = creation_free(sb->creation);
    sb->take = take_free(sb->take);
    sb->wake = wake_free(sb->wake);
    (void)error_set_code(&gone, ERR_SANDBOX_NOT_FOUND, "sandbox '%s': removed", sb->id);
    sandbox_waits_end(sb, &gone);
    while (sb->removals) {
        struct removal_waiter *waiter = sb->removals;

        sb->removals = waiter->next;
        free(waiter);
    }
    sandbox_text_free(sb);
    sandbox_spec_done(&sb->spec);
    free(sb->dir);
    free(sb);
    return NULL;
}

static bool is_of(const struct sandbox *sb, const char *tenant)
{
    return !tenant || strcmp(sandbox_spec_tenant(&sb->spec), tenant) == 0;
}

/* Another tenant's names do not count: they would tell of its sandboxes. */
static int name_is_free(struct core *core, const char *tenant, const char *name, struct error *err)
{
    for (size_t i = 0; i < core->n_sandboxes; i++) {
        const struct sandbox *sb = core->sandboxes[i];

        if (!is_of(sb, tenant))
            continue;
        if (strcmp(sb->id, name) == 0 || (sb->spec.name && strcmp(sb->spec.name, name) == 0))
            return error_set_code(err, ERR_ALREADY_EXISTS, "sandbox '%s': the name is taken", name);
    }
    return 0;
}

static int check_spec(struct core *core, const struct sandbox_spec *spec, struct error *err)
{
    if (spec->backend && !core_slot(core, spec->backend))
        return error_set_code(err, ERR_BACKEND_UNAVAILABLE, "backend '%s': unknown", spec->backend);
    return spec->name ? name_is_free(core, sandbox_spec_tenant(spec), spec->name, err) : 0;
}

static int add(struct core *core, const struct sandbox_spec *spec, bool pooled,
               struct sandbox **ret, struct error *err)
{
    struct sandbox *sb = NULL;
    int r;

    r = sandbox_new(core, spec, NULL, &sb, err);
    if (r < 0)
        return r;
    sb->pooled = pooled;
    r = core_add_sandbox(core, sb);
    if (r < 0) {
        (void)sandbox_free(sb);
        return error_set_code(err, ERR_TOO_MANY, "there are %u sandboxes, the limit of this host",
                              core->max_sandboxes);
    }
    r = sandbox_store(sb, err);
    if (r >= 0) {
        r = sandbox_arm_lifetime(sb);
        if (r < 0)
            (void)error_set(err, -r, "sandbox '%s': %s", sb->id, errno_text(-r));
    }
    if (r < 0) {
        sandbox_discard(sb);
        return r;
    }
    core_tell(sb, sandbox_state_name(SANDBOX_CREATING));
    sandbox_arm_deadline(sb, sandbox_state_timeout_usec(SANDBOX_CREATING));
    *ret = sb;
    return 0;
}

int sandbox_add(struct core *core, const struct sandbox_spec *spec, struct sandbox **ret,
                struct error *err)
{
    int r = check_spec(core, spec, err);

    return r < 0 ? r : add(core, spec, /* pooled= */ false, ret, err);
}

void sandbox_discard(struct sandbox *sb)
{
    (void)store_sandbox_delete(sb->core->store, sb->id, NULL);
    core_drop_sandbox(sb->core, sb);
    (void)sandbox_free(sb);
}

static int create(struct core *core, const struct sandbox_spec *spec, bool pooled,
                  const struct sandbox_create_callbacks *cb, void *userdata, struct sandbox **ret,
                  struct error *err)
{
    struct sandbox *sb = NULL;
    int r;

    r = add(core, spec, pooled, &sb, err);
    if (r < 0)
        return r;
    r = creation_start(sb, cb, userdata, err);
    if (r < 0) {
        sandbox_discard(sb);
        return r;
    }
    log_sandbox(LOG_LEVEL_INFO, sb->id, "Creating a sandbox of image '%s'%s",
                sb->spec.image ? sb->spec.image : "(of its template)",
                pooled ? " for its pool" : "");
    if (ret)
        *ret = sb;
    return 0;
}

int sandbox_create_pooled(struct core *core, const struct sandbox_spec *spec,
                          const struct sandbox_create_callbacks *cb, void *userdata,
                          struct sandbox **ret, struct error *err)
{
    return create(core, spec, /* pooled= */ true, cb, userdata, ret, err);
}

static int claim_or_create(struct core *core, const struct sandbox_spec *spec, bool at_once,
                           const struct sandbox_create_callbacks *cb, void *userdata,
                           struct sandbox **ret, struct error *err)
{
    struct sandbox *sb;
    int r;

    r = check_spec(core, spec, err);
    if (r < 0)
        return r;
    sb = pool_claim(core, spec);
    if (!sb)
        return create(core, spec, /* pooled= */ false, cb, userdata, ret, err);
    r = creation_claim(sb, spec, at_once, cb, userdata, err);
    if (r < 0) {
        sb->creation = creation_free(sb->creation);
        pool_give_up(sb);
        return r;
    }
    if (ret)
        *ret = sb;
    return r;
}

int sandbox_create(struct core *core, const struct sandbox_spec *spec,
                   const struct sandbox_create_callbacks *cb, void *userdata, struct sandbox **ret,
                   struct error *err)
{
    return claim_or_create(core, spec, /* at_once= */ false, cb, userdata, ret, err);
}

int sandbox_claim_or_create(struct core *core, const struct sandbox_spec *spec,
                            const struct sandbox_create_callbacks *cb, void *userdata,
                            struct sandbox **ret, struct error *err)
{
    return claim_or_create(core, spec, /* at_once= */ true, cb, userdata, ret, err);
}

void sandbox_create_forget(struct sandbox *sb, void *userdata)
{
    creation_forget(sb, userdata);
}

struct sandbox *sandbox_find(struct core *core, const char *id_or_name, struct error *err)
{
    return sandbox_find_in(core, /* tenant= */ NULL, id_or_name, err);
}

struct sandbox *sandbox_find_in(struct core *core, const char *tenant, const char *id_or_name,
                                struct error *err)
{
    struct sandbox *sb = core_sandbox_by_id(core, id_or_name);

    if (sb && (sb->pooled || !is_of(sb, tenant)))
        sb = NULL;

    for (size_t i = 0; !sb && i < core->n_sandboxes; i++) {
        struct sandbox *candidate = core->sandboxes[i];

        if (candidate->spec.name && strcmp(candidate->spec.name, id_or_name) == 0 &&
            is_of(candidate, tenant))
            sb = candidate;
    }
    if (!sb)
        (void)error_set_code(err, ERR_SANDBOX_NOT_FOUND, "sandbox '%.64s': no such sandbox",
                             id_or_name);
    return sb;
}

void sandbox_each(struct core *core, sandbox_each_fn fn, void *userdata)
{
    for (size_t i = 0; i < core->n_sandboxes; i++) {
        if (!core->sandboxes[i]->pooled)
            fn(core->sandboxes[i], userdata);
    }
}

/* ---- what it is ---- */

const char *sandbox_tenant(const struct sandbox *sb)
{
    return sandbox_spec_tenant(&sb->spec);
}

const char *sandbox_id(const struct sandbox *sb)
{
    return sb->id;
}

uint64_t sandbox_created_wall_usec(const struct sandbox *sb)
{
    return sb->created_wall_usec;
}

enum sandbox_state sandbox_get_state(const struct sandbox *sb)
{
    return sb->state;
}

const struct sandbox_spec *sandbox_get_spec(const struct sandbox *sb)
{
    return &sb->spec;
}

pid_t sandbox_pid(const struct sandbox *sb)
{
    return sb->vm.pid;
}

const char *sandbox_log_path(const struct sandbox *sb)
{
    return sb->vm.log_path;
}

void sandbox_vm_spec(const struct sandbox *sb, char disk[static 512], struct vm_spec *ret)
{
    (void)snprintf(disk, 512, "%s/disk", sb->dir);
    *ret = (struct vm_spec){
        .id = sb->id,
        .dir = sb->dir,
        .cpus = sb->origin.cpus,
        .memory_mib = sb->origin.memory_mib,
        .image = sb->origin.image_path,
        .disk = disk,
    };
}

void sandbox_identity(const struct sandbox *sb, struct link_identity *ret)
{
    *ret = sb->identity;
}

/* ---- the console ---- */

struct console *sandbox_console(struct sandbox *sb, struct error *err)
{
    struct console *console;

    if (sb->state == SANDBOX_RUNNING)
        claim_settle(sb);
    console = guest_link_console(sb->link);
    if (sb->state == SANDBOX_RUNNING && console && !sb->held)
        return console;
    if (sb->state == SANDBOX_RUNNING && sb->held)
        (void)error_set_code(err, ERR_UNAVAILABLE, "sandbox '%s': stands still for a snapshot",
                             sb->id);
    else if (sb->state == SANDBOX_RUNNING)
        (void)error_set_code(err, ERR_UNAVAILABLE, "sandbox '%s': its console is being reconnected",
                             sb->id);
    else if (sb->state == SANDBOX_FAILED)
        (void)error_set_code(err, ERR_SANDBOX_FAILED, "sandbox '%s' has failed: %s", sb->id,
                             sb->failure.text);
    else
        (void)error_set_code(err, ERR_SANDBOX_NOT_RUNNING, "sandbox '%s' is not running: it is %s",
                             sb->id, sandbox_state_name(sb->state));
    return NULL;
}

void sandbox_drop_console(struct sandbox *sb, const struct error *reason)
{
    if (sb->state != SANDBOX_RUNNING)
        sb->late_thaw = source_free(sb->late_thaw);
    if (sb->state != SANDBOX_RUNNING && sb->state != SANDBOX_PAUSING) {
        /* The machine is done with; the next one's console is not to be looked for again. */
        sb->retry = source_free(sb->retry);
        sb->reconnecting = false;
        sb->reconnected_usec = 0;
    }
    sandbox_notify_watches(sb, reason);
    sandbox_sessions_detach(sb, reason);
    sb->link = guest_link_free(sb->link);
    recovery_leave(sb, false);
}

static void on_reconnected(struct guest_link *link, void *userdata)
{
    struct sandbox *sb = userdata;

    (void)link;
    sb->reconnecting = false;
    sb->reconnected_usec = clock_now_usec();
    log_sandbox(LOG_LEVEL_NOTICE, sb->id, "Console is connected again");
    sandbox_sessions_adopt(sb);
    take_reconnected(sb);
    sandbox_waits_kick(sb);
}

int sandbox_reconnect(struct sandbox *sb)
{
    static const struct guest_link_callbacks callbacks = {on_reconnected, sandbox_console_broken};
    struct guest_link_options options = {
        .loop = sb->core->loop,
        .backend = sb->slot->backend,
        .vm_id = sb->id,
        .deadline_usec = sb->reconnect_until_usec,
        .thaw = LINK_THAW_UNLESS_THAWED,
    };
    struct link_identity identity;

    sandbox_identity(sb, &identity);
    options.identity = &identity;
    return guest_link_new(&options, &callbacks, sb, &sb->link);
}

static int on_retry(struct source *s, uint64_t now_usec, void *userdata)
{
    struct sandbox *sb = userdata;

    (void)s;
    sb->retry = source_free(sb->retry);
    if (sb->state != SANDBOX_RUNNING)
        return 0;
    if (now_usec < sb->reconnect_until_usec) {
        sandbox_drop_console(sb, &sb->break_reason);
        if (sandbox_reconnect(sb) >= 0)
            return 0;
    }
    sb->reconnecting = false;
    error_wrap(&sb->break_reason, "sandbox '%s'", sb->id);
    return sandbox_event(sb, EVENT_FAILED, &sb->break_reason);
}

/*
 * A guest that breaks the protocol is not asked again. After any other break the console is looked
 * for again for a while: the VMM may have dropped the socket. If it is the VMM that ends, its
 * sockets go before the process does; the pauses let its backend tell us first, with the true
 * reason.
 */
void sandbox_console_broken(struct guest_link *link, const struct error *reason, void *userdata)
{
    struct sandbox *sb = userdata;
    struct error why = *reason;
    uint64_t now = clock_now_usec();

    (void)link;
    log_sandbox(LOG_LEVEL_WARNING, sb->id, "Console broke: %s", why.text);
    if (take_console_broken(sb, &why))
        return;
    if (sb->state != SANDBOX_RUNNING) {
        sandbox_drop_console(sb, &why);
        return;
    }
    if (!sb->reconnecting) {
        bool again = sb->reconnected_usec == 0 || now - sb->reconnected_usec > RECONNECT_QUIET_USEC;

        sb->reconnect_until_usec = again ? now + core_reconnect_timeout_usec(sb->core) : now;
    }
    sb->reconnecting = true;
    error_copy(&sb->break_reason, &why);
    sb->retry = source_free(sb->retry);
    if (why.code != ERR_GUEST_PROTOCOL &&
        loop_add_timer(sb->core->loop, "console-retry", now + RECONNECT_PAUSE_USEC, on_retry, sb,
                       &sb->retry) >= 0)
        return;
    sb->reconnecting = false;
    error_wrap(&why, "sandbox '%s'", sb->id);
    (void)sandbox_event(sb, EVENT_FAILED, &why);
}
