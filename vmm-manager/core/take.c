#include "core/take.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "core/disk-copy.h"
#include "core/lifecycle.h"
#include "core/snapshot-meta.h"
#include "core/snapshots.h"
#include "core/take-private.h"
#include "core/timeouts.h"

/*
 * Theory of operation. The steps, each ending in a callback on the loop:
 *
 *   prepare   a writer of the store, what the backend can do (worker)
 *   freeze    the guest stops all of the user's processes, syncs and closes itself
 *   memory    the backend pauses the VM and writes device state and changed memory
 *   disk      copied; for a sleep linked, since the VM will not run again unless that fails
 *   seal      digests, sync, rename (worker)
 *   commit    for a sleep: the row says what to resume from; from here on the VM is superfluous
 *   kill      and the sandbox is PAUSED
 *
 * take_release() is the way back: the VM is resumed, the guest thawed (or its console looked for
 * again), with the identity it had. For forks and checkpoints it runs beside the seal; for a sleep
 * only when a step failed or somebody wants to use the sandbox. The snapshot of a cancelled sleep
 * is removed before the VM runs on, so that no later daemon can take it for the sandbox's state.
 *
 * Calls that cannot be taken back are counted here (busy) and in sb->pending. After take_abort()
 * their callbacks only end the take.
 */
/* ---- life ---- */

bool take_is_sleep(const struct take *t)
{
    return t->options.kind == SNAPSHOT_HIBERNATED;
}

struct take *take_free(struct take *t)
{
    if (!t)
        return NULL;
    (void)source_free(t->soon);
    (void)disk_copy_free(t->copy);
    (void)snapshot_writer_free(t->writer);
    snapshot_info_done(&t->info);
    free(t);
    return NULL;
}

void take_quiesce(struct take *t)
{
    if (!t)
        return;
    t->soon = source_free(t->soon);
    disk_copy_quiesce(t->copy);
}

/* How long the step took that is over now. */
static void step_over(struct take *t, uint64_t *ret_usec)
{
    uint64_t now = clock_now_usec();

    *ret_usec = now - t->step_usec;
    t->step_usec = now;
}

/* For whoever asks what it cost. */
static void tell_figures(struct take *t)
{
    t->figures.changed_bytes = t->info.changed_bytes;
    t->figures.written_bytes = t->info.written_bytes;
    t->sandbox->taken = t->figures;
    t->sandbox->revision++;
}

static void progress(struct take *t, const char *step)
{
    sandbox_waits_progress(t->sandbox, step, -1);
    if (t->options.on_progress && !t->forgotten)
        t->options.on_progress(step, -1, t->options.userdata);
}

/* All is over: the one who asked hears of it, and the take is gone. */
void take_end(struct take *t)
{
    struct sandbox *sb = t->sandbox;
    bool failed = t->err.errnum != 0;

    sb->take = NULL;
    snapshots_writer_drop(sb->core, TAKE_PTR(t->writer));
    if (t->sealed && (failed || t->forgotten || t->cancelled || t->aborted)) {
        snapshots_drop(sb->core, t->info.id);
        t->sealed = false;
    }
    if (t->sealed && !take_is_sleep(t))
        tell_figures(t);
    if (t->options.done && !t->forgotten)
        t->options.done(sb, failed ? NULL : &t->info, failed ? &t->err : NULL, t->options.userdata);
    (void)take_free(t);
    if (sb->pause_wanted && sb->state == SANDBOX_RUNNING)
        (void)sandbox_event(sb, EVENT_PAUSE, NULL);
}

void take_note_error(struct take *t, const struct error *err)
{
    if (t->err.errnum)
        return;
    error_copy(&t->err, err);
    error_wrap(&t->err, "sandbox '%s': snapshot", t->sandbox->id);
}

static void fail(struct take *t, const struct error *err)
{
    take_note_error(t, err);
    log_sandbox(LOG_LEVEL_WARNING, t->sandbox->id, "No snapshot: %s", t->err.text);
    take_release(t);
}

static void fail_errno(struct take *t, int r, const char *what)
{
    struct error err = {0};

    (void)error_set(&err, -r, "%s: %s", what, errno_text(-r));
    fail(t, &err);
}

void take_begin_call(struct take *t)
{
    t->busy++;
    t->sandbox->pending++;
}

/* The call was not made after all. */
static void uncall(struct take *t)
{
    t->busy--;
    t->sandbox->pending--;
}

static void call_failed(struct take *t, int r, const char *what)
{
    uncall(t);
    fail_errno(t, r, what);
}

