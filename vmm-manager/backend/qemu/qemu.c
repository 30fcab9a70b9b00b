#include "backend/qemu/qemu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/qemu/qemu-private.h"
#include "backend/qemu/qemu-root.h"
#include "base/clock.h"
#include "base/fd.h"

/* For the verbs that bring no deadline of their own. */
#define VERB_USEC (15 * USEC_PER_SEC)
/* Adopting may wait for a cold look at QEMU's capabilities. */
#define ADOPT_USEC (120 * USEC_PER_SEC)

static struct backend_qemu *self(struct backend *b)
{
    return container_of(b, struct backend_qemu, base);
}

static void qemu_probe(struct backend *backend, struct backend_caps *ret)
{
    struct backend_qemu *b = self(backend);
    const struct driver_info *info;
    struct backend_caps caps = {0};
    struct error err = {0};

    if (driver_open(b->driver, &info, NULL, &err) < 0) {
        (void)snprintf(caps.reason, sizeof(caps.reason), "%.255s", err.text);
        *ret = caps;
        return;
    }
    caps.available = true;
    caps.snapshot_memory = true;
    caps.snapshot_from_base = true;
    caps.snapshot_console = true;
    (void)snprintf(caps.reason, sizeof(caps.reason), "%s", info->why);
    (void)snprintf(caps.version, sizeof(caps.version), "%s", info->version);
    (void)snprintf(caps.accelerator, sizeof(caps.accelerator), "%s", accel_name(info->accel));
    machine_cpu_name(info->machine, info->accel, caps.cpu_model, sizeof(caps.cpu_model));
    *ret = caps;
}

/* A copy of the spec; -ENOMEM leaves nothing. */
static int copy_spec(const struct vm_spec *spec, uint64_t deadline_usec, struct verb_request *ret)
{
    struct verb_request q = {
        .cpus = spec->cpus,
        .memory_mib = spec->memory_mib,
        .deadline_usec = deadline_usec,
    };

    if (string_set(&q.id, spec->id) < 0 || string_set(&q.dir, spec->dir) < 0 ||
        string_set(&q.kernel, spec->kernel) < 0 || string_set(&q.initramfs, spec->initramfs) < 0 ||
        string_set(&q.image, spec->image) < 0 || string_set(&q.disk, spec->disk) < 0 ||
        string_set(&q.memory_file, spec->memory_file) < 0) {
        verb_request_done(&q);
        return -ENOMEM;
    }
    *ret = q;
    return 0;
}

/* A new record and a job on it; takes what `q` owns. */
static int begin_consume(struct backend_qemu *b, enum job_kind kind, struct verb_request *q,
                         backend_vm_fn done, void *userdata)
{
    struct vm *vm;
    int r;

    r = vm_new(b, q->id, &vm);
    if (r < 0) {
        verb_request_done(q);
        return r;
    }
    r = job_submit_consume(vm, kind, q, done, NULL, userdata);
    if (r < 0)
        vm_free(vm);
    return r;
}

static int qemu_boot(struct backend *backend, const struct vm_spec *spec, uint64_t deadline_usec,
                     backend_vm_fn done, void *userdata)
{
    struct verb_request q;
    int r;

    if (!spec->kernel || !spec->initramfs || !spec->image || !spec->disk || !spec->dir)
        return -EINVAL;
    r = copy_spec(spec, deadline_usec, &q);
    if (r < 0)
        return r;
    return begin_consume(self(backend), JOB_START, &q, done, userdata);
}

static int qemu_restore(struct backend *backend, const struct vm_spec *spec,
                        const struct vm_saved *saved, uint64_t deadline_usec, backend_vm_fn done,
                        void *userdata)
{
    struct verb_request q;
    int r;

    if (!saved->memory_file || !saved->state_file || !spec->image || !spec->disk || !spec->dir)
        return -EINVAL;
    if (saved->pager_dir)
        return -EOPNOTSUPP;
    r = copy_spec(spec, deadline_usec, &q);
    if (r < 0)
        return r;
    if (string_set(&q.memory_file, saved->memory_file) < 0 ||
        string_set(&q.state_file, saved->state_file) < 0) {
        verb_request_done(&q);
        return -ENOMEM;
    }
    q.pages = saved->pages;
    return begin_consume(self(backend), JOB_START, &q, done, userdata);
}

static int qemu_adopt(struct backend *backend, const struct vm_spec *spec, backend_vm_fn done,
                      void *userdata)
{
    struct verb_request q;
    int r;

    if (!spec->dir)
        return -EINVAL;
    r = copy_spec(spec, clock_now_usec() + ADOPT_USEC, &q);
    if (r < 0)
        return r;
    return begin_consume(self(backend), JOB_ADOPT, &q, done, userdata);
}

/* A verb on a VM that is there. */
static int on_existing(struct backend_qemu *b, enum job_kind kind, const char *id,
                       const char *state_file, const char *memory_file, uint64_t deadline_usec,
                       backend_done_fn done, void *userdata)
{
    struct vm *vm = vm_find(b, id);
    struct verb_request q = {.deadline_usec = deadline_usec};

    if (!vm || vm->pidfd < 0)
        return -ESRCH;
    if (vm->kills)
        return -EBUSY;
    if (string_set(&q.id, id) < 0 || string_set(&q.state_file, state_file) < 0 ||
        string_set(&q.memory_file, memory_file) < 0) {
        verb_request_done(&q);
        return -ENOMEM;
    }
    return job_submit_consume(vm, kind, &q, NULL, done, userdata);
}

