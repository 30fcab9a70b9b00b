#include "core/recover.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/create.h"
#include "core/guest-fate.h"
#include "core/lifecycle.h"
#include "core/pool.h"
#include "core/sandbox-private.h"
#include "core/snapshots.h"
#include "core/template-private.h"
#include "core/timeouts.h"

/*
 * Theory of operation. After a start the store says what there was, the VMs say what there is:
 *
 *   running             adopt the VM, connect, hello, find the sessions again; else it has failed
 *   pausing             as running, if the VM lives and the row does not say that all is saved;
 *                       without it paused, if a snapshot was sealed for that
 *   paused              kept; a VM that is left over is killed
 *   resuming            paused again: nobody has seen what the VM did meanwhile
 *   creating            half made: killed and removed
 *   stopping            the removal goes on
 *   stopped, failed     kept; a VM that is left over is killed
 *   pooled              adopted too, back into its pool; else removed
 *   transient, of a build  removed
 *   snapshots that no row needs and nobody named: removed
 *   directories without a row, half-made templates: VM of that name killed, directory removed
 *
 * A sandbox that was held for a snapshot may be paused and frozen: it is resumed and thawed.
 *
 * All of it runs at once; `left` counts what is under way, and the end is told when it is 0. A
 * sandbox that is being adopted is RUNNING (or PAUSING) with a console that is being connected:
 * whatever happens to it meanwhile takes the ordinary ways of the lifecycle table.
 */
#define ADOPT_PAUSE_USEC (50 * USEC_PER_MSEC)

struct kept_snapshot {
    char id[MANIFEST_ID_SIZE];
    char sandbox[65]; /* that is to resume from it; "" of a fork */
    uint64_t created_wall_usec;
    struct kept_snapshot *next; /* owned */
};

struct recovery {
    struct core *core;               /* weak */
    struct kept_snapshot *snapshots; /* owned list: those that go with their sandboxes */
    void (*done)(const struct error *err, void *userdata);
    void *userdata;
    unsigned left;
    struct source *finish; /* owned */
    unsigned n_adopted, n_failed, n_removed;
    uint64_t started_usec;
};

struct recovery *recovery_free(struct recovery *recovery)
{
    if (!recovery)
        return NULL;
    (void)source_free(recovery->finish);
    while (recovery->snapshots) {
        struct kept_snapshot *kept = recovery->snapshots;

        recovery->snapshots = kept->next;
        free(kept);
    }
    free(recovery);
    return NULL;
}

static int on_finish(struct source *s, void *userdata)
{
    struct recovery *recovery = userdata;
    struct core *core = recovery->core;
    void (*done)(const struct error *err, void *data) = recovery->done;
    void *data = recovery->userdata;

    (void)s;
    log_notice("Recovered: %u sandboxes adopted, %u failed, %u removed, %llu ms",
               recovery->n_adopted, recovery->n_failed, recovery->n_removed,
               (unsigned long long)((clock_now_usec() - recovery->started_usec) / USEC_PER_MSEC));
    core->recovery = recovery_free(recovery);
    pools_start(core);
    done(NULL, data);
    return 0;
}

static void leave(struct recovery *recovery)
{
    if (--recovery->left > 0)
        return;
    if (loop_add_defer(recovery->core->loop, "recovered", on_finish, recovery, &recovery->finish) <
        0)
        log_error("Failed to end the recovery: out of memory");
}

/* ---- running sandboxes ---- */

void recovery_leave(struct sandbox *sb, bool adopted)
{
    struct recovery *recovery = sb->core->recovery;

    if (!sb->adopting)
        return;
    sb->adopting = false;
    if (adopted)
        recovery->n_adopted++;
    else
        recovery->n_failed++;
    leave(recovery);
}

