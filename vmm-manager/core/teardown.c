#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/create.h"
#include "core/lifecycle.h"
#include "core/sandbox-private.h"
#include "core/snapshots.h"
#include "core/wake.h"

/*
 * Theory of operation. teardown_start() lets go of the console and of whatever of a creation can be
 * taken back. When nothing that cannot be taken back is left (sb->pending is 0) the VMM is killed,
 * then the files go, then the row, then those who wait are called and the sandbox is freed. A
 * daemon that dies on the way finds the row in state `stopping` and starts again.
 */
static void teardown_next(struct sandbox *sb);

static void call_removals(struct sandbox *sb, const struct error *err)
{
    while (sb->removals) {
        struct removal_waiter *waiter = sb->removals;

        sb->removals = waiter->next;
        if (waiter->done)
            waiter->done(err, waiter->userdata);
        free(waiter);
    }
}

void teardown_failed(struct sandbox *sb)
{
    struct error why = sb->failure;

    wake_report_failure(sb);
    creation_report_failure(sb);
    call_removals(sb, &why);
}

static void teardown_end(struct sandbox *sb)
{
    struct error err = {0};

    if (store_sandbox_delete(sb->core->store, sb->id, &err) < 0)
        log_sandbox(LOG_LEVEL_WARNING, sb->id, "Failed to delete its row: %s, ignoring", err.text);
    log_sandbox(LOG_LEVEL_NOTICE, sb->id, "Sandbox is gone");
    core_drop_sandbox(sb->core, sb);
    snapshots_release(sb->core, sb->snapshot);
    if (strcmp(sb->snapshot, sb->restored_from) != 0)
        snapshots_release(sb->core, sb->restored_from);
    wake_report_failure(sb);
    creation_report_failure(sb);
    call_removals(sb, NULL);
    (void)sandbox_free(sb);
}

struct remove_job {
    struct sandbox *sandbox; /* weak, not for the worker */
    struct core *core;       /* weak, not for the worker */
    char *dir;               /* owned */
    struct error err;
};

static void remove_run(void *userdata)
{
    struct remove_job *job = userdata;

    (void)dir_remove(job->dir, &job->err);
}

static void remove_done(void *userdata, int cancelled)
{
    struct remove_job *job = userdata;

    if (!cancelled && !job->core->closing) {
        job->sandbox->pending--;
        if (job->err.errnum)
            log_sandbox(LOG_LEVEL_WARNING, job->sandbox->id, "Failed to remove '%s': %s, ignoring",
                        job->dir, job->err.text);
        if (job->sandbox->state == SANDBOX_STOPPING)
            teardown_end(job->sandbox);
    }
    free(job->dir);
    free(job);
}

static void teardown_files(struct sandbox *sb)
{
    struct remove_job *job = calloc(1, sizeof(*job));
    struct error err = {0};

    if (job) {
        job->sandbox = sb;
        job->core = sb->core;
        job->dir = string_printf("%s", sb->dir);
    }
    sb->pending++;
    if (job && job->dir && workers_submit(sb->core->io_workers, remove_run, remove_done, job) >= 0)
        return;
    /* No worker takes it: better slow than never. */
    sb->pending--;
    if (job)
        free(job->dir);
    free(job);
    if (dir_remove(sb->dir, &err) < 0)
        log_sandbox(LOG_LEVEL_WARNING, sb->id, "Failed to remove '%s': %s, ignoring", sb->dir,
                    err.text);
    teardown_end(sb);
}

static void on_killed(const struct error *err, void *userdata)
{
    struct sandbox *sb = userdata;

    if (sb->core->closing)
        return;
    sb->pending--;
    sb->killing = false;
    if (!err) {
        sb->vm_exists = false;
        sb->vm.pid = 0;
    } else {
        log_sandbox(LOG_LEVEL_ERROR, sb->id, "Failed to end its VMM: %s", err->text);
    }
    if (sb->state == SANDBOX_PAUSING) {
        (void)sandbox_event(sb, err ? EVENT_FAILED : EVENT_PAUSED, err);
        return;
    }
    if (sb->state == SANDBOX_RESUMING) {
        wake_vm_killed(sb, err);
        return;
    }
    if (sb->state != SANDBOX_STOPPING)
        return;
    if (err)
        (void)sandbox_event(sb, EVENT_FAILED, err);
    else if (sb->pending == 0)
        teardown_next(sb);
}

void sandbox_kill_vm(struct sandbox *sb)
{
    struct error err = {0};
    int r;

    if (sb->killing || !sb->vm_exists || !sb->slot)
        return;
    sb->killing = true;
    sb->pending++;
    r = sb->slot->backend->ops->kill(sb->slot->backend, sb->id, on_killed, sb);
    if (r < 0) {
        (void)error_set(&err, -r, "sandbox '%s': kill: %s", sb->id, errno_text(-r));
        on_killed(&err, sb);
    }
}

static void teardown_next(struct sandbox *sb)
{
    if (sb->vm_exists && sb->slot)
        sandbox_kill_vm(sb);
    else
        teardown_files(sb);
}

void sandbox_unpend(struct sandbox *sb)
{
    sb->pending--;
    if (sb->pending == 0 && sb->state == SANDBOX_STOPPING)
        teardown_next(sb);
}

void teardown_start(struct sandbox *sb)
{
    struct error reason = {0};

    if (sb->failure.errnum)
        error_copy(&reason, &sb->failure);
    else
        (void)error_set_code(&reason, ERR_SANDBOX_NOT_RUNNING, "sandbox '%s': removed", sb->id);
    sb->lifetime = source_free(sb->lifetime);
    sb->idle = source_free(sb->idle);
    creation_cancel(sb);
    sandbox_drop_console(sb, &reason);
    if (sb->pending == 0)
        teardown_next(sb);
}

int sandbox_remove(struct sandbox *sb, backend_done_fn done, void *userdata)
{
    struct removal_waiter *waiter = calloc(1, sizeof(*waiter));

    if (!waiter)
        return -ENOMEM;
    waiter->done = done;
    waiter->userdata = userdata;
    waiter->next = sb->removals;
    sb->removals = waiter;
    return sandbox_event(sb, EVENT_REMOVE, NULL);
}