/*
 * A call that could not be taken back is over. False: the sandbox is on its way out or has failed
 * (and both may be gone by now), or the core is.
 */
bool take_end_call(struct take *t)
{
    struct sandbox *sb = t->sandbox;

    if (sb->core->closing)
        return false;
    t->busy--;
    if (!t->aborted) {
        sb->pending--;
        return true;
    }
    if (t->busy == 0)
        take_end(t);
    sandbox_unpend(sb);
    return false;
}

void take_abort(struct sandbox *sb, const struct error *reason)
{
    struct take *t = sb->take;

    if (!t || t->aborted)
        return;
    t->aborted = true;
    t->soon = source_free(t->soon);
    take_note_error(t, reason);
    if (t->busy == 0)
        take_end(t);
}

void take_finish(struct sandbox *sb)
{
    if (sb->take)
        take_end(sb->take);
}

/* It has the disk in its snapshot: the other name of the same file would keep it uncompressed. */
void take_drop_disk(const struct sandbox *sb)
{
    char disk[512];
    struct vm_spec spec;
    struct stat st;

    sandbox_vm_spec(sb, disk, &spec);
    if (lstat(disk, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink > 1)
        (void)unlink(disk);
}

void take_forget(struct sandbox *sb, const void *userdata)
{
    if (sb->take && sb->take->options.userdata == userdata)
        sb->take->forgotten = true;
}

/* ---- commit and kill, for a sleep ---- */

static void on_unsealed(const struct error *err, void *userdata)
{
    struct take *t = userdata;

    if (err)
        log_sandbox(LOG_LEVEL_WARNING, t->sandbox->id,
                    "Failed to remove the snapshot of a cancelled pause: %s, ignoring", err->text);
    if (!take_end_call(t))
        return;
    t->sealed = false;
    take_release(t);
}

/* No sleep after all. The snapshot goes first: it will be old. */
static void give_up(struct take *t)
{
    if (!t->err.errnum)
        (void)error_set_code(&t->err, ERR_CANCELLED,
                             "sandbox '%s': the pause was cancelled, it is in use", t->sandbox->id);
    if (!t->sealed) {
        take_release(t);
        return;
    }
    take_begin_call(t);
    if (snapshots_remove(t->sandbox->core, t->info.id, on_unsealed, t) < 0)
        on_unsealed(NULL, t);
}

/* A step came home; true: on to the next one. False: the take may be gone by now. */
static bool may_go_on(struct take *t, const struct error *err)
{
    if (!err && !t->cancelled)
        return true;
    if (err)
        fail(t, err);
    else
        give_up(t);
    return false;
}

static void step_kill(struct take *t)
{
    struct sandbox *sb = t->sandbox;

    t->step = TAKE_KILL;
    if (!sb->vm_exists) {
        (void)sandbox_event(sb, EVENT_PAUSED, NULL);
        return;
    }
    sandbox_kill_vm(sb); /* its end is EVENT_PAUSED */
}

static void step_commit(struct take *t)
{
    struct sandbox *sb = t->sandbox;
    struct error err = {0};
    int r = fault_at("hibernate-commit");

    t->step = TAKE_COMMIT;
    if (r >= 0) {
        memcpy(sb->snapshot, t->info.id, sizeof(sb->snapshot));
        tell_figures(t);
        r = sandbox_store(sb, &err);
    } else {
        (void)error_set(&err, -r, "store: %s", errno_text(-r));
    }
    if (r < 0) {
        sb->snapshot[0] = '\0';
        take_note_error(t, &err);
        give_up(t);
        return;
    }
    (void)fault_at("hibernate-committed");
    step_kill(t);
}

/* ---- seal ---- */

static void on_sealed(struct snapshot_info *info, const struct error *err, void *userdata)
{
    struct take *t = userdata;
    bool aborted = t->aborted;

    if (t->sandbox->core->closing)
        return;
    if (!err) {
        t->info = *info;
        memset(info, 0, sizeof(*info)); /* taken */
        t->sealed = true;
        step_over(t, &t->figures.seal_usec);
    } else {
        take_note_error(t, err);
    }
    if (!take_end_call(t) || aborted)
        return;
    if (t->release != RELEASE_NOT) { /* beside it */
        if (t->release == RELEASE_DONE && t->busy == 0)
            take_end(t);
        return;
    }
    if (may_go_on(t, err))
        step_commit(t);
}

static void step_seal(struct take *t)
{
    struct sandbox *sb = t->sandbox;
    int r;

    t->step = TAKE_SEAL;
    step_over(t, &t->figures.disk_usec);
    progress(t, "write");
    take_begin_call(t);
    r = snapshots_seal(sb->core, &t->writer, &t->info, on_sealed, t);
    if (r < 0) {
        call_failed(t, r, "seal");
        return;
    }
    if (!take_is_sleep(t))
        take_release(t);
}

/* ---- disk ---- */

static void on_disk(const struct error *err, void *userdata)
{
    struct take *t = userdata;

    if (!take_end_call(t))
        return;
    t->copy = disk_copy_free(t->copy);
    if (may_go_on(t, err))
        step_seal(t);
}

static void step_disk(struct take *t)
{
    struct sandbox *sb = t->sandbox;
    char from[512], to[576];
    struct vm_spec spec;
    int r = fault_at("take-disk");

    t->step = TAKE_DISK;
    progress(t, "copy the disk");
    sandbox_vm_spec(sb, from, &spec);
    (void)snprintf(to, sizeof(to), "%s/%s", t->dir, SNAPSHOT_DISK);
    if (r < 0) {
        fail_errno(t, r, "copy the disk");
        return;
    }
    if (take_is_sleep(t) && link(from, to) == 0) {
        step_seal(t);
        return;
    }
    take_begin_call(t);
    r = disk_copy_start(sb->core, from, to, sb->origin.disk_mib, on_disk, t, &t->copy);
    if (r < 0)
        call_failed(t, r, "copy the disk");
}

/* ---- memory ---- */

static void on_memory(const struct error *err, void *userdata)
{
    struct take *t = userdata;

    if (!take_end_call(t))
        return;
    t->paused = t->paused || !err;
    step_over(t, &t->figures.memory_usec);
    if (may_go_on(t, err))
        step_disk(t);
}

static void step_memory(struct take *t)
{
    struct sandbox *sb = t->sandbox;
    struct backend *backend = sb->slot->backend;
    char state[576], memory[576];
    int r = fault_at("take-memory");

    t->step = TAKE_MEMORY;
    progress(t, "save memory");
    (void)snprintf(state, sizeof(state), "%s/%s", t->dir, SNAPSHOT_STATE);
    (void)snprintf(memory, sizeof(memory), "%s/%s", t->dir, SNAPSHOT_MEMORY);
    t->paused_usec = clock_now_usec();
    if (r < 0) {
        fail_errno(t, r, "save memory");
        return;
    }
    if (!t->caps.snapshot_console) {
        r = guest_link_park(sb->link);
        t->cut_off = r < 0;
        if (r < 0)
            log_sandbox(LOG_LEVEL_WARNING, sb->id,
                        "Failed to park its console: %s, what is under way there will end",
                        errno_text(-r));
    }
    take_begin_call(t);
    r = backend->ops->snapshot(backend, sb->id, state, memory,
                               clock_now_usec() +
                                   core_snapshot_timeout_usec(sb->core, sb->origin.memory_mib),
                               on_memory, t);
    if (r < 0)
        call_failed(t, r, "save memory");
}

/* ---- freeze ---- */

static int describe(struct take *t)
{
    struct sandbox *sb = t->sandbox;
    struct snapshot_info *info = &t->info;

    info->kind = t->options.kind;
    (void)snprintf(info->name, sizeof(info->name), "%s", t->name);
    (void)snprintf(info->sandbox, sizeof(info->sandbox), "%s", sb->id);
    if (sb->restored_from[0] && !t->caps.snapshot_from_base)
        memcpy(info->parent.snapshot_id, sb->restored_from, sizeof(info->parent.snapshot_id));
    else
        memcpy(info->parent.template_id, sb->template_id, sizeof(info->parent.template_id));
    info->origin = sb->origin;
    info->meta = snapshot_meta_make(sb);
    return info->meta ? 0 : -ENOMEM;
}

static void on_frozen(struct console *c, const struct error *err, void *userdata)
{
    struct take *t = userdata;
    int r;

    (void)c;
    if (t->aborted || t->step != TAKE_FREEZE || t->release != RELEASE_NOT)
        return;
    t->frozen = !err;
    step_over(t, &t->figures.freeze_usec);
    if (!may_go_on(t, err))
        return;
    r = fault_at("take-frozen");
    if (r >= 0)
        r = describe(t);
    if (r < 0)
        fail_errno(t, r, "describe it");
    else
        step_memory(t);
}

static void step_freeze(struct take *t)
{
    struct sandbox *sb = t->sandbox;
    struct console *console = guest_link_console(sb->link);
    struct error err = {0};
    int r = fault_at("take-freeze");

    t->step = TAKE_FREEZE;
    t->freeze_usec = t->step_usec = clock_now_usec();
    progress(t, "freeze");
    if (!console) {
        (void)error_set_code(&err, ERR_UNAVAILABLE, "its console is being reconnected");
        r = -err.errnum;
    }
    if (r >= 0) {
        sb->held = true; /* from here on a daemon that dies leaves a frozen guest */
        r = sandbox_store(sb, &err);
    }
    if (r >= 0)
        r = console_freeze(console, clock_now_usec() + core_freeze_timeout_usec(sb->core),
                           on_frozen, t);
    if (r >= 0)
        return;
    sb->held = false;
    t->step = TAKE_PREPARE; /* nothing was done to the guest */
    if (!err.errnum)
        (void)error_set(&err, -r, "freeze: %s", errno_text(-r));
    fail(t, &err);
}

/* ---- prepare ---- */

static void on_prepared(struct snapshot_writer *writer, const struct backend_caps *caps,
                        const struct error *err, void *userdata)
{
    struct take *t = userdata;

    if (t->sandbox->core->closing) {
        (void)snapshot_writer_free(writer);
        return;
    }
    t->writer = writer;
    if (writer)
        (void)snprintf(t->dir, sizeof(t->dir), "%s", snapshot_writer_dir(writer));
    if (caps)
        t->caps = *caps;
    if (take_end_call(t) && may_go_on(t, err))
        step_freeze(t);
}

int sandbox_can_snapshot(struct sandbox *sb, struct error *err)
{
    if (!sb->slot || !sb->slot->backend->ops->snapshot)
        return error_set_code(err, ERR_UNSUPPORTED,
                              "sandbox '%s': backend '%s' cannot snapshot what runs", sb->id,
                              sb->slot ? sb->origin.backend : "none");
    if (!sb->template_id[0])
        return error_set_code(err, ERR_UNSUPPORTED,
                              "sandbox '%s': it was booted, not restored from a template, and has "
                              "no memory to compare with",
                              sb->id);
    return 0;
}

static int begin(struct sandbox *sb, const struct take_options *options, struct error *err)
{
    struct take *t = calloc(1, sizeof(*t));
    int r;

    if (!t)
        return error_set(err, ENOMEM, "sandbox '%s': out of memory", sb->id);
    t->sandbox = sb;
    t->options = *options;
    (void)snprintf(t->name, sizeof(t->name), "%s", options->name ? options->name : "");
    t->started_usec = clock_now_usec();
    sb->take = t;
    take_begin_call(t);
    r = snapshots_prepare(sb->core, sb->slot, on_prepared, t);
    if (r < 0) {
        uncall(t);
        sb->take = take_free(t);
        return error_set(err, -r, "sandbox '%s': snapshot: %s", sb->id, errno_text(-r));
    }
    return 0;
}

int take_start(struct sandbox *sb, const struct take_options *options, struct error *err)
{
    int r = sandbox_can_snapshot(sb, err);

    if (r < 0)
        return r;
    if (sb->take)
        return error_set_code(err, ERR_CONFLICT, "sandbox '%s': a snapshot of it is being taken",
                              sb->id);
    if (!sandbox_console(sb, err))
        return -err->errnum;
    return begin(sb, options, err);
}

void take_hibernate(struct sandbox *sb)
{
    const struct take_options options = {.kind = SNAPSHOT_HIBERNATED};
    struct error err = {0};

    if (sandbox_can_snapshot(sb, &err) >= 0 && begin(sb, &options, &err) >= 0)
        return;
    error_copy(&sb->pause_error, &err);
    (void)sandbox_event(sb, EVENT_READY, NULL);
}

/* ---- what happens meanwhile ---- */

/* The step that is under way comes home first: nobody may touch the disk of what is being sealed.
 */
bool take_cancel(struct sandbox *sb)
{
    struct take *t = sb->take;

    if (!t || t->cancelled || t->step >= TAKE_COMMIT || t->vm_lost)
        return false;
    t->cancelled = true;
    return true;
}

bool take_outlives_vm(struct sandbox *sb)
{
    struct take *t = sb->take;

    if (!t || t->step < TAKE_SEAL || t->release != RELEASE_NOT || t->cancelled)
        return false;
    t->vm_lost = true;
    return true;
}
