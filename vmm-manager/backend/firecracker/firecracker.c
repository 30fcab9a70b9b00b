#include "backend/firecracker/firecracker.h"

#include <assert.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "backend/firecracker/fc-cpu.h"
#include "backend/firecracker/fc-private.h"
#include "backend/serial-log.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"

#define HOUSEWORK_USEC USEC_PER_SEC
/* A socket's path ends in "/firecracker/SLOT/root/console.sock" and is 107 bytes at most. */
#define DIR_MAX 60u
/* Port that the guest listens on; Firecracker's own hand-shake, answered with "OK n". */
#define CONSOLE_CONNECT "CONNECT 1024\n"

static struct fc *self(struct backend *b)
{
    return container_of(b, struct fc, base);
}

/* ---- what VMs share ---- */

int fc_programs_get(struct fc *b, struct fc_programs *ret, struct error *err)
{
    int r = 0;

    (void)pthread_mutex_lock(&b->lock);
    if (!b->found) {
        r = fc_find(&b->programs, err);
        b->found = r >= 0;
    }
    if (r >= 0)
        *ret = b->programs;
    (void)pthread_mutex_unlock(&b->lock);
    return r;
}

/* Random: daemons of other state directories give from the same range. */
int fc_uid_take(struct fc *b, uid_t *ret)
{
    uint16_t n;

    for (unsigned tries = 0; tries < 4096; tries++) {
        if (getrandom(&n, sizeof(n), 0) != (ssize_t)sizeof(n))
            return -EIO;
        if (b->uids[n / 64] & (UINT64_C(1) << n % 64))
            continue;
        b->uids[n / 64] |= UINT64_C(1) << n % 64;
        *ret = FC_UID_FIRST + n;
        return 0;
    }
    return -EAGAIN;
}
static_assert(FC_UID_COUNT == 65536u, "a uid is drawn as 16 bits");

void fc_uid_release(struct fc *b, uid_t uid)
{
    unsigned n = (unsigned)uid - FC_UID_FIRST;

    if (n < FC_UID_COUNT)
        b->uids[n / 64] &= ~(UINT64_C(1) << n % 64);
}

void fc_uid_claim(struct fc *b, uid_t uid)
{
    unsigned n = (unsigned)uid - FC_UID_FIRST;

    if (n < FC_UID_COUNT)
        b->uids[n / 64] |= UINT64_C(1) << n % 64;
}

void fc_record_path(const struct fc *b, const char *id, char *path, size_t size)
{
    (void)snprintf(path, size, "%s/vms/%s", b->dir, id);
}

/*
 * An x86 microVM has no power switch: a guest that powers off stops its CPUs, and Firecracker goes
 * on. Its kernel says so first.
 */
static void look_at_log(struct fc_vm *vm)
{
    siginfo_t ended = {.si_pid = vm->vm.pid, .si_code = CLD_EXITED};
    struct stat st;

    if (vm->phase != FC_RUNNING || vm->vmm.pidfd < 0 || stat(vm->vm.log_path, &st) < 0)
        return;
    serial_trim(vm->vm.log_path);
    if (st.st_size == vm->log_size)
        return;
    vm->log_size = st.st_size;
    if (!serial_says_halted(vm->vm.log_path))
        return;
    serial_reason(vm->vm.log_path, &ended, "Firecracker", vm->reason, sizeof(vm->reason));
    (void)pidfd_send_signal(vm->vmm.pidfd, SIGKILL, NULL, 0);
}

/* A process that stands still answers nobody and keeps its guest from doing so: it is ended. */
static void look_at_process(struct fc_vm *vm)
{
    bool was = vm->stopped;

    vm->stopped = vm->vmm.pidfd >= 0 && vm->phase != FC_ENDING && fc_vmm_is_stopped(vm->vm.pid);
    if (!was || !vm->stopped)
        return;
    (void)snprintf(vm->reason, sizeof(vm->reason), "Firecracker (pid %d) was stopped by a signal",
                   (int)vm->vm.pid);
    (void)pidfd_send_signal(vm->vmm.pidfd, SIGKILL, NULL, 0);
}

