#include "core/resolve.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/file.h"
#include "base/paths.h"
#include "base/strv.h"
#include "core/resolve-cache.h"
#include "core/template.h"
#include "kernel/vmlinux.h"
#include "oci/pull.h"

struct resolve_job {
    struct core *core;                  /* weak; the worker reads only what never changes in it */
    struct sandbox_spec spec;           /* owned */
    char template_id[MANIFEST_ID_SIZE]; /* that the spec names; "": none */
    resolve_progress_fn progress;
    resolve_done_fn done;
    void *userdata;
    _Atomic bool cancel;
    bool grew;                  /* the cache of images, on the way */
    struct image_config config; /* owned */
    struct resolution result;
    struct watched_files watched;
    struct error err;
};

static void job_free(struct resolve_job *job)
{
    sandbox_spec_done(&job->spec);
    image_config_done(&job->config);
    free(job);
}

/* Progress of a pull on its way from the worker to the loop; posted before the job's end. */
struct pull_step {
    struct resolve_job *job;
    int percent;
    char what[96];
};

static void step_post(void *userdata)
{
    struct pull_step *step = userdata;

    if (step->job->progress && !step->job->core->closing && !atomic_load(&step->job->cancel))
        step->job->progress(step->what, step->percent, step->job->userdata);
    free(step);
}

static void on_pull_progress(int percent, const char *what, void *userdata)
{
    struct resolve_job *job = userdata;
    struct pull_step *step = calloc(1, sizeof(*step));

    if (!step)
        return;
    step->job = job;
    step->percent = percent;
    (void)snprintf(step->what, sizeof(step->what), "pull: %s", what);
    if (loop_post(job->core->loop, step_post, step) < 0)
        free(step);
}

/* The image is in the cache afterwards, ready to be booted from. */
static int get_image(struct resolve_job *job, const char *name, struct image *ret)
{
    const struct pull_options options = {
        .reference = name, .cancel = &job->cancel, .progress = on_pull_progress, .userdata = job};
    int r = image_find(name, ret, &job->err);

    job->grew = r < 0 || !ret->ready;
    if (r >= 0)
        r = image_ready(name, ret, &job->err);
    if (r != -ENOENT || !reference_is_explicit(name))
        return r;
    error_clear(&job->err);
    r = image_pull(&options, ret, &job->err);
    return r < 0 ? r : image_ready(name, ret, &job->err);
}

void slot_probe(struct backend_slot *slot, struct backend_caps *ret)
{
    pthread_mutex_lock(&slot->probe_lock);
    if (!slot->probed) {
        memset(&slot->caps, 0, sizeof(slot->caps));
        slot->backend->ops->probe(slot->backend, &slot->caps);
        slot->probed = slot->caps.available;
    }
    *ret = slot->caps;
    pthread_mutex_unlock(&slot->probe_lock);
}

/* The backend asked for, or with NULL the first that works. */
static int choose_backend(struct resolve_job *job, const char *name)
{
    struct core *core = job->core;
    char reasons[sizeof(job->err.text)] = "";
    struct backend_caps caps;
    size_t used = 0;

    for (size_t i = 0; i < core->n_slots; i++) {
        struct backend_slot *slot = &core->slots[i];

        if (name && strcmp(name, slot->backend->ops->name) != 0)
            continue;
        slot_probe(slot, &caps);
        if (caps.available) {
            job->result.slot = slot;
            job->result.caps = caps;
            return 0;
        }
        if (used < sizeof(reasons))
            used += (size_t)snprintf(reasons + used, sizeof(reasons) - used, "%sbackend '%s': %s",
                                     used ? "; " : "", slot->backend->ops->name, caps.reason);
    }
    return error_set_code(&job->err, ERR_BACKEND_UNAVAILABLE, "%s",
                          reasons[0] ? reasons : "there is no backend on this host");
}

static int check_space(const struct core *core, struct error *err)
{
    struct statvfs fs;
    uint64_t free_mib;

    if (statvfs(core->state_dir, &fs) < 0)
        return error_set(err, errno, "state directory '%s': %s", core->state_dir,
                         errno_text(errno));
    free_mib = (uint64_t)fs.f_bavail * fs.f_frsize / (1024u * 1024u);
    if (free_mib < core->min_free_mib)
        return error_set_code(err, ERR_NO_SPACE,
                              "state directory '%s': %llu MiB free, at least %u MiB are needed; "
                              "remove sandboxes or templates, or make room",
                              core->state_dir, (unsigned long long)free_mib, core->min_free_mib);
    return 0;
}

/* ---- what the answer hangs on ---- */

static void watch(struct resolve_job *job, const char *path)
{
    watched_files_add(&job->watched, path);
}

