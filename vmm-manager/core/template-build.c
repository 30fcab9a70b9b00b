#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/guest-fate.h"
#include "core/template-private.h"
#include "core/template-steps.h"
#include "core/template-warm.h"
#include "core/timeouts.h"
#include "erofs/disk.h"

/*
 * Theory of operation. One build per template, in steps that each end in a callback:
 *
 *   prepare (worker)  a good template on disk ends it here; else a directory and an empty disk
 *   boot (backend)    with its memory in a shared file
 *   hello (loop)      the guest is up; it gets an identity that nobody keeps, so that the files
 *                     which this needs are made once and not in every clone
 *   steps (loop)      of the recipe, when there is one
 *   warm (loop)       the image's shell runs once, then the guest is frozen: it serves nothing
 *                     until a clone is thawed with an identity of its own
 *   save (backend)    device state beside the memory; the VM is gone
 *   seal (worker)     sizes, digests, manifest, sync, rename
 *
 * The directory is called ID.tmp-VMID until the last step, so that a later daemon finds both the
 * rubbish and the VM that may belong to it. A failure kills the VM, removes the directory and is
 * the answer for all who wait.
 */
struct template_build {
    struct template *template; /* weak: owns this */
    struct core *core;         /* weak */
    struct resolution resolution;
    char vm_id[24];
    char *dir; /* owned */
    struct backend_vm vm;
    struct guest_link *link;      /* owned */
    struct template_steps *steps; /* owned */
    struct template_warm *warm;   /* owned */
    bool may_build;
    bool ended; /* no longer interested in the VM's end */
    bool saving;
    struct error err;
    uint64_t started_usec;
};

const char *template_build_vm_id(const struct template_build *b)
{
    return b->vm_id;
}

void template_build_quiesce(struct template_build *b)
{
    b->steps = template_steps_free(b->steps);
    b->warm = template_warm_free(b->warm);
    b->link = guest_link_free(b->link);
}

struct template_build *template_build_free(struct template_build *b)
{
    if (!b)
        return NULL;
    template_build_quiesce(b);
    free(b->dir);
    free(b);
    return NULL;
}

/* ---- giving up ---- */

static void on_killed(const struct error *err, void *userdata)
{
    struct template_build *b = userdata;
    struct template *t = b->template;
    struct error why = b->err;
    bool unsavable = b->saving && !t->recipe;

    if (b->core->closing)
        return;
    if (err)
        log_warning("Failed to end the VM of template '%s': %s, ignoring", t->manifest.id,
                    err->text);
    template_remove_dir(b->core, b->dir);
    if (unsavable)
        log_warning("Template '%s' cannot be saved, sandboxes will boot: %s", t->manifest.id,
                    why.text);
    template_made(t, false, unsavable ? NULL : &why);
}

static void build_fail(struct template_build *b, const struct error *err)
{
    struct backend *backend = b->resolution.slot->backend;
    int r;

    if (b->ended)
        return;
    b->ended = true;
    error_copy(&b->err, err);
    error_wrap(&b->err, "template of image '%s'", b->resolution.origin.image_name);
    template_build_quiesce(b);
    r = backend->ops->kill(backend, b->vm_id, on_killed, b);
    if (r < 0) {
        struct error failed = {0};

        (void)error_set(&failed, -r, "kill '%s': %s", b->vm_id, errno_text(-r));
        on_killed(&failed, b);
    }
}

static void build_fail_errno(struct template_build *b, int r, const char *what)
{
    struct error err = {0};

    (void)error_set(&err, -r, "%s: %s", what, errno_text(-r));
    build_fail(b, &err);
}

/* ---- seal ---- */

struct seal_job {
    struct core *core;        /* weak, not for the worker */
    struct template_build *b; /* weak, not for the worker */
    struct manifest manifest;
    char *from, *to; /* owned */
    struct recipe recipe;
    bool has_recipe;
    char digest[RECIPE_DIGEST_SIZE]; /* of the recipe when its steps began */
    struct error err;
};

static void seal_free(struct seal_job *job)
{
    recipe_done(&job->recipe);
    free(job->from);
    free(job->to);
    free(job);
}

