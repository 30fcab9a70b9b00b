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
#include "core/sandbox-private.h"
#include "core/template-private.h"
#include "core/timeouts.h"

/*
 * Theory of operation. After a start the store says what there was, the VMs say what there is:
 *
 *   running             adopt the VM, connect, hello, find the sessions again; else it has failed
 *   creating            half made: killed and removed
 *   stopping            the removal goes on
 *   stopped, failed     kept; a VM that is left over is killed
 *   directories without a row, half-made templates: VM of that name killed, directory removed
 *
 * All of it runs at once; `left` counts what is under way, and the end is told when it is 0. A
 * sandbox that is being adopted is RUNNING with a console that is being connected: whatever happens
 * to it meanwhile takes the ordinary ways of the lifecycle table.
 */
struct recovery {
    struct core *core; /* weak */
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

    (void)link;
    sb->reconnecting = false;
    log_sandbox(LOG_LEVEL_NOTICE, sb->id, "Sandbox is adopted");
    sandbox_sessions_adopt(sb);
    recovery_leave(sb, true);
}

static void on_adopted_broken(struct guest_link *link, const struct error *reason, void *userdata)
{
    struct sandbox *sb = userdata;
    struct error err = *reason;

    if (sb->adopting)
        guest_fate_explain("after a restart of the daemon", sb->vm.log_path, &err);
    sandbox_console_broken(link, &err, sb);
}

static void on_adopted(const struct backend_vm *vm, const struct error *err, void *userdata)
{
    static const struct guest_link_callbacks callbacks = {on_adopted_ready, on_adopted_broken};
    struct sandbox *sb = userdata;
    struct guest_link_options options = {0};
    struct link_identity identity;
    struct error why = {0};
    int r;

    if (sb->core->closing)
        return;
    if (sb->state != SANDBOX_RUNNING) { /* its life time ended meanwhile */
        sandbox_unpend(sb);
        return;
    }
    sb->pending--;
    if (err) {
        (void)error_set_code(&why, ERR_GUEST_GONE,
                             "sandbox '%s': its VM ended while no daemon watched it: %s", sb->id,
                             err->text);
        (void)sandbox_event(sb, EVENT_FAILED, &why);
        return;
    }
    sb->vm = *vm;
    sandbox_identity(sb, &identity);
    options.loop = sb->core->loop;
    options.backend = sb->slot->backend;
    options.vm_id = sb->id;
    options.deadline_usec = clock_now_usec() + core_answer_timeout_usec(sb->core);
    options.thaw = LINK_THAW_UNLESS_THAWED;
    options.identity = &identity;
    r = guest_link_new(&options, &callbacks, sb, &sb->link);
    if (r < 0) {
        (void)error_set(&why, -r, "sandbox '%s': connect: %s", sb->id, errno_text(-r));
        (void)sandbox_event(sb, EVENT_FAILED, &why);
    }
}

static void adopt(struct sandbox *sb)
{
    struct error err = {0};
    char disk[512];
    struct vm_spec spec;
    int r = -ENODEV;

    if (sandbox_sessions_load(sb, &err) < 0)
        log_sandbox(LOG_LEVEL_WARNING, sb->id, "Failed to load its sessions: %s, ignoring",
                    err.text);
    sb->state = SANDBOX_RUNNING;
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

static void recover_one(struct sandbox *sb, enum sandbox_state state)
{
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
    case SANDBOX_RUNNING:
    case SANDBOX_PAUSING:
    case SANDBOX_PAUSED:
    case SANDBOX_RESUMING:
        adopt(sb);
        return;
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
    all = calloc(core->max_sandboxes, sizeof(*all));
    states = calloc(core->max_sandboxes, sizeof(*states));
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
    if (templates_load(core, &err) < 0)
        log_warning("Failed to look for templates: %s, ignoring", err.text);
    sweep_sandboxes(recovery);
    sweep_templates(recovery);
    /* A copy: what is removed at once leaves the table. */
    memcpy(all, core->sandboxes, loaded.n * sizeof(*all));
    for (size_t i = 0; i < loaded.n; i++)
        recover_one(all[i], states[i]);
    leave(recovery);
    return 0;
}
