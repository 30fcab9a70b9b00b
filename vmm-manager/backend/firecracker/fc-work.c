#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/firecracker/fc-private.h"
#include "backend/firecracker/fc-zero.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"
#include "erofs/packs.h"
#include "pager/pager-spawn.h"

/* A process that is not there after this long never will be. */
#define LAUNCH_USEC (60 * USEC_PER_SEC)
#define KILL_USEC (5 * USEC_PER_SEC)

/* ---- prepare ---- */

struct prepare_job {
    struct fc_vm *vm; /* weak, not for the worker; lives while the job does */
    struct fc *b;     /* weak; the worker only asks it for the programs */
    struct fc_launch launch;
    bool launched; /* vmm is there */
    struct fc_vmm vmm;
    char *kernel, *initramfs, *image, *disk, *memory, *state; /* owned */
    char **packs;                                             /* owned strv; of the image */
    struct page_source *pages;                                /* weak; lie over memory */
    char *pager_dir;                                          /* owned; has them instead */
    char record[256], log_path[256];
    uint32_t memory_mib, cpus;
    uint64_t deadline_usec;
    struct error err;
};

static void prepare_free(struct prepare_job *job)
{
    free(job->kernel);
    free(job->initramfs);
    free(job->image);
    (void)strv_free(job->packs);
    free(job->disk);
    free(job->memory);
    free(job->state);
    free(job->pager_dir);
    (void)fd_close(job->launch.cancel_fd);
    free(job);
}

/* The process that serves the memory: it ends with ours, or when nobody has come in time. */
static int start_pager(struct prepare_job *job)
{
    const struct fc_jail *jail = &job->vmm.jail;
    uint64_t now = clock_now_usec();
    char socket[108], log[sizeof(job->log_path) + 16];
    struct pager_spawn options = {
        .socket = socket,
        .snapshot_dir = job->pager_dir,
        .base_memory = job->memory,
        .log_file = log,
        .uid = jail->jailed ? jail->uid : geteuid(),
        .gid = jail->jailed ? jail->uid : getegid(),
        .connect_timeout_usec = job->deadline_usec > now ? job->deadline_usec - now : 1,
    };

    fc_jail_path(jail, FC_NAME_PAGER, socket);
    (void)snprintf(log, sizeof(log), "%s.pager", job->log_path);
    return pager_spawn(&options, &job->err);
}

/* A link is enough: whoever removes the layer meanwhile takes nothing from this VM. */
static int share_packs(struct prepare_job *job)
{
    char name[FC_PACK_NAME_SIZE];
    int r = 0;

    for (size_t i = 0; r >= 0 && job->packs && job->packs[i]; i++) {
        fc_pack_name(i, name);
        r = fc_jail_share(&job->vmm.jail, job->vmm.pid, job->packs[i], name, FC_SHARE_READ,
                          &job->err);
    }
    return r;
}

static int share_all(struct prepare_job *job)
{
    /* Image and template are known as verified by what stat() says of them: it stays so. */
    const struct {
        const char *path, *name;
        enum fc_share how;
    } files[] = {
        {job->image, "image", FC_SHARE_UNTOUCHED},
        {job->disk, "disk", FC_SHARE_WRITABLE},
        {job->kernel, "kernel", FC_SHARE_READ},
        {job->pages || job->pager_dir ? NULL : job->memory, FC_NAME_MEMORY, FC_SHARE_UNTOUCHED},
        {job->initramfs, "initramfs", FC_SHARE_READ},
        {job->state, FC_NAME_STATE, FC_SHARE_UNTOUCHED},
    };

    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        int r = files[i].path ? fc_jail_share(&job->vmm.jail, job->vmm.pid, files[i].path,
                                              files[i].name, files[i].how, &job->err)
                              : 0;

        if (r < 0)
            return r;
    }
    if (share_packs(job) < 0)
        return -job->err.errnum;
    if (job->pager_dir)
        return start_pager(job);
    return job->pages ? fc_jail_compose(&job->vmm.jail, job->memory, job->pages, FC_NAME_MEMORY,
                                        job->deadline_usec, &job->err)
                      : 0;
}