static int on_housework(struct source *s, uint64_t now_usec, void *userdata)
{
    struct fc *b = userdata;

    for (struct fc_vm *vm = b->vms; vm; vm = vm->next) {
        look_at_log(vm);
        look_at_process(vm);
        if (vm->phase == FC_CLEANING && !vm->busy)
            fc_vm_clean(vm);
    }
    fc_pool_check(b);
    fc_pool_fill(b);
    return source_set_time(s, b->vms || b->options.pool_size ? now_usec + HOUSEWORK_USEC
                                                             : USEC_INFINITY);
}

void fc_want_housework(struct fc *b)
{
    uint64_t at = clock_now_usec() + HOUSEWORK_USEC;

    if (!b->housework)
        (void)loop_add_timer(b->loop, "firecracker-housework", at, on_housework, b, &b->housework);
}

/* ---- verbs ---- */

static int check_dir(const struct fc *b, struct error *err)
{
    return b->dir[0] ? 0
                     : error_set_code(err, ERR_BACKEND_UNAVAILABLE,
                                      "the state directory's path is too long for Unix sockets "
                                      "below it; set HEARTH_STATE to a shorter one");
}

static void fc_probe(struct backend *backend, struct backend_caps *ret)
{
    struct fc *b = self(backend);
    struct backend_caps caps = {0};
    struct fc_programs programs;
    struct error err = {0};
    char cpu[64];

    if (fc_check_kvm(&err) < 0 || fc_programs_get(b, &programs, &err) < 0 ||
        check_dir(b, &err) < 0) {
        (void)snprintf(caps.reason, sizeof(caps.reason), "%.255s", err.text);
        *ret = caps;
        return;
    }
    caps.available = true;
    caps.snapshot_memory = true;
    caps.diff_snapshot = true;
    caps.pager = b->options.pager;
    caps.elf_kernel = true;
    (void)snprintf(caps.version, sizeof(caps.version), "Firecracker %s", programs.version);
    (void)snprintf(caps.accelerator, sizeof(caps.accelerator), "kvm");
    fc_cpu_name(cpu, sizeof(cpu));
    if (b->options.cpu_template[0])
        (void)snprintf(caps.cpu_model, sizeof(caps.cpu_model), "%s: %.46s", b->options.cpu_template,
                       cpu);
    else
        (void)snprintf(caps.cpu_model, sizeof(caps.cpu_model), "%s", cpu);
    if (!programs.jailed)
        (void)snprintf(caps.warning, sizeof(caps.warning),
                       "VMs are NOT jailed: %s. Only KVM and seccomp stand between a guest and "
                       "this host",
                       programs.not_jailed);
    (void)snprintf(caps.warning_fix, sizeof(caps.warning_fix), "%s",
                   "run the daemon as root, with the jailer beside firecracker and cgroup v2");
    *ret = caps;
}

/* A new VM, with a worker under way to make it. */
static int begin(struct fc *b, enum fc_verb verb, const struct vm_spec *spec,
                 const struct vm_saved *saved, uint64_t deadline_usec, backend_vm_fn done,
                 void *userdata)
{
    const struct fc_load load = {.pager = saved && saved->pager_dir};
    struct fc_vm *vm;
    int r;

    if (b->closing || !b->dir[0])
        return b->closing ? -ESHUTDOWN : -ENAMETOOLONG;
    r = fc_vm_new(b, spec->id, &vm);
    if (r < 0)
        return r;
    vm->verb = verb;
    vm->deadline_usec = deadline_usec;
    vm->on_vm = done;
    vm->userdata = userdata;
    r = saved ? fc_machine_restore(&load, &b->options, vm->requests)
              : fc_machine_boot(spec, &b->options, vm->requests);
    if (r >= 0) {
        vm->n_requests = r;
        r = fc_vm_prepare(vm, spec, saved);
    }
    if (r < 0)
        fc_vm_free(vm);
    return r < 0 ? r : 0;
}

