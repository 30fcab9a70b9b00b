#include "core/snapshots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "core/care.h"
#include "core/fork.h"
#include "core/sandbox-private.h"
#include "erofs/image.h"

#define DEPTH_MAX 8u /* a longer chain is made one: every restore reads all of it */

/* One job for all of it: which fields are used depends on the verb. */
struct job {
    struct core *core;            /* weak, not for the worker */
    struct snapshot_store *store; /* weak */
    struct backend_slot *slots;   /* weak, of the core; probed under their locks */
    size_t n_slots;
    char id[MANIFEST_ID_SIZE];
    struct backend_slot *slot;       /* weak */
    struct backend_caps caps;        /* answer */
    struct snapshot_writer *writer;  /* owned */
    struct snapshot_info info;       /* owned */
    struct opened_snapshot opened;   /* owned */
    const struct snapshot *snapshot; /* weak: open until the job is done */
    char path[512];
    struct error err;
    snapshots_prepared_fn prepared;
    snapshots_sealed_fn sealed;
    snapshots_opened_fn opened_fn;
    backend_done_fn done;
    void *userdata;
};

static struct job *job_new(struct core *core, const char *id, void *userdata)
{
    struct job *job = calloc(1, sizeof(*job));

    if (!job)
        return NULL;
    job->core = core;
    job->store = core->snapshots;
    job->slots = core->slots;
    job->n_slots = core->n_slots;
    job->userdata = userdata;
    if (id)
        (void)snprintf(job->id, sizeof(job->id), "%s", id);
    return job;
}

static void opened_close(struct opened_snapshot *opened)
{
    if (opened->pages)
        opened->pages = opened->pages->ops->free(opened->pages);
    opened->snapshot = snapshot_close(opened->snapshot);
}

static void job_free(struct job *job)
{
    (void)snapshot_writer_free(job->writer);
    snapshot_info_done(&job->info);
    opened_close(&job->opened);
    free(job);
}

static int submit(struct job *job, worker_run_fn run, worker_done_fn done)
{
    int r = job ? workers_submit(job->core->io_workers, run, done, job) : -ENOMEM;

    return r;
}

static const struct error *failure(const struct job *job)
{
    return job->err.errnum ? &job->err : NULL;
}

static int step(struct job *job, const char *name)
{
    int r = fault_at(name);

    if (r < 0)
        (void)error_set(&job->err, -r, "%s: %s", name, errno_text(-r));
    return r;
}

/* ---- prepare ---- */

static void prepare_run(void *userdata)
{
    struct job *job = userdata;

    slot_probe(job->slot, &job->caps);
    if (step(job, "take-prepare") >= 0)
        (void)snapshot_writer_new(job->store, &job->writer, &job->err);
}

static void prepare_done(void *userdata, int cancelled)
{
    struct job *job = userdata;

    if (!cancelled && !job->core->closing)
        job->prepared(TAKE_PTR(job->writer), &job->caps, failure(job), job->userdata);
    job_free(job);
}

int snapshots_prepare(struct core *core, struct backend_slot *slot, snapshots_prepared_fn done,
                      void *userdata)
{
    struct job *job = job_new(core, NULL, userdata);
    int r;

    if (!job)
        return -ENOMEM;
    job->slot = slot;
    job->prepared = done;
    r = submit(job, prepare_run, prepare_done);
    if (r < 0)
        job_free(job);
    return r;
}

/* ---- seal ---- */

/* Before anybody has it open, or lies over it; if it cannot be, the next one is. */
static void keep_flat(struct job *job)
{
    struct error err = {0};

    if (snapshot_depth(job->store, job->info.id) < DEPTH_MAX)
        return;
    if (snapshot_flatten(job->store, job->info.id, NULL, NULL, &err) < 0)
        log_debug("Snapshot '%s' stays over others: %s", job->info.id, err.text);
}

static void seal_run(void *userdata)
{
    struct job *job = userdata;

    if (step(job, "take-seal") >= 0 &&
        snapshot_writer_seal(job->writer, &job->info, &job->err) >= 0)
        (void)step(job, "take-sealed");
    if (!job->err.errnum)
        keep_flat(job);
    job->writer = snapshot_writer_free(job->writer);
    /* As if the answer had been lost: what is sealed must not stay. */
    if (job->err.errnum && job->info.id[0])
        (void)snapshot_remove(job->store, job->info.id, NULL);
}