static int seal_file(struct seal_job *job, const char *name)
{
    _cleanup_free_ char *path = string_printf("%s/%s", job->from, name);
    int r;

    if (!path)
        return error_set(&job->err, ENOMEM, "out of memory");
    /* First the mode: the file is known as verified by what stat() says of it now. */
    if (chmod(path, 0444) < 0)
        return error_set(&job->err, errno, "chmod '%s': %s", path, errno_text(errno));
    r = manifest_add_file(&job->manifest, job->from, name, /* digest= */ true, &job->err);
    return MIN(r, 0);
}

/* What was copied may have changed on the way: then this is not what its id says. */
static int seal_recipe(struct seal_job *job)
{
    _cleanup_free_ char *path = string_printf("%s/" TEMPLATE_RECIPE, job->from), *text = NULL;
    char digest[RECIPE_DIGEST_SIZE];
    json_t *json;
    int r;

    r = recipe_digest(&job->recipe, digest, &job->err);
    if (r < 0)
        return r;
    if (strcmp(digest, job->digest) != 0)
        return error_set_code(&job->err, ERR_CONFLICT,
                              "files that it copies were changed while it was made");
    json = recipe_to_json(&job->recipe);
    text = json ? json_dumps(json, JSON_INDENT(1)) : NULL;
    json_decref(json);
    if (!path || !text)
        return error_set(&job->err, ENOMEM, "out of memory");
    r = file_write_atomic(path, text, strlen(text), 0444, &job->err);
    return r < 0 ? r : seal_file(job, TEMPLATE_RECIPE);
}

static void seal_run(void *userdata)
{
    struct seal_job *job = userdata;

    if (job->has_recipe && seal_recipe(job) < 0)
        return;
    if (seal_file(job, TEMPLATE_MEMORY) < 0 || seal_file(job, TEMPLATE_STATE) < 0 ||
        seal_file(job, TEMPLATE_DISK) < 0)
        return;
    if (manifest_write(&job->manifest, job->from, &job->err) < 0)
        return;
    if (rename(job->from, job->to) < 0) {
        (void)error_set(&job->err, errno, "rename '%s' to '%s': %s", job->from, job->to,
                        errno_text(errno));
        return;
    }
    (void)dir_sync_parent(job->to);
}

static void seal_done(void *userdata, int cancelled)
{
    struct seal_job *job = userdata;
    struct template_build *b = job->b;

    if (!cancelled && !job->core->closing) {
        if (job->err.errnum) {
            build_fail(b, &job->err);
        } else {
            struct template *t = b->template;

            t->manifest = job->manifest;
            log_notice("Template '%s' of image '%s' is made, %llu ms", t->manifest.id,
                       t->manifest.origin.image_name,
                       (unsigned long long)((clock_now_usec() - b->started_usec) / USEC_PER_MSEC));
            template_made(t, true, NULL);
        }
    }
    seal_free(job);
}

static void on_saved(const struct error *err, void *userdata)
{
    struct template_build *b = userdata;
    struct seal_job *job;
    int r = -ENOMEM;

    if (b->core->closing)
        return;
    if (err) {
        build_fail(b, err);
        return;
    }
    b->saving = false;
    job = calloc(1, sizeof(*job));
    if (job) {
        job->core = b->core;
        job->b = b;
        memcpy(job->manifest.id, b->template->manifest.id, MANIFEST_ID_SIZE);
        job->manifest.created_wall_usec = clock_wall_usec();
        job->manifest.origin = b->resolution.origin;
        job->has_recipe = b->template->recipe != NULL;
        memcpy(job->digest, b->resolution.recipe_digest, sizeof(job->digest));
        if (string_set(&job->from, b->dir) >= 0 && string_set(&job->to, b->template->dir) >= 0 &&
            (!job->has_recipe || recipe_copy(b->template->recipe, &job->recipe) >= 0))
            r = workers_submit(b->core->io_workers, seal_run, seal_done, job);
        if (r < 0)
            seal_free(job);
    }
    if (r < 0)
        build_fail_errno(b, r, "seal");
}

/* ---- boot, hello, save ---- */