static int fc_boot(struct backend *backend, const struct vm_spec *spec, uint64_t deadline_usec,
                   backend_vm_fn done, void *userdata)
{
    if (!spec->kernel || !spec->initramfs || !spec->image || !spec->disk || !spec->dir)
        return -EINVAL;
    return begin(self(backend), VERB_BOOT, spec, NULL, deadline_usec, done, userdata);
}

static int fc_restore(struct backend *backend, const struct vm_spec *spec,
                      const struct vm_saved *saved, uint64_t deadline_usec, backend_vm_fn done,
                      void *userdata)
{
    if (!saved->memory_file || !saved->state_file || !spec->image || !spec->disk || !spec->dir)
        return -EINVAL;
    return begin(self(backend), VERB_RESTORE, spec, saved, deadline_usec, done, userdata);
}

static int fc_save(struct backend *backend, const char *id, const char *state_file,
                   uint64_t deadline_usec, backend_done_fn done, void *userdata)
{
    struct fc_vm *vm = fc_vm_find(self(backend), id);
    int r;

    if (!state_file)
        return -EINVAL;
    if (!vm || vm->phase == FC_ENDING || vm->phase == FC_CLEANING)
        return -ESRCH;
    if (vm->phase != FC_RUNNING)
        return -EBUSY;
    if (!vm->memory_file)
        return -EINVAL;
    if (string_set(&vm->state_file, state_file) < 0)
        return -ENOMEM;
    r = fc_machine_save(vm->requests);
    if (r < 0)
        return r;
    vm->n_requests = r;
    vm->verb = VERB_SAVE;
    vm->deadline_usec = deadline_usec;
    vm->on_done = done;
    vm->userdata = userdata;
    fc_vm_call(vm);
    return 0;
}

/* ---- answers without work ---- */

struct later {
    backend_done_fn on_done;
    backend_vm_fn on_vm;
    void *userdata;
    struct backend_vm vm;
    struct error err;
};

static void give_later(void *userdata)
{
    struct later *l = userdata;
    const struct error *err = l->err.errnum ? &l->err : NULL;

    if (l->on_done)
        l->on_done(err, l->userdata);
    if (l->on_vm)
        l->on_vm(err ? NULL : &l->vm, err, l->userdata);
    free(l);
}

/* From the loop, like every other answer. */
static int answer_later(struct fc *b, const struct later *answer)
{
    struct later *l = calloc(1, sizeof(*l));
    int r;

    if (!l)
        return -ENOMEM;
    *l = *answer;
    r = loop_post(b->loop, give_later, l);
    if (r < 0)
        free(l);
    return r;
}

/*
 * Firecracker 1.16 does not open the way of vsock data into the guest again after a pause without
 * a snapshot: the console would be dead for good.
 */
static int fc_pause(struct backend *backend, const char *id, backend_done_fn done, void *userdata)
{
    struct later answer = {.on_done = done, .userdata = userdata};

    (void)error_set_code(&answer.err, ERR_UNSUPPORTED,
                         "'%s': a Firecracker VM cannot be paused without a snapshot: its console "
                         "would not come back (Firecracker 1.16)",
                         id);
    return answer_later(self(backend), &answer);
}

static int fc_snapshot(struct backend *backend, const char *id, const char *state_file,
                       const char *memory_file, uint64_t deadline_usec, backend_done_fn done,
                       void *userdata)
{
    struct fc_vm *vm = fc_vm_find(self(backend), id);

    if (!state_file || !memory_file)
        return -EINVAL;
    return vm ? fc_vm_snapshot(vm, state_file, memory_file, deadline_usec, done, userdata) : -ESRCH;
}

static int fc_resume(struct backend *backend, const char *id, backend_done_fn done, void *userdata)
{
    struct fc_vm *vm = fc_vm_find(self(backend), id);

    return vm ? fc_vm_resume(vm, done, userdata) : -ESRCH;
}