static void on_adopted_ready(struct guest_link *link, void *userdata)
{
    struct sandbox *sb = userdata;
    struct error err = {0};

    (void)link;
    sb->reconnecting = false;
    sb->held = false;
    log_sandbox(LOG_LEVEL_NOTICE, sb->id, "Sandbox is adopted");
    sandbox_sessions_adopt(sb);
    if (sb->pooled)
        pool_adopt(sb);
    recovery_leave(sb, true);
    sandbox_used(sb);
    if (sb->state == SANDBOX_PAUSING) {
        (void)sandbox_event(sb, EVENT_READY, NULL);
        return;
    }
    sandbox_arm_idle(sb);
    if (sandbox_store(sb, &err) < 0)
        log_sandbox(LOG_LEVEL_WARNING, sb->id, "Failed to store its row: %s, ignoring", err.text);
    sandbox_waits_kick(sb);
}

static void adopt_link(struct sandbox *sb);

static int on_adopt_retry(struct source *s, uint64_t now_usec, void *userdata)
{
    struct sandbox *sb = userdata;

    (void)s;
    (void)now_usec;
    sb->retry = source_free(sb->retry);
    if (sb->adopting)
        adopt_link(sb);
    return 0;
}

/* After a resume a connection may still meet the end of the one before it. */
static bool adopt_again(struct sandbox *sb, const struct error *err)
{
    uint64_t now = clock_now_usec();

    if (!sb->adopting || !sb->held || err->code == ERR_GUEST_PROTOCOL ||
        now >= sb->reconnect_until_usec)
        return false;
    sb->link = guest_link_free(sb->link);
    sb->retry = source_free(sb->retry);
    return loop_add_timer(sb->core->loop, "adopt-retry", now + ADOPT_PAUSE_USEC, on_adopt_retry, sb,
                          &sb->retry) >= 0;
}

static void on_adopted_broken(struct guest_link *link, const struct error *reason, void *userdata)
{
    struct sandbox *sb = userdata;
    struct error err = *reason;

    if (adopt_again(sb, &err))
        return;
    if (sb->adopting)
        guest_fate_explain("after a restart of the daemon", sb->vm.log_path, &err);
    if (sb->adopting && sb->state == SANDBOX_PAUSING)
        (void)sandbox_event(sb, EVENT_FAILED, &err);
    else
        sandbox_console_broken(link, &err, sb);
}

static void adopt_link(struct sandbox *sb)
{
    static const struct guest_link_callbacks callbacks = {on_adopted_ready, on_adopted_broken};
    const struct guest_link_options options = {
        .loop = sb->core->loop,
        .backend = sb->slot->backend,
        .vm_id = sb->id,
        .deadline_usec = clock_now_usec() + core_answer_timeout_usec(sb->core),
        /* A claim may have been cut off before its thaw; the same identity again does no harm. */
        .thaw = sb->timings.claimed ? LINK_THAW_ALWAYS : LINK_THAW_UNLESS_THAWED,
        .identity = &sb->identity,
    };
    struct error why = {0};
    int r = guest_link_new(&options, &callbacks, sb, &sb->link);

    if (r < 0) {
        (void)error_set(&why, -r, "sandbox '%s': connect: %s", sb->id, errno_text(-r));
        (void)sandbox_event(sb, EVENT_FAILED, &why);
    }
}

/* A call that cannot be taken back is over; false: the sandbox is on its way out, or the core is.
 */
static bool still_adopting(struct sandbox *sb)
{
    if (sb->core->closing)
        return false;
    if (sb->state != SANDBOX_RUNNING && sb->state != SANDBOX_PAUSING) {
        sandbox_unpend(sb); /* its life time ended meanwhile */
        return false;
    }
    sb->pending--;
    return true;
}

static void on_unpaused(const struct error *err, void *userdata)
{
    struct sandbox *sb = userdata;

    if (!still_adopting(sb))
        return;
    if (err) /* it may never have been paused: the guest tells */
        log_sandbox(LOG_LEVEL_DEBUG, sb->id, "Not resumed: %s", err->text);
    sb->reconnect_until_usec = clock_now_usec() + core_answer_timeout_usec(sb->core);
    adopt_link(sb);
}

