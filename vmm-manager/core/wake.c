#include "core/wake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "core/guest-fate.h"
#include "core/lifecycle.h"
#include "core/snapshot-meta.h"
#include "core/snapshots.h"
#include "core/timeouts.h"

/*
 * Theory of operation. The steps, each ending in a callback on the loop:
 *
 *   end      a rollback: the VM that there is goes first
 *   open     the snapshot is checked, and fit for this host (worker)
 *   disk     a copy: what the guest writes must not reach the snapshot
 *   machine  restored with the snapshot's pages over its template's memory
 *   guest    console, hello, thaw; before this nothing of the user runs
 *
 * then the sessions are taken up again and the sandbox is RUNNING. A failure is EVENT_FAILED: a
 * sandbox that resumes falls asleep again once the VM of the attempt is gone, a child of a fork is
 * removed like any creation that failed. Calls that cannot be taken back are counted here (busy)
 * and in sb->pending; after wake_abort() their callbacks only let others go on.
 */
enum wake_step {
    WAKE_END,
    WAKE_OPEN,
    WAKE_DISK,
    WAKE_MACHINE,
    WAKE_GUEST,
    WAKE_UNDO, /* it came to nothing: the VM of the attempt is being ended */
};

struct wake {
    struct sandbox *sandbox; /* weak: owns this */
    struct wake_options options;
    char snapshot_id[MANIFEST_ID_SIZE];
    enum wake_step step;
    struct opened_snapshot opened; /* owned */
    unsigned busy;
    bool aborted, forgotten;
    bool stuck;      /* its VM does not end */
    bool checkpoint; /* the snapshot is one */
    uint64_t asked_usec, step_usec;
};

static void step_open(struct wake *w);

struct wake *wake_free(struct wake *w)
{
    if (!w)
        return NULL;
    snapshots_close(w->sandbox->core, &w->opened);
    free(w);
    return NULL;
}

static void progress(struct wake *w, const char *step)
{
    sandbox_waits_progress(w->sandbox, step, -1);
    if (w->options.on_progress && !w->forgotten)
        w->options.on_progress(step, -1, w->options.userdata);
}

static uint64_t lap(struct wake *w)
{
    uint64_t now = clock_now_usec(), took = now - w->step_usec;

    w->step_usec = now;
    return took;
}

static void fail(struct wake *w, const struct error *err)
{
    struct sandbox *sb = w->sandbox;
    struct error why = *err;

    error_wrap(&why, "sandbox '%s'", sb->id);
    (void)sandbox_event(sb, EVENT_FAILED, &why);
}

static void fail_errno(struct wake *w, int r, const char *what)
{
    struct error err = {0};

    (void)error_set(&err, -r, "%s: %s", what, errno_text(-r));
    fail(w, &err);
}

static void begin_call(struct wake *w)
{
    w->busy++;
    w->sandbox->pending++;
}

static void call_failed(struct wake *w, int r, const char *what)
{
    w->busy--;
    w->sandbox->pending--;
    fail_errno(w, r, what);
}

/* The attempt is over and its calls are home: the VM goes, if there is one. */
static void undo_next(struct wake *w)
{
    struct sandbox *sb = w->sandbox;

    if (w->step != WAKE_UNDO || w->busy > 0)
        return;
    if (sb->vm_exists)
        sandbox_kill_vm(sb); /* wake_vm_killed() comes */
    else
        (void)sandbox_event(sb, EVENT_PAUSED, NULL);
}

/* As in take.c. */
static bool end_call(struct wake *w)
{
    struct sandbox *sb = w->sandbox;

    if (sb->core->closing)
        return false;
    w->busy--;
    if (!w->aborted) {
        sb->pending--;
        return true;
    }
    if (w->step == WAKE_UNDO) {
        sb->pending--;
        undo_next(w);
    } else {
        sandbox_unpend(sb);
    }
    return false;
}

/* ---- guest ---- */

static void on_link_ready(struct guest_link *link, void *userdata)
{
    struct sandbox *sb = userdata;
    struct wake *w = sb->wake;
    char old[MANIFEST_ID_SIZE], slept_on[MANIFEST_ID_SIZE];

    (void)link;
    sb->timings.console_usec = lap(w);
    sb->timings.total_usec = clock_now_usec() - w->asked_usec;
    memcpy(old, sb->restored_from, sizeof(old));
    memcpy(slept_on, sb->snapshot, sizeof(slept_on));
    /* With all that changed since the template in each snapshot, it is only needed until now. */
    (void)snprintf(sb->restored_from, sizeof(sb->restored_from), "%s",
                   w->opened.caps.snapshot_from_base ? "" : w->snapshot_id);
    if (w->checkpoint)
        memcpy(sb->checkpoint, w->snapshot_id, sizeof(sb->checkpoint));
    sb->snapshot[0] = '\0';
    (void)fault_at("wake-ready");
    sandbox_sessions_adopt(sb);
    log_sandbox(LOG_LEVEL_INFO, sb->id, "Guest of a snapshot answers after %llu us",
                (unsigned long long)sb->timings.total_usec);
    (void)sandbox_event(sb, EVENT_READY, NULL); /* w is gone */
    snapshots_release(sb->core, old);
    if (strcmp(slept_on, old) != 0)
        snapshots_release(sb->core, slept_on);
}