static void seal_done(void *userdata, int cancelled)
{
    struct job *job = userdata;

    if (!cancelled && !job->core->closing)
        job->sealed(&job->info, failure(job), job->userdata);
    job_free(job);
}

int snapshots_seal(struct core *core, struct snapshot_writer **writer, struct snapshot_info *info,
                   snapshots_sealed_fn done, void *userdata)
{
    struct job *job = job_new(core, NULL, userdata);
    int r;

    if (!job)
        return -ENOMEM;
    job->sealed = done;
    job->writer = *writer;
    job->info = *info;
    care_before_seal(core->care);
    r = submit(job, seal_run, seal_done);
    if (r < 0) {
        free(job);
        return r;
    }
    *writer = NULL;
    memset(info, 0, sizeof(*info));
    return 0;
}

static void writer_run(void *userdata)
{
    struct job *job = userdata;

    job->writer = snapshot_writer_free(job->writer);
}

static void nothing_done(void *userdata, int cancelled)
{
    (void)cancelled;
    job_free(userdata);
}

void snapshots_writer_drop(struct core *core, struct snapshot_writer *writer)
{
    struct job *job = writer ? job_new(core, NULL, NULL) : NULL;

    if (!job) {
        (void)snapshot_writer_free(writer);
        return;
    }
    job->writer = writer;
    if (submit(job, writer_run, nothing_done) < 0)
        job_free(job);
}

static void remove_done(void *userdata, int cancelled);

/* ---- open ---- */

/* Made by another VMM or for another processor: not for this host. */
static int check_fit(struct job *job, const struct snapshot_info *info)
{
    struct origin host = {0};
    struct image image;
    int r;

    for (size_t i = 0; i < job->n_slots; i++) {
        if (strcmp(job->slots[i].backend->ops->name, info->origin.backend) == 0)
            job->slot = &job->slots[i];
    }
    if (!job->slot)
        return error_set_code(&job->err, ERR_BACKEND_UNAVAILABLE,
                              "snapshot '%s': its backend '%s' is not here", job->id,
                              info->origin.backend);
    slot_probe(job->slot, &job->opened.caps);
    if (!job->opened.caps.available)
        return error_set_code(&job->err, ERR_BACKEND_UNAVAILABLE, "snapshot '%s': backend '%s': %s",
                              job->id, info->origin.backend, job->opened.caps.reason);
    (void)snprintf(host.backend, sizeof(host.backend), "%s", info->origin.backend);
    (void)snprintf(host.backend_version, sizeof(host.backend_version), "%s",
                   job->opened.caps.version);
    (void)snprintf(host.accelerator, sizeof(host.accelerator), "%s", job->opened.caps.accelerator);
    (void)snprintf(host.cpu_model, sizeof(host.cpu_model), "%s", job->opened.caps.cpu_model);
    r = snapshot_fits(job->opened.snapshot, &host, &job->err);
    if (r < 0)
        return r;
    /* It may have been evicted; an image of layers can be made again. */
    if (!file_exists(info->origin.image_path))
        (void)image_ready(info->origin.image_name, &image, NULL);
    if (!file_exists(info->origin.image_path))
        return error_set_code(&job->err, ERR_IMAGE_NOT_FOUND,
                              "snapshot '%s': its image '%s' is not at '%s' any more", job->id,
                              info->origin.image_name, info->origin.image_path);
    return 0;
}

static void open_run(void *userdata)
{
    struct job *job = userdata;
    struct opened_snapshot *opened = &job->opened;
    int r = step(job, "wake-open");

    if (r >= 0)
        r = snapshot_open(job->store, job->id, &opened->snapshot, &job->err);
    if (r >= 0)
        r = check_fit(job, snapshot_get_info(opened->snapshot));
    if (r >= 0)
        r = snapshot_pages(opened->snapshot, &opened->pages, &job->err);
    if (r >= 0)
        (void)step(job, "wake-opened");
    if (job->err.errnum)
        opened_close(opened);
}