static void on_warm(const struct error *err, void *userdata)
{
    struct template_build *b = userdata;
    struct backend *backend = b->resolution.slot->backend;
    _cleanup_free_ char *state = string_printf("%s/%s", b->dir, TEMPLATE_STATE);
    int r = -ENOMEM;

    if (err) {
        build_fail(b, err);
        return;
    }
    /* Nobody may be connected when it is saved: the clone's console is another socket. */
    template_build_quiesce(b);
    b->saving = true;
    template_progress(b->template, "save template", 80);
    if (state)
        r = backend->ops->save(backend, b->vm_id, state,
                               clock_now_usec() + core_save_timeout_usec(b->template->core),
                               on_saved, b);
    if (r < 0)
        build_fail_errno(b, r, "save");
}

static void start_warm(struct template_build *b)
{
    struct error err = {0};

    template_progress(b->template, "warm up template", 75);
    if (template_warm_new(guest_link_console(b->link),
                          clock_now_usec() + core_warm_timeout_usec(b->template->core), on_warm, b,
                          &b->warm, &err) < 0)
        build_fail(b, &err);
}

static void on_steps_progress(const char *step, int percent, void *userdata)
{
    struct template_build *b = userdata;

    template_progress(b->template, step, percent);
}

static void on_steps_output(const char *text, size_t size, void *userdata)
{
    struct template_build *b = userdata;

    template_output(b->template, text, size);
}

static void on_steps_done(const struct error *err, void *userdata)
{
    struct template_build *b = userdata;

    if (err) {
        build_fail(b, err);
        return;
    }
    b->steps = template_steps_free(b->steps);
    start_warm(b);
}

static void on_link_ready(struct guest_link *link, void *userdata)
{
    static const struct template_steps_callbacks callbacks = {on_steps_progress, on_steps_output,
                                                              on_steps_done};
    struct template_build *b = userdata;
    struct error err = {0};

    if (!b->template->recipe)
        start_warm(b);
    else if (template_steps_new(b->template->recipe, guest_link_console(link), b->core->loop,
                                b->core->io_workers, &callbacks, b, &b->steps, &err) < 0)
        build_fail(b, &err);
}

static void on_link_broken(struct guest_link *link, const struct error *reason, void *userdata)
{
    struct template_build *b = userdata;
    struct error err = *reason;

    (void)link;
    guest_fate_explain("the first boot", b->vm.log_path, &err);
    build_fail(b, &err);
}

void template_build_vm_gone(struct template_build *b, const char *reason)
{
    struct error err = {0};

    if (b->ended || b->saving)
        return;
    if (guest_fate_ended("the first boot", b->vm.log_path, reason, &err))
        (void)error_set_code(&err, ERR_GUEST_GONE, "the first boot: the guest powered off");
    build_fail(b, &err);
}

static void on_booted(const struct backend_vm *vm, const struct error *err, void *userdata)
{
    static const struct guest_link_callbacks callbacks = {on_link_ready, on_link_broken};
    struct template_build *b = userdata;
    struct guest_link_options options = {0};
    struct link_identity identity;
    int r;

    if (b->core->closing)
        return;
    if (err) {
        build_fail(b, err);
        return;
    }
    b->vm = *vm;
    template_progress(b->template, "wait for the guest", 40);
    options.loop = b->core->loop;
    options.backend = b->resolution.slot->backend;
    options.vm_id = b->vm_id;
    options.deadline_usec =
        clock_now_usec() + core_boot_timeout_usec(b->core, b->resolution.caps.accelerator);
    link_identity_make(&identity, "template");
    options.thaw = LINK_THAW_ALWAYS;
    options.identity = &identity;
    r = guest_link_new(&options, &callbacks, b, &b->link);
    if (r < 0)
        build_fail_errno(b, r, "connect");
}

static void build_boot(struct template_build *b)
{
    struct backend *backend = b->resolution.slot->backend;
    const struct origin *o = &b->resolution.origin;
    _cleanup_free_ char *disk = string_printf("%s/%s", b->dir, TEMPLATE_DISK);
    _cleanup_free_ char *memory = string_printf("%s/%s", b->dir, TEMPLATE_MEMORY);
    struct vm_spec spec = {
        .id = b->vm_id,
        .dir = b->dir,
        .cpus = o->cpus,
        .memory_mib = o->memory_mib,
        .kernel = b->resolution.kernel,
        .initramfs = b->resolution.initramfs,
        .image = o->image_path,
        .disk = disk,
        .memory_file = memory,
    };
    int r = -ENOMEM;

    template_progress(b->template, "boot template", 10);
    if (disk && memory)
        r = backend->ops->boot(backend, &spec,
                               clock_now_usec() +
                                   core_boot_timeout_usec(b->core, b->resolution.caps.accelerator),
                               on_booted, b);
    if (r < 0)
        build_fail_errno(b, r, "boot");
}