static void on_link_broken(struct guest_link *link, const struct error *reason, void *userdata)
{
    struct sandbox *sb = userdata;
    struct error err = *reason;

    if (!sb->wake || sb->wake->step != WAKE_GUEST) { /* it was ready: a running sandbox's console */
        sandbox_console_broken(link, reason, userdata);
        return;
    }
    guest_fate_explain("the guest", sb->vm.log_path, &err);
    fail(sb->wake, &err);
}

static void step_guest(struct wake *w)
{
    static const struct guest_link_callbacks callbacks = {on_link_ready, on_link_broken};
    struct sandbox *sb = w->sandbox;
    const struct guest_link_options options = {
        .loop = sb->core->loop,
        .backend = sb->slot->backend,
        .vm_id = sb->id,
        .deadline_usec = clock_now_usec() + core_answer_timeout_usec(sb->core),
        .thaw = LINK_THAW_ALWAYS,
        .identity = &sb->identity,
    };
    int r = fault_at("wake-guest");

    w->step = WAKE_GUEST;
    progress(w, "wait for the guest");
    if (r >= 0)
        r = guest_link_new(&options, &callbacks, sb, &sb->link);
    if (r < 0)
        fail_errno(w, r, "connect");
}

/* ---- machine ---- */

static void on_machine(const struct backend_vm *vm, const struct error *err, void *userdata)
{
    struct wake *w = userdata;

    if (!end_call(w))
        return;
    if (err) {
        fail(w, err);
        return;
    }
    w->sandbox->vm = *vm;
    w->sandbox->timings.restore_usec = lap(w);
    step_guest(w);
}

static void step_machine(struct wake *w)
{
    struct sandbox *sb = w->sandbox;
    struct backend *backend = sb->slot->backend;
    const struct snapshot *snapshot = w->opened.snapshot;
    char disk[512], state[512];
    const struct vm_saved saved = {
        .memory_file = snapshot_base_memory(snapshot),
        .state_file = state,
        .pages = w->opened.pages,
        .pager_dir = w->opened.caps.pager ? snapshot_dir(snapshot) : NULL,
    };
    struct error err = {0};
    struct vm_spec spec;
    int r;

    w->step = WAKE_MACHINE;
    progress(w, "restore");
    (void)snprintf(state, sizeof(state), "%s/%s", snapshot_dir(snapshot), SNAPSHOT_STATE);
    sandbox_vm_spec(sb, disk, &spec);
    sb->vm_exists = true;
    r = sandbox_store(sb, &err); /* before the VM: a daemon that dies now leaves a trace of it */
    if (r < 0) {
        fail(w, &err);
        return;
    }
    r = fault_at("wake-machine");
    if (r < 0) {
        fail_errno(w, r, "restore");
        return;
    }
    begin_call(w);
    r = backend->ops->restore(backend, &spec, &saved,
                              clock_now_usec() +
                                  core_snapshot_timeout_usec(sb->core, sb->origin.memory_mib),
                              on_machine, w);
    if (r < 0)
        call_failed(w, r, "restore");
}

/* ---- disk ---- */

static void on_disk(const struct error *err, void *userdata)
{
    struct wake *w = userdata;

    if (!end_call(w))
        return;
    if (err) {
        fail(w, err);
        return;
    }
    w->sandbox->timings.disk_usec = lap(w);
    step_machine(w);
}

static void step_disk(struct wake *w)
{
    struct sandbox *sb = w->sandbox;
    char to[512];
    struct vm_spec spec;
    struct error err = {0};
    int r = fault_at("wake-disk");

    w->step = WAKE_DISK;
    progress(w, "copy the disk");
    if (r >= 0)
        r = dir_create(sb->dir, 0700, &err);
    if (r < 0) {
        if (!err.errnum)
            (void)error_set(&err, -r, "copy the disk: %s", errno_text(-r));
        fail(w, &err);
        return;
    }
    sandbox_vm_spec(sb, to, &spec);
    (void)unlink(to); /* of its last life, or of a daemon that died here */
    begin_call(w);
    r = snapshots_copy_disk(sb->core, w->opened.snapshot, to, on_disk, w);
    if (r < 0)
        call_failed(w, r, "copy the disk");
}