/* The log is a file of the jail; a second name of it stays when the jail goes. */
static int name_log(struct prepare_job *job)
{
    char log[108];

    fc_jail_path(&job->vmm.jail, FC_SERIAL_LOG, log);
    (void)unlink(job->log_path);
    if (link(log, job->log_path) < 0)
        return error_set(&job->err, errno, "link '%s' to '%s': %s", log, job->log_path,
                         errno_text(errno));
    return 0;
}

static void prepare_run(void *userdata)
{
    struct prepare_job *job = userdata;

    if (image_packs_find(job->image, &job->packs, &job->err) < 0)
        return;
    if (!job->launched) {
        if (fc_programs_get(job->b, &job->launch.programs, &job->err) < 0 ||
            fc_vmm_launch(&job->launch, &job->vmm, &job->err) < 0)
            return;
        job->launched = true;
    }
    job->vmm.restored = job->state != NULL;
    /* First the record: a daemon that dies now leaves a trace of it. */
    if (fc_vmm_record_write(&job->vmm, job->record, &job->err) >= 0 &&
        fc_jail_limit(&job->vmm.jail, job->memory_mib, job->cpus, job->disk, &job->err) >= 0 &&
        name_log(job) >= 0)
        (void)share_all(job);
}

static void take_process(struct fc_vm *vm, const struct prepare_job *job)
{
    vm->vmm = job->vmm;
    vm->vm.pid = job->vmm.pid;
    fc_jail_path(&vm->vmm.jail, FC_CONSOLE_SOCKET, vm->vm.console_path);
}

static void prepare_done(void *userdata, int cancelled)
{
    struct prepare_job *job = userdata;
    struct fc *b = job->b;
    struct fc_vm *vm = job->vm;
    int r;

    vm->busy = false;
    vm->cancel_fd = -EBADF;
    if (cancelled)
        (void)error_set(&job->err, ECANCELED, "'%s': the daemon ends", vm->id);
    if (job->launch.uid && !(job->launched && job->vmm.jail.jailed))
        fc_uid_release(b, job->launch.uid);
    if (!job->err.errnum && !job->state) {
        r = fc_machine_add_packs(vm->requests, &vm->n_requests, strv_length(job->packs));
        (void)error_fill(&job->err, r, "drives of '%s'", vm->id);
    }
    if (job->launched) {
        take_process(vm, job);
        r = fc_vm_watch(vm);
        (void)error_fill(&job->err, r, "watch Firecracker of '%s'", vm->id);
    }
    if (job->err.errnum || vm->err.errnum || vm->kills)
        fc_vm_end(vm, job->err.errnum ? &job->err : NULL);
    else
        fc_vm_call(vm);
    prepare_free(job);
    fc_pool_fill(b);
}

static int copy_paths(struct prepare_job *job, struct fc_vm *vm, const struct vm_spec *spec,
                      const struct vm_saved *saved)
{
    bool boots = !saved;

    if (string_set(&job->kernel, boots ? spec->kernel : NULL) < 0 ||
        string_set(&job->initramfs, boots ? spec->initramfs : NULL) < 0 ||
        string_set(&job->image, spec->image) < 0 || string_set(&job->disk, spec->disk) < 0 ||
        string_set(&job->memory, saved ? saved->memory_file : NULL) < 0 ||
        string_set(&job->state, saved ? saved->state_file : NULL) < 0 ||
        string_set(&job->pager_dir, saved ? saved->pager_dir : NULL) < 0 ||
        string_set(&vm->disk, spec->disk) < 0 ||
        string_set(&vm->memory_file, boots ? spec->memory_file : NULL) < 0)
        return -ENOMEM;
    if ((size_t)snprintf(job->log_path, sizeof(job->log_path), "%s/serial.log", spec->dir) >=
        sizeof(job->log_path))
        return -ENAMETOOLONG;
    memcpy(vm->vm.log_path, job->log_path, sizeof(vm->vm.log_path));
    return 0;
}