/* What a record tells of a VM: -ENOENT nothing, -ESRCH only its jail is left. */
static int find_recorded(struct fc *b, const char *id, struct fc_vmm *ret, struct error *err)
{
    char path[256];

    if (!b->dir[0])
        return error_set(err, ENOENT, "there are no VMs");
    if (!name_is_valid(id))
        return error_set(err, EINVAL, "'%s' is no name of a VM", id);
    fc_record_path(b, id, path, sizeof(path));
    return fc_vmm_record_read(path, ret, err);
}

static int fc_kill(struct backend *backend, const char *id, backend_done_fn done, void *userdata)
{
    struct fc *b = self(backend);
    struct fc_vm *vm = fc_vm_find(b, id);
    struct fc_vmm vmm = {.pidfd = -EBADF};
    int r;

    if (vm)
        return fc_vm_kill(vm, done, userdata);
    /* Perhaps one of an earlier daemon that nobody adopted. */
    r = find_recorded(b, id, &vmm, NULL);
    if (r == -EINVAL)
        return r;
    if (r == -ENOENT)
        return answer_later(b, &(struct later){.on_done = done, .userdata = userdata});
    r = fc_vm_new(b, id, &vm);
    if (r < 0) {
        (void)fd_close(vmm.pidfd);
        return r;
    }
    vm->phase = FC_RUNNING;
    vm->vmm = vmm;
    vm->vm.pid = vmm.pid;
    r = vmm.pidfd >= 0 ? fc_vm_watch(vm) : 0;
    if (r >= 0)
        r = fc_vm_kill(vm, done, userdata);
    if (r < 0)
        fc_vm_free(vm);
    return r;
}

static int fc_adopt(struct backend *backend, const struct vm_spec *spec, backend_vm_fn done,
                    void *userdata)
{
    struct fc *b = self(backend);
    struct later answer = {.on_vm = done, .userdata = userdata};
    struct fc_vmm vmm = {.pidfd = -EBADF};
    struct fc_vm *vm = NULL;
    int r;

    if (!spec->dir)
        return -EINVAL;
    r = find_recorded(b, spec->id, &vmm, &answer.err);
    if (r == -EINVAL)
        return r;
    if (r < 0) {
        (void)error_set(&answer.err, ESRCH, "VM '%s' no longer runs", spec->id);
        return answer_later(b, &answer);
    }
    r = fc_vm_new(b, spec->id, &vm);
    if (r < 0) {
        (void)fd_close(vmm.pidfd);
        return r;
    }
    vm->phase = FC_RUNNING;
    vm->vmm = vmm;
    vm->vm.pid = vmm.pid;
    fc_jail_path(&vmm.jail, FC_CONSOLE_SOCKET, vm->vm.console_path);
    (void)snprintf(vm->vm.log_path, sizeof(vm->vm.log_path), "%s/serial.log", spec->dir);
    r = string_set(&vm->disk, spec->disk);
    if (r >= 0)
        r = fc_vm_watch(vm);
    if (r >= 0)
        r = fc_vm_adopt(vm, done, userdata);
    if (r < 0)
        fc_vm_free(vm);
    return r;
}

static int fc_list(struct backend *backend, char ***ret_ids, struct error *err)
{
    struct fc *b = self(backend);
    _cleanup_strv_ char **ids = NULL;
    char path[256];
    struct dirent *e;
    DIR *d;
    int r = 0;

    (void)snprintf(path, sizeof(path), "%s/vms", b->dir);
    d = opendir(path);
    while (d && r >= 0 && (e = readdir(d))) {
        struct fc_vmm vmm = {.pidfd = -EBADF};

        if (e->d_name[0] == '.' || find_recorded(b, e->d_name, &vmm, NULL) < 0)
            continue;
        (void)fd_close(vmm.pidfd);
        r = strv_append(&ids, e->d_name);
    }
    if (d)
        (void)closedir(d);
    if (r < 0)
        return error_set(err, -r, "list VMs: %s", errno_text(-r));
    *ret_ids = TAKE_PTR(ids);
    return 0;
}