static int qemu_save(struct backend *backend, const char *id, const char *state_file,
                     uint64_t deadline_usec, backend_done_fn done, void *userdata)
{
    if (!state_file)
        return -EINVAL;
    return on_existing(self(backend), JOB_SAVE, id, state_file, NULL, deadline_usec, done,
                       userdata);
}

static int qemu_snapshot(struct backend *backend, const char *id, const char *state_file,
                         const char *memory_file, uint64_t deadline_usec, backend_done_fn done,
                         void *userdata)
{
    if (!state_file || !memory_file)
        return -EINVAL;
    return on_existing(self(backend), JOB_SNAPSHOT, id, state_file, memory_file, deadline_usec,
                       done, userdata);
}

static int qemu_pause(struct backend *backend, const char *id, backend_done_fn done, void *userdata)
{
    return on_existing(self(backend), JOB_PAUSE, id, NULL, NULL, clock_now_usec() + VERB_USEC, done,
                       userdata);
}

static int qemu_resume(struct backend *backend, const char *id, backend_done_fn done,
                       void *userdata)
{
    return on_existing(self(backend), JOB_RESUME, id, NULL, NULL, clock_now_usec() + VERB_USEC,
                       done, userdata);
}

static void post_done(void *userdata)
{
    struct kill_wait *k = userdata;

    if (k->done)
        k->done(NULL, k->userdata);
    free(k);
}

/* Nothing to kill is success, told from the loop like every other answer. */
static int answer_later(struct backend_qemu *b, backend_done_fn done, void *userdata)
{
    struct kill_wait *k = calloc(1, sizeof(*k));
    int r;

    if (!k)
        return -ENOMEM;
    *k = (struct kill_wait){.done = done, .userdata = userdata};
    r = loop_post(b->loop, post_done, k);
    if (r < 0)
        free(k);
    return r;
}

static int qemu_kill(struct backend *backend, const char *id, backend_done_fn done, void *userdata)
{
    struct backend_qemu *b = self(backend);
    struct vm *vm = vm_find(b, id);
    struct backend_vm info = {0};
    int r, fd;

    if (vm)
        return vm_kill(vm, done, userdata);
    if (!name_is_valid(id))
        return -EINVAL;
    /* Perhaps one of an earlier daemon that nobody adopted. */
    fd = root_open_vm(driver_root(b->driver), id, &info.pid);
    if (fd < 0)
        return answer_later(b, done, userdata);
    r = vm_new(b, id, &vm);
    if (r < 0) {
        (void)fd_close(fd);
        return r;
    }
    r = vm_watch_consume(vm, &info, fd);
    if (r >= 0)
        r = vm_kill(vm, done, userdata);
    if (r < 0)
        vm_free(vm);
    return r;
}

static int qemu_list(struct backend *backend, char ***ret_ids, struct error *err)
{
    return root_list(driver_root(self(backend)->driver), ret_ids, err);
}

static int qemu_console_connect(struct backend *backend, const char *id, struct error *err)
{
    struct vm *vm = vm_find(self(backend), id);
    int fd;

    if (!vm || vm->pidfd < 0)
        return error_set_code(err, ERR_SANDBOX_NOT_RUNNING, "VM '%s' does not run", id);
    fd = fd_connect_unix(vm->vm.console_path);
    if (fd < 0)
        return error_set_errno(err, ERR_BACKEND_FAILED, -fd, "connect to '%s': %s",
                               vm->vm.console_path, errno_text(-fd));
    return fd;
}

static struct backend *qemu_free(struct backend *backend)
{
    struct backend_qemu *b;

    if (!backend)
        return NULL;
    b = self(backend);
    while (b->vms)
        vm_free(b->vms);
    b->housework = source_free(b->housework);
    b->driver = driver_free(b->driver);
    free(b);
    return NULL;
}

static const struct backend_ops qemu_ops = {
    .name = "qemu",
    .probe = qemu_probe,
    .boot = qemu_boot,
    .save = qemu_save,
    .restore = qemu_restore,
    .snapshot = qemu_snapshot,
    .pause = qemu_pause,
    .resume = qemu_resume,
    .kill = qemu_kill,
    .adopt = qemu_adopt,
    .list = qemu_list,
    .console_connect = qemu_console_connect,
    .free = qemu_free,
};

int backend_qemu_new(const struct backend_env *env, struct backend **ret, struct error *err)
{
    struct backend_qemu *b = calloc(1, sizeof(*b));
    int r;

    if (!b)
        return error_set(err, ENOMEM, "out of memory");
    b->base.ops = &qemu_ops;
    b->loop = env->loop;
    b->workers = env->workers;
    b->gone = env->gone;
    b->userdata = env->userdata;
    r = driver_new(env->state_dir, &b->driver, err);
    if (r < 0) {
        free(b);
        return r;
    }
    *ret = &b->base;
    return 0;
}