static void on_vm_lost(struct sandbox *sb, const struct error *err)
{
    struct error why = {0};

    if (sb->state == SANDBOX_PAUSING && sb->snapshot[0]) {
        sb->vm_exists = false;
        (void)sandbox_event(sb, EVENT_PAUSED, NULL);
        return;
    }
    (void)error_set_code(&why, ERR_GUEST_GONE,
                         "sandbox '%s': its VM ended while no daemon watched it: %s", sb->id,
                         err->text);
    (void)sandbox_event(sb, EVENT_FAILED, &why);
}

static void on_adopted(const struct backend_vm *vm, const struct error *err, void *userdata)
{
    struct sandbox *sb = userdata;
    struct backend *backend;

    if (!still_adopting(sb))
        return;
    if (err) {
        on_vm_lost(sb, err);
        return;
    }
    sb->vm = *vm;
    /* It goes on: what was sealed before the row said so will be old. */
    if (sb->snapshot[0])
        snapshots_drop(sb->core, sb->snapshot);
    sb->snapshot[0] = '\0';
    backend = sb->slot->backend;
    if (!sb->held || !backend->ops->resume) {
        adopt_link(sb);
        return;
    }
    sb->pending++;
    if (backend->ops->resume(backend, sb->id, on_unpaused, sb) < 0)
        on_unpaused(NULL, sb);
}

static void adopt(struct sandbox *sb, enum sandbox_state state)
{
    struct error err = {0};
    char disk[512];
    struct vm_spec spec;
    int r = -ENODEV;

    if (sandbox_sessions_load(sb, &err) < 0)
        log_sandbox(LOG_LEVEL_WARNING, sb->id, "Failed to load its sessions: %s, ignoring",
                    err.text);
    sb->state = state;
    sb->adopting = true;
    sb->reconnecting = true; /* and reconnect_until_usec is over: a break now is final */
    sb->core->recovery->left++;
    sandbox_vm_spec(sb, disk, &spec);
    sb->pending++;
    if (sb->slot)
        r = sb->slot->backend->ops->adopt(sb->slot->backend, &spec, on_adopted, sb);
    if (r < 0) {
        sb->pending--;
        (void)error_set_code(&err, ERR_BACKEND_UNAVAILABLE, "sandbox '%s': backend '%s': %s",
                             sb->id, sb->origin.backend, errno_text(-r));
        (void)sandbox_event(sb, EVENT_FAILED, &err);
    }
}

/* ---- everything else ---- */

static void on_removed(const struct error *err, void *userdata)
{
    struct recovery *recovery = userdata;

    (void)err;
    recovery->n_removed++;
    leave(recovery);
}

static void remove_rest(struct sandbox *sb)
{
    struct recovery *recovery = sb->core->recovery;

    recovery->left++;
    if (sandbox_remove(sb, on_removed, recovery) < 0) {
        log_sandbox(LOG_LEVEL_ERROR, sb->id, "Failed to remove what is left of it");
        leave(recovery);
    }
}

/* The newest snapshot that was made for this sandbox's sleep, or "". It is not the one of its last.
 */
static const char *sealed_for(const struct recovery *recovery, const char *sandbox,
                              const char *except)
{
    const struct kept_snapshot *newest = NULL;

    for (const struct kept_snapshot *kept = recovery->snapshots; kept; kept = kept->next) {
        if (strcmp(kept->sandbox, sandbox) == 0 && strcmp(kept->id, except) != 0 &&
            (!newest || kept->created_wall_usec > newest->created_wall_usec))
            newest = kept;
    }
    return newest ? newest->id : "";
}

/* Asleep, or about to be: no VM may be left. */
static void recover_asleep(struct sandbox *sb, enum sandbox_state state)
{
    (void)sandbox_sessions_load(sb, NULL);
    sb->state = state;
    sb->held = false;
    if (state == SANDBOX_PAUSED)
        (void)sandbox_arm_lifetime(sb);
    else /* whether a VM was started is not known for sure */
        sb->vm_exists = sb->slot != NULL;
    sandbox_kill_vm(sb);
}