/*
 * The hand-shake is written at once: the socket is new and its buffer empty. Firecracker's answer,
 * one line, is skipped by whoever looks for the guest's hello. When the guest does not listen yet
 * Firecracker closes the connection.
 */
static int fc_console_connect(struct backend *backend, const char *id, struct error *err)
{
    struct fc_vm *vm = fc_vm_find(self(backend), id);
    int fd, r;

    if (!vm)
        return error_set_code(err, ERR_SANDBOX_NOT_RUNNING, "VM '%s' does not run", id);
    /* On its way out: who waits hears of that, with the reason, in a moment. */
    if (vm->phase == FC_ENDING || vm->phase == FC_CLEANING || vm->vmm.pidfd < 0)
        return error_set(err, ESRCH, "VM '%s' ends", id);
    fd = fd_connect_unix(vm->vm.console_path);
    if (fd < 0)
        return error_set_errno(err, ERR_BACKEND_FAILED, -fd, "connect to '%s': %s",
                               vm->vm.console_path, errno_text(-fd));
    r = fd_write_full(fd, CONSOLE_CONNECT, strlen(CONSOLE_CONNECT));
    if (r < 0) {
        (void)fd_close(fd);
        /* Closed again at once: as if nobody listened. */
        return error_set_errno(err, ERR_BACKEND_FAILED, r == -EPIPE ? ECONNREFUSED : -r,
                               "connect to '%s': %s", vm->vm.console_path, errno_text(-r));
    }
    return fd;
}

static void fc_quiesce(struct backend *backend)
{
    self(backend)->closing = true;
}

static struct backend *fc_free(struct backend *backend)
{
    struct fc *b;

    if (!backend)
        return NULL;
    b = self(backend);
    b->closing = true;
    while (b->vms)
        fc_vm_free(b->vms);
    fc_pool_done(b);
    b->housework = source_free(b->housework);
    b->client = fc_client_free(b->client);
    (void)pthread_mutex_destroy(&b->lock);
    free(b);
    return NULL;
}

static const struct backend_ops fc_ops = {
    .name = "firecracker",
    .console_closes_early = true,
    .probe = fc_probe,
    .boot = fc_boot,
    .save = fc_save,
    .restore = fc_restore,
    .snapshot = fc_snapshot,
    .pause = fc_pause,
    .resume = fc_resume,
    .kill = fc_kill,
    .adopt = fc_adopt,
    .list = fc_list,
    .console_connect = fc_console_connect,
    .quiesce = fc_quiesce,
    .free = fc_free,
};

int backend_firecracker_new(const struct backend_env *env, struct backend **ret, struct error *err)
{
    struct fc *b = calloc(1, sizeof(*b));
    char path[256];
    int r;

    if (!b)
        return error_set(err, ENOMEM, "out of memory");
    b->base.ops = &fc_ops;
    b->loop = env->loop;
    b->workers = env->workers;
    b->gone = env->gone;
    b->userdata = env->userdata;
    (void)pthread_mutex_init(&b->lock, NULL);
    if ((size_t)snprintf(b->dir, sizeof(b->dir), "%s/fc", env->state_dir) >= DIR_MAX)
        b->dir[0] = '\0';
    (void)snprintf(path, sizeof(path), "%s/vms", b->dir);
    r = fc_options_read(&b->options, err);
    if (r >= 0)
        r = fc_client_new(b->loop, &b->client);
    if (r < 0 && !err->errnum)
        (void)error_set(err, -r, "Firecracker's API client: %s", errno_text(-r));
    if (r >= 0 && b->dir[0])
        r = dir_create(path, 0700, err);
    if (r >= 0 && b->dir[0]) {
        r = fc_sweep(b);
        (void)error_fill(err, r, "look for old jails in '%s'", b->dir);
    }
    if (r < 0) {
        (void)fc_free(&b->base);
        return r;
    }
    *ret = &b->base;
    return 0;
}
