#include "fake-backend.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/paths.h"
#include "base/spawn.h"
#include "base/strv.h"

#define VMS_MAX 64

#define MEMORY_BYTES (64u * 1024u)

struct fake_knobs fake_knobs;

struct fake_vm {
    struct fake *fake;
    char id[64];
    char socket[108];
    pid_t pid;
    int pidfd;
    struct source *child;
};

struct fake {
    struct backend backend;
    struct backend_env env;
    char *run_dir; /* owned: pid files */
    struct fake_vm vms[VMS_MAX];
};

/* An answer that comes from the loop. */
struct answer {
    backend_vm_fn vm_done;
    backend_done_fn done;
    void *userdata;
    struct backend_vm vm;
    struct error err;
};

static void on_answer(void *userdata)
{
    struct answer *a = userdata;
    const struct error *err = a->err.errnum ? &a->err : NULL;

    if (a->vm_done)
        a->vm_done(err ? NULL : &a->vm, err, a->userdata);
    else
        a->done(err, a->userdata);
    free(a);
}

static int answer(struct fake *f, const struct answer *given)
{
    struct answer *a = malloc(sizeof(*a));

    if (!a)
        return -ENOMEM;
    *a = *given;
    return loop_post(f->env.loop, on_answer, a);
}

static struct fake_vm *find(struct fake *f, const char *id)
{
    for (size_t i = 0; i < VMS_MAX; i++) {
        if (strcmp(f->vms[i].id, id) == 0)
            return &f->vms[i];
    }
    return NULL;
}

static void forget(struct fake_vm *vm)
{
    vm->child = source_free(vm->child);
    vm->pidfd = fd_close(vm->pidfd);
    vm->id[0] = '\0';
}

static int on_ended(struct source *s, const siginfo_t *info, void *userdata)
{
    struct fake_vm *vm = userdata;
    struct fake *f = vm->fake;
    char id[64];

    (void)s;
    (void)info;
    (void)snprintf(id, sizeof(id), "%s", vm->id);
    forget(vm);
    f->env.gone(id, "the process ended", f->env.userdata);
    return 0;
}

static int track(struct fake *f, const struct vm_spec *spec, pid_t pid, struct backend_vm *ret)
{
    struct fake_vm *vm = find(f, "");

    if (!vm)
        return -EAGAIN;
    vm->fake = f;
    vm->pid = pid;
    vm->pidfd = pidfd_open(pid, 0);
    if (vm->pidfd < 0)
        return -errno;
    (void)snprintf(vm->id, sizeof(vm->id), "%s", spec->id);
    (void)snprintf(vm->socket, sizeof(vm->socket), "%s/console", spec->dir);
    ret->pid = pid;
    (void)snprintf(ret->console_path, sizeof(ret->console_path), "%s", vm->socket);
    (void)snprintf(ret->log_path, sizeof(ret->log_path), "%s/log", spec->dir);
    return loop_add_child(f->env.loop, "fake-vmm", vm->pidfd, on_ended, vm, &vm->child);
}

static int start(struct fake *f, const struct vm_spec *spec, const char *mode,
                 struct backend_vm *ret, struct error *err)
{
    char socket[256], log[256], pid_file[512], text[32];
    _cleanup_free_ char *program = string_printf("%s/fake-vmm", paths_program_dir());
    const char *argv[] = {program, socket, log, mode ? mode : "normal", NULL};
    const struct spawn_options options = {
        .argv = argv, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1, .new_session = true};
    _cleanup_close_ int pidfd = -EBADF;
    pid_t pid;
    int r;

    (void)snprintf(socket, sizeof(socket), "%s/console", spec->dir);
    (void)snprintf(log, sizeof(log), "%s/log", spec->dir);
    r = spawn(&options, &pid, &pidfd, err);
    if (r < 0)
        return r;
    (void)snprintf(pid_file, sizeof(pid_file), "%s/%s", f->run_dir, spec->id);
    (void)snprintf(text, sizeof(text), "%d", (int)pid);
    r = file_write_atomic(pid_file, text, strlen(text), 0600, err);
    if (r < 0)
        return r;
    return track(f, spec, pid, ret);
}

static pid_t stored_pid(struct fake *f, const char *id)
{
    _cleanup_free_ char *path = string_printf("%s/%s", f->run_dir, id), *text = NULL;
    uint64_t pid = 0;
    size_t size;

    if (file_read(path, 32, &text, &size, NULL) < 0 || parse_u64(text, 1, 1 << 30, &pid) < 0)
        return 0;
    return (pid_t)pid;
}

