#include <stdlib.h>

#include "base/log.h"
#include "base/strv.h"
#include "core/core-private.h"
#include "core/sandbox-private.h"
#include "core/template.h"
#include "store/snapshot.h"

/* Space for images: what may go, and when. */
struct prune_job {
    struct core *core;            /* weak; the worker reads only what never changes in it */
    struct prune_options options; /* its strv is owned */
    struct prune_result result;
    core_pruned_fn done; /* NULL: nobody waits */
    void *userdata;
    struct error err;
};

static void add_snapshot(const struct snapshot_info *info, void *userdata)
{
    (void)strv_append(userdata, info->origin.image_sha256);
}

/* What a snapshot stands on it will want again. */
static int add_snapshots(struct core *core, char ***in_use, struct error *err)
{
    return snapshot_each(core->snapshots, add_snapshot, in_use, err);
}

static void prune_run(void *data)
{
    struct prune_job *job = data;

    if (add_snapshots(job->core, &job->options.in_use, &job->err) < 0)
        return;
    (void)image_prune(&job->options, &job->result, &job->err);
}

static void prune_done(void *data, int cancelled)
{
    struct prune_job *job = data;

    if (cancelled)
        (void)error_set(&job->err, ECANCELED, "prune: the daemon ends");
    if (job->done)
        job->done(&job->result, job->err.errnum ? &job->err : NULL, job->userdata);
    else if (job->err.errnum && !cancelled)
        log_warning("Failed to make room for images: %s, ignoring", job->err.text);
    else if (job->result.removed > 0)
        log_info("Images: %llu bytes freed to stay within the limit",
                 (unsigned long long)job->result.freed_bytes);
    (void)strv_free(job->options.in_use);
    free(job);
}

char **core_images_in_use(struct core *core)
{
    char **list = NULL;

    for (size_t i = 0; i < core->n_sandboxes; i++)
        if (core->sandboxes[i]->origin.image_sha256[0])
            (void)strv_append(&list, core->sandboxes[i]->origin.image_sha256);
    templates_list_images(core, &list);
    return list;
}

int core_images_prune(struct core *core, bool all, bool trim, core_pruned_fn done, void *userdata)
{
    struct prune_job *job = calloc(1, sizeof(*job));
    int r;

    if (!job)
        return -ENOMEM;
    job->core = core;
    job->options.all = all;
    job->options.trim = trim;
    job->options.in_use = core_images_in_use(core);
    job->done = done;
    job->userdata = userdata;
    r = workers_submit(core->image_workers, prune_run, prune_done, job);
    if (r < 0) {
        (void)strv_free(job->options.in_use);
        free(job);
    }
    return r;
}

int core_image_remove(struct core *core, const char *name, char ***in_use, struct error *err)
{
    int r = add_snapshots(core, in_use, err);

    return r < 0 ? r : image_remove(name, *in_use, err);
}

void core_images_trim(struct core *core)
{
    if (!core->closing)
        (void)core_images_prune(core, /* all= */ false, /* trim= */ true, NULL, NULL);
}