/* ---- open ---- */

static int take_over(struct wake *w, struct error *err)
{
    struct sandbox *sb = w->sandbox;
    const struct snapshot_info *info = snapshot_get_info(w->opened.snapshot);
    struct snapshot_meta meta;
    int r = snapshot_meta_parse(info->meta, &meta, err);

    if (r < 0)
        return r;
    w->checkpoint = info->kind == SNAPSHOT_CHECKPOINT;
    sb->origin = info->origin;
    sb->slot = core_slot(sb->core, info->origin.backend);
    memcpy(sb->template_id, meta.template_id, sizeof(sb->template_id));
    if (w->options.child || w->checkpoint)
        memcpy(sb->checkpoint, meta.checkpoint, sizeof(sb->checkpoint));
    r = sandbox_sessions_restore(sb, &meta, err);
    snapshot_meta_done(&meta);
    return r;
}

static void on_opened(struct opened_snapshot *opened, const struct error *err, void *userdata)
{
    struct wake *w = userdata;
    struct error why = {0};

    if (opened)
        w->opened = *opened;
    if (!end_call(w))
        return;
    if (!err && take_over(w, &why) < 0)
        err = &why;
    if (err) {
        fail(w, err);
        return;
    }
    w->sandbox->timings.resolve_usec = lap(w);
    step_disk(w);
}

static void step_open(struct wake *w)
{
    int r;

    w->step = WAKE_OPEN;
    progress(w, "check the snapshot");
    begin_call(w);
    r = snapshots_open(w->sandbox->core, w->snapshot_id, on_opened, w);
    if (r < 0)
        call_failed(w, r, "open the snapshot");
}

/* ---- start and end ---- */

int wake_start(struct sandbox *sb, const struct wake_options *options, struct error *err)
{
    struct wake *w = calloc(1, sizeof(*w));

    if (!w)
        return error_set(err, ENOMEM, "sandbox '%s': out of memory", sb->id);
    w->sandbox = sb;
    w->options = *options;
    (void)snprintf(w->snapshot_id, sizeof(w->snapshot_id), "%s", options->snapshot);
    w->asked_usec = w->step_usec = clock_now_usec();
    sb->timings = (struct timings){0};
    sb->wake = w;
    if (sb->vm_exists && !options->child) {
        w->step = WAKE_END;
        progress(w, "end the machine");
        sandbox_kill_vm(sb); /* wake_vm_killed() comes */
        return 0;
    }
    step_open(w);
    return 0;
}

void wake_resume(struct sandbox *sb)
{
    const struct wake_options options = {.snapshot = sb->snapshot};
    struct error err = {0};

    if (wake_start(sb, &options, &err) < 0)
        (void)sandbox_event(sb, EVENT_FAILED, &err);
}

void wake_vm_killed(struct sandbox *sb, const struct error *err)
{
    struct wake *w = sb->wake;

    if (err) { /* a VM that does not end: nothing may be started in its place */
        if (w)
            w->stuck = true;
        (void)sandbox_event(sb, EVENT_FAILED, err);
        return;
    }
    if (w && w->step == WAKE_END)
        step_open(w);
    else
        (void)sandbox_event(sb, EVENT_PAUSED, NULL);
}

void wake_finish(struct sandbox *sb)
{
    struct wake *w = TAKE_PTR(sb->wake);

    if (!w)
        return;
    if (w->options.done && !w->forgotten)
        w->options.done(sb, NULL, w->options.userdata);
    (void)wake_free(w);
}

void wake_report_failure(struct sandbox *sb)
{
    struct wake *w = TAKE_PTR(sb->wake);

    if (!w)
        return;
    if (w->options.done && !w->forgotten)
        w->options.done(NULL, &sb->failure, w->options.userdata);
    (void)wake_free(w);
}

void wake_abort(struct sandbox *sb)
{
    if (sb->wake)
        sb->wake->aborted = true;
}

void wake_undo(struct sandbox *sb)
{
    struct wake *w = sb->wake;

    if (!w) {
        (void)sandbox_event(sb, EVENT_PAUSED, NULL);
        return;
    }
    if (w->step == WAKE_UNDO)
        return;
    w->step = WAKE_UNDO;
    undo_next(w);
}

bool wake_is_stuck(const struct sandbox *sb)
{
    return sb->wake && sb->wake->stuck;
}

void wake_forget(struct sandbox *sb)
{
    if (sb->wake)
        sb->wake->forgotten = true;
}