static void fake_probe(struct backend *b, struct backend_caps *ret)
{
    (void)b;
    ret->available = !fake_knobs.unavailable;
    ret->snapshot_memory = !fake_knobs.no_snapshots;
    ret->snapshot_from_base = !fake_knobs.from_restored;
    ret->snapshot_console = !fake_knobs.closes_console;
    (void)snprintf(ret->reason, sizeof(ret->reason), "switched off by the test");
    (void)snprintf(ret->version, sizeof(ret->version), "fake 1");
    (void)snprintf(ret->accelerator, sizeof(ret->accelerator), "none");
    (void)snprintf(ret->cpu_model, sizeof(ret->cpu_model), "none");
}

static int write_memory(const char *path, struct error *err)
{
    char memory[MEMORY_BYTES] = "memory";

    return file_write_atomic(path, memory, sizeof(memory), 0600, err);
}

static int fake_boot(struct backend *b, const struct vm_spec *spec, uint64_t deadline_usec,
                     backend_vm_fn done, void *userdata)
{
    struct fake *f = (struct fake *)b;
    struct answer a = {.vm_done = done, .userdata = userdata};

    (void)deadline_usec;
    fake_knobs.n_boots++;
    if (fake_knobs.fail_boot || !file_exists(spec->disk))
        (void)error_set_code(&a.err, ERR_BACKEND_FAILED, "boot fails as the test wants");
    else if (start(f, spec, fake_knobs.boot_mode, &a.vm, &a.err) >= 0 && spec->memory_file)
        (void)write_memory(spec->memory_file, &a.err);
    return answer(f, &a);
}

static void end(struct fake *f, const char *id)
{
    struct fake_vm *vm = find(f, id);
    pid_t pid = vm ? vm->pid : stored_pid(f, id);
    char path[512];

    if (vm)
        forget(vm);
    if (pid > 0) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
    }
    (void)snprintf(path, sizeof(path), "%s/%s", f->run_dir, id);
    (void)unlink(path);
}

static int fake_save(struct backend *b, const char *id, const char *state_file,
                     uint64_t deadline_usec, backend_done_fn done, void *userdata)
{
    struct fake *f = (struct fake *)b;
    struct answer a = {.done = done, .userdata = userdata};

    (void)deadline_usec;
    fake_knobs.n_saves++;
    end(f, id);
    if (fake_knobs.fail_save)
        (void)error_set_code(&a.err, ERR_BACKEND_FAILED, "save fails as the test wants");
    else
        (void)file_write_atomic(state_file, "state", 5, 0600, &a.err);
    return answer(f, &a);
}

static int count_pages(struct page_source *pages, struct error *err)
{
    uint64_t offset;
    const void *data;
    size_t size;
    int r;

    fake_knobs.n_pages = 0;
    for (;;) {
        r = pages ? pages->ops->next(pages, &offset, &data, &size, err) : 0;
        if (r <= 0)
            return r;
        fake_knobs.n_pages += (unsigned)(size / PAGE_BYTES);
    }
}

static int fake_restore(struct backend *b, const struct vm_spec *spec, const struct vm_saved *saved,
                        uint64_t deadline_usec, backend_vm_fn done, void *userdata)
{
    struct fake *f = (struct fake *)b;
    struct answer a = {.vm_done = done, .userdata = userdata};

    (void)deadline_usec;
    fake_knobs.n_restores++;
    if (fake_knobs.fail_restore || !file_exists(saved->memory_file) ||
        !file_exists(saved->state_file) || !file_exists(spec->disk))
        (void)error_set_code(&a.err, ERR_BACKEND_FAILED, "restore fails as the test wants");
    else if (count_pages(saved->pages, &a.err) >= 0)
        (void)start(f, spec, fake_knobs.restore_mode, &a.vm, &a.err);
    return answer(f, &a);
}

static void signal_vm(struct fake *f, const char *id, int signo, struct error *err)
{
    struct fake_vm *vm = find(f, id);

    if (!vm)
        (void)error_set(err, ESRCH, "VM '%s' is not there", id);
    else
        (void)kill(vm->pid, signo);
}