int fc_vm_prepare(struct fc_vm *vm, const struct vm_spec *spec, const struct vm_saved *saved)
{
    struct fc *b = vm->b;
    struct prepare_job *job = calloc(1, sizeof(*job));
    int r;

    if (!job)
        return -ENOMEM;
    job->vm = vm;
    job->b = b;
    job->vmm.pidfd = job->launch.cancel_fd = -EBADF;
    job->deadline_usec = vm->deadline_usec;
    job->memory_mib = spec->memory_mib;
    job->cpus = spec->cpus;
    fc_record_path(b, vm->id, job->record, sizeof(job->record));
    job->pages = saved ? saved->pages : NULL;
    r = copy_paths(job, vm, spec, saved);
    if (r >= 0 && fc_pool_take(b, &job->vmm) >= 0) {
        job->launched = true;
    } else if (r >= 0) {
        job->launch.deadline_usec = MIN(vm->deadline_usec, clock_now_usec() + LAUNCH_USEC);
        (void)snprintf(job->launch.base, sizeof(job->launch.base), "%s", b->dir);
        job->launch.cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        r = job->launch.cancel_fd < 0 ? -errno : fc_uid_take(b, &job->launch.uid);
    }
    if (r >= 0)
        r = workers_submit(b->workers, prepare_run, prepare_done, job);
    if (r < 0) {
        if (job->launched)
            fc_pool_put(b, &job->vmm);
        else if (job->launch.uid)
            fc_uid_release(b, job->launch.uid);
        prepare_free(job);
        return r;
    }
    vm->phase = FC_PREPARING;
    vm->busy = true;
    vm->cancel_fd = job->launch.cancel_fd;
    return 0;
}

/* ---- clean ---- */

struct clean_job {
    struct fc_vm *vm;  /* weak, not for the worker */
    struct fc_vmm vmm; /* its pidfd is owned */
    bool saved;
    char *disk, *memory_file, *state_file; /* owned */
    char record[256];
    struct error save_err;
};

static void clean_free(struct clean_job *job)
{
    job->vmm.pidfd = fd_close(job->vmm.pidfd);
    free(job->disk);
    free(job->memory_file);
    free(job->state_file);
    free(job);
}

static int take_saved_out(struct clean_job *job)
{
    struct error *err = &job->save_err;
    int r;

    r = fc_jail_take_out(&job->vmm.jail, FC_NAME_STATE, job->state_file, err);
    if (r >= 0)
        r = fc_jail_take_out(&job->vmm.jail, FC_NAME_MEMORY, job->memory_file, err);
    if (r >= 0)
        r = fc_zero_punch(job->memory_file, err);
    if (r >= 0 && job->vmm.jail.jailed && job->disk && chown(job->disk, 0, 0) < 0)
        r = error_set(err, errno, "chown '%s': %s", job->disk, errno_text(errno));
    return r;
}

static void clean_run(void *userdata)
{
    struct clean_job *job = userdata;
    struct error err = {0};

    if (job->vmm.pidfd >= 0 && fc_vmm_kill(&job->vmm, clock_now_usec() + KILL_USEC, &err) < 0)
        log_warning("Failed to end a Firecracker: %s, ignoring", err.text);
    if (job->saved)
        (void)take_saved_out(job);
    if (job->vmm.jail.dir[0] && fc_jail_remove(&job->vmm.jail, &err) < 0)
        log_warning("Failed to remove a jail: %s, ignoring", err.text);
    (void)unlink(job->record);
}

static void clean_done(void *userdata, int cancelled)
{
    struct clean_job *job = userdata;
    struct fc_vm *vm = job->vm;

    vm->busy = false;
    if (!cancelled) {
        if (job->save_err.errnum && !vm->err.errnum)
            error_copy(&vm->err, &job->save_err);
        fc_vm_finish(vm);
    }
    clean_free(job);
}

void fc_vm_clean(struct fc_vm *vm)
{
    struct fc *b = vm->b;
    struct clean_job *job;
    int r = -ENOMEM;

    vm->phase = FC_CLEANING;
    if (vm->busy || b->closing)
        return;
    job = calloc(1, sizeof(*job));
    if (job) {
        job->vm = vm;
        job->vmm = vm->vmm;
        vm->vmm.pidfd = -EBADF;
        job->saved = vm->saved && !vm->err.errnum;
        fc_record_path(b, vm->id, job->record, sizeof(job->record));
        if (string_set(&job->disk, vm->disk) >= 0 &&
            string_set(&job->memory_file, vm->memory_file) >= 0 &&
            string_set(&job->state_file, vm->state_file) >= 0)
            r = workers_submit(b->workers, clean_run, clean_done, job);
        if (r < 0) {
            vm->vmm.pidfd = TAKE_FD(job->vmm.pidfd);
            clean_free(job);
        }
    }
    vm->busy = r >= 0; /* if not, the housework tries again */
}