static void _printf_(2, 3) watch_printf(struct resolve_job *job, const char *format, ...)
{
    char path[512];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(path, sizeof(path), format, args);
    va_end(args);
    watch(job, path);
}

/* The file that says which image a name means. */
static void watch_record(struct resolve_job *job, const char *name)
{
    char path[256];

    if (image_record_path(name, path) == 0)
        watch(job, path);
}

/* Before anything is read. */
static void watch_sources(struct resolve_job *job)
{
    const char *cache = paths_cache_dir(), *kernel = getenv("HEARTH_KERNEL");

    if (job->spec.template)
        watch_printf(job, "%s/%s/manifest.json", job->core->templates_dir, job->template_id);
    else
        watch_record(job, job->spec.image ? job->spec.image : "base");
    watch_printf(job, "%s/kernels/%s/info.json", cache, kernel && *kernel ? kernel : "minimal");
    if (job->core->init_path)
        watch(job, job->core->init_path);
    else
        watch_printf(job, "%s/hearth-init", paths_program_dir());
}

/* What was found, and must stay. */
static void watch_found(struct resolve_job *job, const struct kernel *kernel)
{
    if (strcmp(kernel->name, "distro") == 0) /* what the first choice is not there for */
        watch_printf(job, "%s/kernels/distro/info.json", paths_cache_dir());
    watch_printf(job, "%s/modules.list", kernel->modules_dir);
    job->watched.n_deciding = job->watched.n;
    watch(job, job->result.initramfs);
    watch(job, job->result.kernel);
}

static int copy_text(char *to, size_t size, const char *from, const char *what, struct error *err)
{
    if ((size_t)snprintf(to, size, "%s", from) >= size)
        return error_set(err, ENAMETOOLONG, "%s '%s': too long", what, from);
    return 0;
}

static int fill_backend(struct resolve_job *job, struct origin *o)
{
    const struct backend_caps *caps = &job->result.caps;
    int r;

    r = copy_text(o->backend, sizeof(o->backend), job->result.slot->backend->ops->name, "backend",
                  &job->err);
    if (r < 0)
        return r;
    (void)snprintf(o->backend_version, sizeof(o->backend_version), "%s", caps->version);
    (void)snprintf(o->accelerator, sizeof(o->accelerator), "%s", caps->accelerator);
    (void)snprintf(o->cpu_model, sizeof(o->cpu_model), "%s", caps->cpu_model);
    return 0;
}

static int fill_kernel(struct resolve_job *job, struct origin *o)
{
    struct kernel kernel = {0};
    int r;

    r = kernel_find(NULL, &kernel, &job->err);
    if (r < 0)
        return r;
    r = initramfs_cache_get(&job->core->initramfs, &kernel, job->core->init_path,
                            job->result.initramfs, o->initramfs_sha256, &job->err);
    if (r < 0)
        return r;
    if (job->result.caps.elf_kernel) {
        r = kernel_elf(&kernel, job->result.kernel, sizeof(job->result.kernel), &job->err);
        if (r < 0)
            return r;
    } else {
        (void)snprintf(job->result.kernel, sizeof(job->result.kernel), "%s", kernel.path);
    }
    watch_found(job, &kernel);
    (void)snprintf(o->kernel_version, sizeof(o->kernel_version), "%s", kernel.version);
    (void)snprintf(o->kernel_sha256, sizeof(o->kernel_sha256), "%s", kernel.sha256);
    return 0;
}

static int resolve_image(struct resolve_job *job)
{
    struct origin *o = &job->result.origin;
    struct image image = {0};
    int r;

    r = get_image(job, job->spec.image ? job->spec.image : "base", &image);
    if (r >= 0)
        r = image_get_config(image.name, &job->config, &job->err);
    if (r < 0)
        return r;
    job->result.config = &job->config;
    (void)snprintf(o->image_name, sizeof(o->image_name), "%s", image.name);
    (void)snprintf(o->image_path, sizeof(o->image_path), "%s", image.path);
    (void)snprintf(o->image_sha256, sizeof(o->image_sha256), "%s", image.sha256);
    if (strcmp(image.name, job->spec.image ? job->spec.image : "base") != 0)
        watch_record(job, image.name); /* found by another form of its name */
    watch(job, image.path);
    r = fill_kernel(job, o);
    if (r < 0)
        return r;
    o->cpus = job->spec.cpus;
    o->memory_mib = job->spec.memory_mib;
    o->disk_mib = job->spec.disk_mib;
    return 0;
}

/*
 * A template named by its id: everything is as its manifest says. When the host's kernel has
 * changed since, it can still be restored but not be made again.
 */