static void open_done(void *userdata, int cancelled)
{
    struct job *job = userdata;

    if (!cancelled && !job->core->closing) {
        struct opened_snapshot opened = job->opened;

        job->opened = (struct opened_snapshot){0};
        job->opened_fn(job->err.errnum ? NULL : &opened, failure(job), job->userdata);
    }
    job_free(job);
}

int snapshots_open(struct core *core, const char *id, snapshots_opened_fn done, void *userdata)
{
    struct job *job = job_new(core, id, userdata);
    int r;

    if (!job)
        return -ENOMEM;
    job->opened_fn = done;
    r = submit(job, open_run, open_done);
    if (r < 0)
        job_free(job);
    return r;
}

static void disk_run(void *userdata)
{
    struct job *job = userdata;

    (void)snapshot_copy_disk(job->snapshot, job->path, &job->err);
}

int snapshots_copy_disk(struct core *core, const struct snapshot *snapshot, const char *to,
                        backend_done_fn done, void *userdata)
{
    struct job *job = job_new(core, NULL, userdata);
    int r;

    if (!job)
        return -ENOMEM;
    job->snapshot = snapshot;
    (void)snprintf(job->path, sizeof(job->path), "%s", to);
    job->done = done;
    r = submit(job, disk_run, remove_done);
    if (r < 0)
        job_free(job);
    return r;
}

static void close_run(void *userdata)
{
    struct job *job = userdata;

    opened_close(&job->opened);
}

void snapshots_close(struct core *core, struct opened_snapshot *opened)
{
    struct job *job = NULL;

    if (opened->snapshot && !core->closing)
        job = job_new(core, NULL, NULL);
    if (!job) {
        opened_close(opened);
        return;
    }
    job->opened = *opened;
    *opened = (struct opened_snapshot){0};
    if (submit(job, close_run, nothing_done) < 0)
        job_free(job);
}

/* ---- remove ---- */

static void remove_run(void *userdata)
{
    struct job *job = userdata;

    if (step(job, "snapshot-remove") >= 0)
        (void)snapshot_remove(job->store, job->id, &job->err);
}

static void remove_done(void *userdata, int cancelled)
{
    struct job *job = userdata;

    if (!cancelled && !job->core->closing) {
        if (job->done)
            job->done(failure(job), job->userdata);
        else if (job->err.errnum && job->err.code != ERR_SNAPSHOT_NOT_FOUND)
            log_warning("Failed to remove snapshot '%s': %s, ignoring", job->id, job->err.text);
    }
    job_free(job);
}

int snapshots_remove(struct core *core, const char *id, backend_done_fn done, void *userdata)
{
    struct job *job = job_new(core, id, userdata);
    int r;

    if (!job)
        return -ENOMEM;
    job->done = done;
    r = submit(job, remove_run, remove_done);
    if (r < 0)
        job_free(job);
    return r;
}

void snapshots_drop(struct core *core, const char *id)
{
    if (snapshots_remove(core, id, NULL, NULL) < 0)
        log_warning("Failed to remove snapshot '%s': out of memory, ignoring", id);
}

/* ---- release ---- */

static void note_kind(const struct snapshot_info *info, void *userdata)
{
    struct job *job = userdata;

    if (strcmp(info->id, job->id) == 0)
        job->info.kind = info->kind;
}

static void release_run(void *userdata)
{
    struct job *job = userdata;

    job->info.kind = SNAPSHOT_CHECKPOINT;
    if (snapshot_each(job->store, note_kind, job, &job->err) < 0)
        return;
    if (job->info.kind != SNAPSHOT_CHECKPOINT)
        (void)snapshot_remove(job->store, job->id, &job->err);
}

bool snapshots_in_use(const struct core *core, const char *id)
{
    for (size_t i = 0; i < core->n_sandboxes; i++) {
        const struct sandbox *sb = core->sandboxes[i];

        if (strcmp(sb->snapshot, id) == 0 || strcmp(sb->restored_from, id) == 0)
            return true;
    }
    return forks_use_snapshot(core, id);
}

void snapshots_release(struct core *core, const char *id)
{
    struct job *job;

    if (!id[0] || core->closing || snapshots_in_use(core, id))
        return;
    job = job_new(core, id, NULL);
    if (!job || submit(job, release_run, remove_done) < 0) {
        log_warning("Failed to remove snapshot '%s': out of memory, ignoring", id);
        if (job)
            job_free(job);
    }
}
