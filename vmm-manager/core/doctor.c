#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/paths.h"
#include "base/strv.h"
#include "core/doctor-private.h"
#include "erofs/image.h"
#include "kernel/kernel.h"

/* What this host can do, and how to mend what it cannot: a table of small checks, run on a worker.
 */

void doctor_add(struct doctor *d, const char *name, bool ok, enum doctor_level level,
                const char *fix, const char *detail, ...)
{
    static const char *const levels[] = {"info", "warning", "error"};
    char text[512];
    va_list ap;

    va_start(ap, detail);
    (void)vsnprintf(text, sizeof(text), detail, ap);
    va_end(ap);
    if (!ok && level == DOCTOR_ERROR)
        d->ok = false;
    (void)json_array_append_new(d->checks,
                                json_pack("{s:s, s:b, s:s, s:s, s:s}", "name", name, "ok", ok,
                                          "level", levels[ok ? DOCTOR_INFO : level], "detail", text,
                                          "fix", !ok && fix ? fix : ""));
}

static void check_backends(struct doctor *d)
{
    bool any = false;

    for (size_t i = 0; i < d->core->n_slots; i++) {
        struct backend_slot *slot = &d->core->slots[i];
        struct backend_caps caps;
        char name[64];

        slot_probe(slot, &caps);
        (void)snprintf(name, sizeof(name), "%s-safety", slot->backend->ops->name);
        if (caps.warning[0])
            doctor_add(d, name, false, DOCTOR_WARNING, caps.warning_fix, "%s", caps.warning);
        any = any || caps.available;
        if (caps.available)
            doctor_add(d, slot->backend->ops->name, true, DOCTOR_INFO, NULL,
                       "%s, accelerator %s, CPU %s%s", caps.version, caps.accelerator,
                       caps.cpu_model, caps.snapshot_memory ? "" : ", no snapshots");
        else
            doctor_add(d, slot->backend->ops->name, false, DOCTOR_WARNING, NULL, "%s", caps.reason);
    }
    doctor_add(d, "backend", any, DOCTOR_ERROR,
               "install QEMU and libvirt's QEMU driver: ./quickstart does it", "%s",
               any ? "a sandbox can be run" : "nothing on this host can run a sandbox");
}

static void check_kernel(struct doctor *d)
{
    struct kernel kernel;
    struct error err = {0};

    if (kernel_find(NULL, &kernel, &err) < 0) {
        doctor_add(d, "kernel", false, DOCTOR_ERROR, "hearth kernel fetch, or ./quickstart", "%s",
                   err.text);
        return;
    }
    doctor_add(d, "kernel", true, DOCTOR_INFO, NULL, "%s, version %s", kernel.name, kernel.version);
    if (kernel_find("minimal", &kernel, NULL) < 0)
        doctor_add(d, "minimal-kernel", false, DOCTOR_WARNING,
                   "hearth kernel build (some minutes, once)",
                   "not built: templates boot about four times slower than they could");
}

static void check_image(struct doctor *d)
{
    struct image image;
    struct error err = {0};

    if (image_find("base", &image, &err) < 0)
        doctor_add(d, "image", false, DOCTOR_ERROR, "./quickstart, or hearth image import", "%s",
                   err.text);
    else
        doctor_add(d, "image", true, DOCTOR_INFO, NULL, "base, %llu MiB",
                   (unsigned long long)(image.size_bytes >> 20));
}

static void check_init(struct doctor *d)
{
    _cleanup_free_ char *beside = string_printf("%s/hearth-init", paths_program_dir());
    const char *path = d->core->init_path ? d->core->init_path : beside;
    bool there = path && file_exists(path);

    doctor_add(d, "init", there, DOCTOR_ERROR, "build it: ./quickstart", "%s%s",
               path ? path : "hearth-init", there ? "" : " is missing");
}

static void check_state(struct doctor *d)
{
    const char *dir = d->core->state_dir;
    bool writable = access(dir, W_OK | X_OK) == 0;
    struct statvfs fs;
    uint64_t free_mib;

    doctor_add(d, "state", writable, DOCTOR_ERROR, "make it writable, or set HEARTH_STATE", "%s%s",
               dir, writable ? "" : " is not writable");
    if (statvfs(dir, &fs) < 0)
        return;
    free_mib = (uint64_t)fs.f_bavail * fs.f_frsize >> 20;
    doctor_add(d, "space", free_mib >= d->core->min_free_mib, DOCTOR_ERROR,
               "remove sandboxes or templates, or make room", "%llu MiB free in %s",
               (unsigned long long)free_mib, dir);
}

static void (*const checks[])(struct doctor *d) = {
    doctor_check_user,   doctor_check_arch,   doctor_check_kvm,   check_backends,
    check_kernel,        check_image,         check_init,         check_state,
    doctor_check_memory, doctor_check_cgroup, doctor_check_files, doctor_check_userfaultfd,
};

struct doctor_job {
    struct doctor doctor;
    struct core *core; /* weak */
    void (*done)(json_t *report, void *userdata);
    void *userdata;
};

static void doctor_run(void *userdata)
{
    struct doctor_job *job = userdata;

    for (size_t i = 0; i < ARRAY_SIZE(checks); i++)
        checks[i](&job->doctor);
}

static void doctor_done(void *userdata, int cancelled)
{
    struct doctor_job *job = userdata;

    if (!cancelled && !job->core->closing)
        job->done(json_pack("{s:b, s:O}", "ok", job->doctor.ok, "checks", job->doctor.checks),
                  job->userdata);
    json_decref(job->doctor.checks);
    free(job);
}

int core_doctor(struct core *core, void (*done)(json_t *report, void *userdata), void *userdata)
{
    struct doctor_job *job = calloc(1, sizeof(*job));
    int r;

    if (!job)
        return -ENOMEM;
    job->doctor.core = core;
    job->doctor.ok = true;
    job->doctor.checks = json_array();
    job->core = core;
    job->done = done;
    job->userdata = userdata;
    r = workers_submit(core->io_workers, doctor_run, doctor_done, job);
    if (r < 0) {
        json_decref(job->doctor.checks);
        free(job);
    }
    return r;
}