static void recover_one(struct sandbox *sb, enum sandbox_state state)
{
    if (sb->spec.transient || sb->spec.build) /* its request went with the daemon that had it */
        state = SANDBOX_STOPPING;
    if (state != SANDBOX_PAUSED)
        (void)sandbox_arm_lifetime(sb);
    switch (state) {
    case SANDBOX_CREATING:
    case SANDBOX_STOPPING:
        /* Whether a VM was started is not known for sure: its kill is harmless. */
        sb->vm_exists = sb->slot != NULL;
        remove_rest(sb);
        return;
    case SANDBOX_STOPPED:
    case SANDBOX_FAILED:
        sb->state = state;
        (void)sandbox_sessions_load(sb, NULL);
        sandbox_kill_vm(sb);
        return;
    case SANDBOX_PAUSED:
    case SANDBOX_RESUMING:
        recover_asleep(sb, state);
        return;
    case SANDBOX_PAUSING:
        if (sb->snapshot[0]) { /* all is saved */
            recover_asleep(sb, state);
            return;
        }
        sb->held = true;
        (void)snprintf(sb->snapshot, sizeof(sb->snapshot), "%s",
                       sealed_for(sb->core->recovery, sb->id, sb->restored_from));
        adopt(sb, SANDBOX_PAUSING);
        return;
    case SANDBOX_RUNNING:
        adopt(sb, SANDBOX_RUNNING);
        return;
    }
}

/* ---- snapshots ---- */

static void load_snapshot(const struct snapshot_info *info, void *userdata)
{
    struct recovery *recovery = userdata;
    struct kept_snapshot *kept;

    if (info->kind == SNAPSHOT_CHECKPOINT)
        return;
    kept = calloc(1, sizeof(*kept));
    if (!kept)
        return; /* a later start removes it */
    memcpy(kept->id, info->id, sizeof(kept->id));
    if (info->kind == SNAPSHOT_HIBERNATED)
        memcpy(kept->sandbox, info->sandbox, sizeof(kept->sandbox));
    kept->created_wall_usec = info->created_wall_usec;
    kept->next = recovery->snapshots;
    recovery->snapshots = kept;
}

static void sweep_snapshots(struct recovery *recovery)
{
    struct core *core = recovery->core;

    for (struct kept_snapshot *kept = recovery->snapshots; kept; kept = kept->next) {
        if (snapshots_in_use(core, kept->id))
            continue;
        log_notice("Removing snapshot '%s', which no sandbox needs", kept->id);
        snapshots_drop(core, kept->id);
    }
}

struct loaded {
    struct core *core;
    enum sandbox_state *states; /* of core->sandboxes, in order */
    size_t n;
};

static void load_row(const struct sandbox_row *row, void *userdata)
{
    struct loaded *loaded = userdata;
    struct error err = {0};
    struct sandbox *sb = NULL;

    if (sandbox_from_row(loaded->core, row, &sb, &err) < 0) {
        log_sandbox(LOG_LEVEL_ERROR, row->id, "Failed to read its row: %s, ignoring", err.text);
        return;
    }
    if (core_add_sandbox(loaded->core, sb) < 0) {
        log_sandbox(LOG_LEVEL_ERROR, row->id, "There are more sandboxes than %u, ignoring",
                    loaded->core->max_sandboxes);
        (void)sandbox_free(sb);
        return;
    }
    loaded->states[loaded->n++] = row->state;
}

/* ---- directories that nobody knows ---- */

struct orphan {
    struct recovery *recovery; /* weak */
    char *dir;                 /* owned */
    char vm_id[64];
    unsigned left; /* kills under way */
};

static void on_orphan_killed(const struct error *err, void *userdata)
{
    struct orphan *orphan = userdata;
    struct recovery *recovery = orphan->recovery;
    struct core *core = recovery->core;

    if (err && !core->closing)
        log_warning("Failed to end VM '%s': %s, ignoring", orphan->vm_id, err->text);
    if (--orphan->left > 0)
        return;
    if (!core->closing) {
        log_notice("Removing '%s', which belongs to nothing", orphan->dir);
        template_remove_dir(core, orphan->dir);
        leave(recovery);
    }
    free(orphan->dir);
    free(orphan);
}