/* ---- prepare ---- */

struct prepare_job {
    struct core *core;        /* weak, not for the worker */
    struct template_build *b; /* weak, not for the worker */
    struct origin origin;
    char *dir, *build_dir; /* owned */
    bool can_build;
    const char *cannot; /* why not */
    struct manifest manifest;
    bool found;
    struct error err;
};

static void prepare_free(struct prepare_job *job)
{
    free(job->dir);
    free(job->build_dir);
    free(job);
}

static bool prepare_find(struct prepare_job *job)
{
    struct error why = {0};
    int r;

    r = manifest_read(job->dir, &job->manifest, &why);
    if (r >= 0)
        r = origin_compare(&job->manifest.origin, &job->origin, &why);
    if (r >= 0)
        r = manifest_verify(&job->manifest, job->dir, &why);
    if (r >= 0)
        return true;
    if (why.code != ERR_TEMPLATE_NOT_FOUND)
        log_warning("Template in '%s' is not used and will be made again: %s", job->dir, why.text);
    return false;
}

static void prepare_run(void *userdata)
{
    struct prepare_job *job = userdata;
    _cleanup_free_ char *disk = string_printf("%s/%s", job->build_dir, TEMPLATE_DISK);

    job->found = prepare_find(job);
    if (job->found)
        return;
    if (!job->can_build) {
        (void)error_set_code(&job->err, ERR_TEMPLATE_INVALID, "%s", job->cannot);
        return;
    }
    if (!disk) {
        (void)error_set(&job->err, ENOMEM, "out of memory");
        return;
    }
    if (dir_remove(job->dir, &job->err) < 0 || dir_create(job->build_dir, 0700, &job->err) < 0)
        return;
    (void)disk_make(disk, job->origin.disk_mib, &job->err);
}

static void prepare_done(void *userdata, int cancelled)
{
    struct prepare_job *job = userdata;
    struct template_build *b = job->b;

    if (!cancelled && !job->core->closing) {
        if (job->err.errnum) {
            build_fail(b, &job->err);
        } else if (job->found) {
            b->template->manifest = job->manifest;
            template_made(b->template, true, NULL);
        } else {
            build_boot(b);
        }
    }
    prepare_free(job);
}

static int build_prepare(struct template_build *b)
{
    struct prepare_job *job = calloc(1, sizeof(*job));
    int r;

    if (!job)
        return -ENOMEM;
    job->core = b->core;
    job->b = b;
    job->origin = b->resolution.origin;
    job->can_build = b->may_build && b->resolution.kernel[0] != '\0';
    job->cannot = b->may_build ? "it is broken, and the kernel it was made with is gone"
                               : "it is broken; build it again";
    r = string_set(&job->dir, b->template->dir);
    if (r >= 0)
        r = string_set(&job->build_dir, b->dir);
    if (r >= 0)
        r = workers_submit(b->core->io_workers, prepare_run, prepare_done, job);
    if (r < 0)
        prepare_free(job);
    return r;
}

int template_build_start(struct template *t, const struct resolution *resolution, bool may_build,
                         struct error *err)
{
    struct template_build *b = calloc(1, sizeof(*b));
    char suffix[12] = "";
    int r;

    if (!b)
        return error_set(err, ENOMEM, "template '%s': out of memory", t->manifest.id);
    b->template = t;
    b->core = t->core;
    b->resolution = *resolution;
    b->may_build = may_build;
    b->started_usec = clock_now_usec();
    t->manifest.origin = resolution->origin;
    r = random_id(suffix, sizeof(suffix) - 1);
    if (r >= 0) {
        (void)snprintf(b->vm_id, sizeof(b->vm_id), "tmpl-%s", suffix);
        b->dir = string_printf("%s.tmp-%s", t->dir, b->vm_id);
        r = b->dir ? build_prepare(b) : -ENOMEM;
    }
    if (r < 0) {
        (void)template_build_free(b);
        return error_set(err, -r, "template '%s': %s", t->manifest.id, errno_text(-r));
    }
    t->build = b;
    return 0;
}