/* ---- sweep ---- */

struct sweep_job {
    char **dirs; /* owned */
};

static void sweep_run(void *userdata)
{
    struct sweep_job *job = userdata;

    for (size_t i = 0; job->dirs && job->dirs[i]; i++) {
        struct error err = {0};
        struct fc_jail jail;
        struct fc_vmm vmm;
        struct stat st;
        int r;

        if (fc_jail_from_dir(&jail, job->dirs[i], false, 0) < 0)
            continue;
        if (stat(jail.root, &st) == 0 && st.st_uid >= FC_UID_FIRST) {
            jail.jailed = true;
            jail.uid = st.st_uid;
        }
        r = fc_vmm_find(&jail, &vmm, NULL);
        if (r >= 0)
            r = fc_vmm_kill(&vmm, clock_now_usec() + KILL_USEC, &err);
        if (r >= 0 || r == -ESRCH)
            r = fc_jail_remove(&jail, &err);
        if (r < 0)
            log_warning("Failed to remove '%s': %s, ignoring", jail.dir, err.text);
    }
}

static void sweep_done(void *userdata, int cancelled)
{
    struct sweep_job *job = userdata;

    (void)cancelled;
    (void)strv_free(job->dirs);
    free(job);
}

/* The jails that records name, as a strv; their uids are taken. */
static int read_claims(struct fc *b, char ***ret)
{
    char path[512];
    struct dirent *e;
    DIR *d;
    int r = 0;

    (void)snprintf(path, sizeof(path), "%s/vms", b->dir);
    d = opendir(path);
    while (d && r >= 0 && (e = readdir(d))) {
        struct fc_vmm vmm = {.pidfd = -EBADF};

        (void)snprintf(path, sizeof(path), "%s/vms/%s", b->dir, e->d_name);
        if (e->d_name[0] == '.') {
            (void)unlink(path); /* a record that was being written */
            continue;
        }
        if (fc_vmm_record_read(path, &vmm, NULL) == -ENOENT) {
            (void)unlink(path); /* broken, by a crash of the host */
            continue;
        }
        vmm.pidfd = fd_close(vmm.pidfd);
        fc_uid_claim(b, vmm.jail.uid);
        r = strv_append(ret, vmm.jail.dir);
    }
    if (d)
        (void)closedir(d);
    return r;
}

static bool strv_has(char *const *v, const char *s)
{
    for (; v && *v; v++)
        if (strcmp(*v, s) == 0)
            return true;
    return false;
}

static int collect_strays(const char *dir, char *const *claims, char ***ret)
{
    struct dirent *e;
    DIR *d = opendir(dir);
    int r = 0;

    while (d && r >= 0 && (e = readdir(d))) {
        char path[512];

        (void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.' && !strv_has(claims, path))
            r = strv_append(ret, path);
    }
    if (d)
        (void)closedir(d);
    return r;
}

int fc_sweep(struct fc *b)
{
    _cleanup_strv_ char **claims = NULL, **programs = NULL;
    struct sweep_job *job = calloc(1, sizeof(*job));
    int r;

    if (!job)
        return -ENOMEM;
    r = read_claims(b, &claims);
    if (r >= 0)
        r = collect_strays(b->dir, NULL, &programs);
    for (size_t i = 0; r >= 0 && programs && programs[i]; i++) {
        const char *slash = strrchr(programs[i], '/');

        if (strcmp(slash, "/vms") != 0)
            r = collect_strays(programs[i], claims, &job->dirs);
    }
    if (r >= 0 && job->dirs) {
        r = workers_submit(b->workers, sweep_run, sweep_done, job);
        if (r >= 0)
            return 0;
    }
    sweep_done(job, /* cancelled= */ 1);
    return r;
}