static int resolve_template(struct resolve_job *job)
{
    const char *id = job->spec.template;
    struct manifest manifest;
    struct origin now = {0};
    struct image image;
    _cleanup_free_ char *dir = NULL;
    int r;

    if (!job->template_id[0])
        return error_set_code(&job->err, ERR_TEMPLATE_NOT_FOUND,
                              "template '%.64s': no such template", id);
    dir = string_printf("%s/%s", job->core->templates_dir, job->template_id);
    if (!dir)
        return error_set(&job->err, ENOMEM, "out of memory");
    r = manifest_read(dir, &manifest, &job->err);
    if (r < 0) {
        error_wrap(&job->err, "template '%s'", id);
        return r;
    }
    r = choose_backend(job, job->spec.backend ? job->spec.backend : manifest.origin.backend);
    if (r < 0)
        return r;
    /* Its EROFS file may have been evicted while nothing used it. */
    if (!file_exists(manifest.origin.image_path))
        (void)image_ready(manifest.origin.image_name, &image, NULL);
    if (image_get_config(manifest.origin.image_name, &job->config, NULL) == 0)
        job->result.config = &job->config;
    if (!file_exists(manifest.origin.image_path))
        return error_set_code(&job->err, ERR_IMAGE_NOT_FOUND,
                              "template '%s': its image '%s' is no longer there", id,
                              manifest.origin.image_name);
    watch(job, manifest.origin.image_path);
    r = fill_kernel(job, &now);
    if (r < 0)
        return r;
    job->result.origin = manifest.origin;
    r = fill_backend(job, &job->result.origin);
    if (r < 0)
        return r;
    r = origin_compare(&manifest.origin, &job->result.origin, &job->err);
    if (r < 0) {
        error_wrap(&job->err, "template '%s' does not fit this host", id);
        return r;
    }
    if (strcmp(now.kernel_sha256, manifest.origin.kernel_sha256) != 0 ||
        strcmp(now.initramfs_sha256, manifest.origin.initramfs_sha256) != 0)
        job->result.kernel[0] = '\0';
    memcpy(job->result.template_id, job->template_id, sizeof(job->template_id));
    return 0;
}

static void resolve_run(void *userdata)
{
    struct resolve_job *job = userdata;

    if (check_space(job->core, &job->err) < 0)
        return;
    watch_sources(job);
    if (job->spec.template) {
        if (resolve_template(job) < 0)
            return;
    } else if (choose_backend(job, job->spec.backend) < 0 || resolve_image(job) < 0 ||
               fill_backend(job, &job->result.origin) < 0) {
        return;
    } else {
        origin_id(&job->result.origin, job->result.template_id);
    }
}

static void resolve_done(void *userdata, int cancelled)
{
    struct resolve_job *job = userdata;

    if (!cancelled && !job->core->closing) {
        if (!job->err.errnum)
            resolve_cache_put(job->core, &job->spec, &job->result, &job->watched);
        if (job->grew)
            core_images_trim(job->core);
        job->done(&job->result, job->err.errnum ? &job->err : NULL, job->userdata);
    }
    job_free(job);
}

int resolve_now(struct core *core, const struct sandbox_spec *spec, struct resolution *ret)
{
    const struct resolution *known = resolve_cache_find(core, spec, /* all= */ true);
    struct error full = {0};

    /* Without room the long way tells why. */
    if (!known || check_space(core, &full) < 0)
        return 0;
    *ret = *known;
    return 1;
}

void resolve_cancel(struct resolve_job *job)
{
    atomic_store(&job->cancel, true);
}

/* What may take minutes does not go where files are only looked up. */
static struct workers *workers_for(struct core *core, const struct sandbox_spec *spec)
{
    struct image image;

    if (!spec->image || !reference_is_explicit(spec->image))
        return core->io_workers;
    return image_find(spec->image, &image, NULL) == 0 && image.ready ? core->io_workers
                                                                     : core->image_workers;
}

int resolve_start(struct core *core, const struct sandbox_spec *spec, resolve_progress_fn progress,
                  resolve_done_fn done, void *userdata, struct resolve_job **ret_job)
{
    struct resolve_job *job = calloc(1, sizeof(*job));
    int r;

    if (!job)
        return -ENOMEM;
    job->core = core;
    job->progress = progress;
    job->done = done;
    job->userdata = userdata;
    r = sandbox_spec_copy(spec, &job->spec);
    if (spec->template && template_find_id(core, spec->template, job->template_id, NULL) >= 0)
        job->result.recipe = template_has_recipe(core, job->template_id);
    if (r >= 0)
        r = workers_submit(workers_for(core, spec), resolve_run, resolve_done, job);
    if (r < 0)
        job_free(job);
    else if (ret_job)
        *ret_job = job;
    return r;
}