/* Which backend ran it is not known: each is asked to end it, which is harmless where it never was.
 */
static void remove_orphan(struct recovery *recovery, const char *parent, const char *name,
                          const char *vm_id)
{
    struct core *core = recovery->core;
    struct orphan *orphan = calloc(1, sizeof(*orphan));

    if (orphan)
        orphan->dir = string_printf("%s/%s", parent, name);
    if (!orphan || !orphan->dir) {
        free(orphan);
        return;
    }
    (void)snprintf(orphan->vm_id, sizeof(orphan->vm_id), "%s", vm_id);
    orphan->recovery = recovery;
    orphan->left = 1; /* held until all are asked */
    recovery->left++;
    for (size_t i = 0; i < core->n_slots; i++) {
        struct backend *backend = core->slots[i].backend;

        orphan->left++;
        if (backend->ops->kill(backend, vm_id, on_orphan_killed, orphan) < 0)
            orphan->left--;
    }
    on_orphan_killed(NULL, orphan);
}

static void sweep_sandboxes(struct recovery *recovery)
{
    struct core *core = recovery->core;
    DIR *dir = opendir(core->sandboxes_dir);
    struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        char id[SANDBOX_ID_LENGTH + 1];

        if (entry->d_name[0] == '.' || core_sandbox_by_id(core, entry->d_name))
            continue;
        (void)snprintf(id, sizeof(id), "%.*s", (int)SANDBOX_ID_LENGTH, entry->d_name);
        remove_orphan(recovery, core->sandboxes_dir, entry->d_name, id);
    }
    if (dir)
        closedir(dir);
}

static void sweep_templates(struct recovery *recovery)
{
    struct core *core = recovery->core;
    DIR *dir = opendir(core->templates_dir);
    struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        const char *mark = strstr(entry->d_name, ".tmp-");

        if (mark)
            remove_orphan(recovery, core->templates_dir, entry->d_name, mark + strlen(".tmp-"));
    }
    if (dir)
        closedir(dir);
}

/* ---- all of it ---- */

int core_recover(struct core *core, void (*done)(const struct error *err, void *userdata),
                 void *userdata)
{
    struct loaded loaded = {.core = core};
    struct recovery *recovery;
    _cleanup_free_ struct sandbox **all = NULL;
    _cleanup_free_ enum sandbox_state *states = NULL;
    struct error err = {0};
    int r;

    if (core->recovery)
        return -EALREADY;
    recovery = calloc(1, sizeof(*recovery));
    all = calloc(core->sandboxes_room, sizeof(*all));
    states = calloc(core->sandboxes_room, sizeof(*states));
    if (!recovery || !all || !states) {
        free(recovery);
        return -ENOMEM;
    }
    recovery->core = core;
    recovery->done = done;
    recovery->userdata = userdata;
    recovery->started_usec = clock_now_usec();
    recovery->left = 1; /* held until everything is under way */
    core->recovery = recovery;
    loaded.states = states;
    r = store_sandbox_each(core->store, load_row, &loaded, &err);
    if (r < 0) {
        core->recovery = recovery_free(recovery);
        return log_full(LOG_LEVEL_ERROR, -r, NULL, NULL, "Failed to read the store: %s", err.text);
    }
    if (snapshot_each(core->snapshots, load_snapshot, recovery, &err) < 0)
        log_warning("Failed to look for snapshots: %s, ignoring", err.text);
    if (templates_load(core, &err) < 0)
        log_warning("Failed to look for templates: %s, ignoring", err.text);
    sweep_sandboxes(recovery);
    sweep_templates(recovery);
    /* A copy: what is removed at once leaves the table. */
    memcpy(all, core->sandboxes, loaded.n * sizeof(*all));
    for (size_t i = 0; i < loaded.n; i++)
        recover_one(all[i], states[i]);
    sweep_snapshots(recovery);
    leave(recovery);
    return 0;
}