/* The bridge stands still, the guest behind it does not: nothing tells the difference. */
static int fake_snapshot(struct backend *b, const char *id, const char *state_file,
                         const char *memory_file, uint64_t deadline_usec, backend_done_fn done,
                         void *userdata)
{
    struct fake *f = (struct fake *)b;
    struct answer a = {.done = done, .userdata = userdata};

    (void)deadline_usec;
    fake_knobs.n_snapshots++;
    if (fake_knobs.fail_snapshot)
        (void)error_set_code(&a.err, ERR_BACKEND_FAILED, "snapshot fails as the test wants");
    else if (file_write_atomic(state_file, "state", 5, 0600, &a.err) >= 0 &&
             write_memory(memory_file, &a.err) >= 0)
        signal_vm(f, id, SIGSTOP, &a.err);
    return answer(f, &a);
}

static bool is_stopped(struct fake *f, const char *id)
{
    struct fake_vm *vm = find(f, id);
    _cleanup_free_ char *path = NULL, *text = NULL;
    const char *state;
    size_t size;

    path = vm ? string_printf("/proc/%d/stat", (int)vm->pid) : NULL;
    if (!path || file_read(path, 4096, &text, &size, NULL) < 0)
        return false;
    state = strrchr(text, ')');
    return state && strncmp(state, ") T", 3) == 0;
}

static int fake_resume(struct backend *b, const char *id, backend_done_fn done, void *userdata)
{
    struct fake *f = (struct fake *)b;
    struct answer a = {.done = done, .userdata = userdata};

    fake_knobs.n_resumes++;
    if (fake_knobs.fail_resume)
        (void)error_set_code(&a.err, ERR_BACKEND_FAILED, "resume fails as the test wants");
    else if (fake_knobs.closes_console && is_stopped(f, id))
        signal_vm(f, id, SIGUSR2, &a.err); /* seen first when it goes on */
    if (!fake_knobs.fail_resume)
        signal_vm(f, id, SIGCONT, &a.err);
    return answer(f, &a);
}

static int fake_kill(struct backend *b, const char *id, backend_done_fn done, void *userdata)
{
    struct fake *f = (struct fake *)b;
    struct answer a = {.done = done, .userdata = userdata};

    fake_knobs.n_kills++;
    end(f, id);
    return answer(f, &a);
}

static int fake_adopt(struct backend *b, const struct vm_spec *spec, backend_vm_fn done,
                      void *userdata)
{
    struct fake *f = (struct fake *)b;
    struct answer a = {.vm_done = done, .userdata = userdata};
    pid_t pid = stored_pid(f, spec->id);
    siginfo_t info = {0};

    /* A zombie of ours is not alive. */
    if (pid <= 0 || waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ||
        info.si_pid != 0)
        (void)error_set(&a.err, ESRCH, "VM '%s' no longer runs", spec->id);
    else if (track(f, spec, pid, &a.vm) < 0)
        (void)error_set(&a.err, ESRCH, "VM '%s' cannot be watched", spec->id);
    return answer(f, &a);
}

static int fake_connect(struct backend *b, const char *id, struct error *err)
{
    struct fake *f = (struct fake *)b;
    struct fake_vm *vm = find(f, id);
    int fd;

    if (!vm)
        return error_set(err, ESRCH, "VM '%s' is not there", id);
    fd = fd_connect_unix(vm->socket);
    return fd < 0 ? error_set(err, -fd, "console of '%s': %s", id, errno_text(-fd)) : fd;
}

static struct backend *fake_free(struct backend *b)
{
    struct fake *f = (struct fake *)b;

    for (size_t i = 0; i < VMS_MAX; i++) {
        if (f->vms[i].id[0])
            forget(&f->vms[i]);
    }
    free(f->run_dir);
    free(f);
    return NULL;
}

static const struct backend_ops ops = {
    .name = "fake",
    .probe = fake_probe,
    .boot = fake_boot,
    .save = fake_save,
    .restore = fake_restore,
    .snapshot = fake_snapshot,
    .resume = fake_resume,
    .kill = fake_kill,
    .adopt = fake_adopt,
    .console_connect = fake_connect,
    .free = fake_free,
};

int backend_fake_new(const struct backend_env *env, struct backend **ret, struct error *err)
{
    struct fake *f = calloc(1, sizeof(*f));

    if (!f)
        return error_set(err, ENOMEM, "out of memory");
    f->backend.ops = &ops;
    f->env = *env;
    f->run_dir = string_printf("%s/fake", env->state_dir);
    for (size_t i = 0; i < VMS_MAX; i++)
        f->vms[i].pidfd = -EBADF;
    if (!f->run_dir || dir_create(f->run_dir, 0700, err) < 0) {
        (void)fake_free(&f->backend);
        return -ENOMEM;
    }
    *ret = &f->backend;
    return 0;
}
