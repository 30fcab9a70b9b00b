#include "backend/firecracker/fc-vmm.h"

#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/spawn.h"
#include "base/strv.h"

#define API_SOCKET "api.sock"
/* What Firecracker needs beside the guest's memory: its own 5 MiB, page tables, buffers. */
#define MEMORY_OVERHEAD_MIB 96u
#define PIDS_MAX 64u

/* Field 22 of /proc/PID/stat, counted behind the name, which may hold anything. */
static int read_start_time(pid_t pid, uint64_t *ret)
{
    _cleanup_free_ char *text = NULL;
    char path[64], *p;
    int r;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    r = file_read(path, 4096, &text, NULL, NULL);
    if (r < 0)
        return -ESRCH;
    p = strrchr(text, ')');
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    if (!p)
        return -ESRCH;
    *ret = strtoull(p + 1, NULL, 10);
    return 0;
}

static bool is_firecracker(pid_t pid)
{
    char path[64], exe[4096];
    ssize_t n;

    (void)snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
    n = readlink(path, exe, sizeof(exe) - 1);
    if (n <= 0)
        return false;
    exe[n] = '\0';
    return strstr(exe, "firecracker") != NULL;
}

static int attach(struct fc_vmm *vmm)
{
    uint64_t start_time;
    int fd = pidfd_open(vmm->pid, 0);

    if (fd < 0)
        return -ESRCH;
    if (read_start_time(vmm->pid, &start_time) < 0 ||
        (vmm->start_time != 0 && vmm->start_time != start_time) || !is_firecracker(vmm->pid)) {
        fd_close(fd);
        return -ESRCH;
    }
    vmm->start_time = start_time;
    vmm->pidfd = fd;
    return 0;
}

/* ---- command lines ---- */

struct arguments {
    char **argv; /* owned */
    int r;
};

static void add(struct arguments *a, const char *s)
{
    if (a->r == 0)
        a->r = strv_append(&a->argv, s);
}

_printf_(3, 4) static void add_option(struct arguments *a, const char *option, const char *format,
                                      ...)
{
    char value[512];
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(value, sizeof(value), format, ap);
    va_end(ap);
    add(a, option);
    add(a, value);
}

static void jailer_arguments(struct arguments *a, const struct fc_launch *l,
                             const struct fc_jail *jail)
{
    add(a, l->programs.jailer);
    add_option(a, "--id", "%s", jail->slot);
    add_option(a, "--exec-file", "%s", l->programs.firecracker);
    add_option(a, "--uid", "%u", (unsigned)jail->uid);
    add_option(a, "--gid", "%u", (unsigned)jail->uid);
    add_option(a, "--chroot-base-dir", "%s", l->base);
    add_option(a, "--cgroup-version", "2");
    add_option(a, "--parent-cgroup", "hearth");
    if (l->memory_mib > 0)
        add_option(a, "--cgroup", "memory.max=%llu",
                   (unsigned long long)(l->memory_mib + MEMORY_OVERHEAD_MIB) << 20);
    add_option(a, "--cgroup", "pids.max=%u", PIDS_MAX);
    if (l->cpus > 0)
        add_option(a, "--cgroup", "cpu.max=%u 100000", l->cpus * 100000 + 20000);
    add_option(a, "--resource-limit", "no-file=2048");
    add(a, "--new-pid-ns");
    add(a, "--");
}

static void firecracker_arguments(struct arguments *a, const struct fc_jail *jail)
{
    if (!jail->jailed)
        add_option(a, "--id", "%s", jail->slot);
    add_option(a, "--api-sock", "%s", API_SOCKET);
    if (getenv("HEARTH_FIRECRACKER_NO_SECCOMP"))
        add(a, "--no-seccomp");
}

/* ---- start ---- */

static int open_log(const struct fc_jail *jail, struct error *err)
{
    char path[256];
    int fd;

    (void)snprintf(path, sizeof(path), "%s/serial.log", jail->root);
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    return fd < 0 ? error_set(err, errno, "create '%s': %s", path, errno_text(errno)) : fd;
}

static int read_pid_file(const struct fc_jail *jail, pid_t *ret)
{
    _cleanup_free_ char *text = NULL;
    char path[256];
    uint64_t pid;
    int r;

    (void)snprintf(path, sizeof(path), "%s/firecracker.pid", jail->root);
    r = file_read(path, 64, &text, NULL, NULL);
    if (r < 0)
        return r;
    text[strcspn(text, "\n")] = '\0';
    r = parse_u64(text, 1, 1u << 30, &pid);
    if (r < 0)
        return r;
    *ret = (pid_t)pid;
    return 0;
}

/* The jailer forks into the new pid namespace, writes the pid and ends. */
static int start_jailed(const struct fc_launch *l, struct fc_vmm *vmm, int log_fd,
                        struct error *err)
{
    struct arguments a = {0};
    struct spawn_options options = {.stdin_fd = -1, .stdout_fd = log_fd, .stderr_fd = log_fd,
                                    .new_session = true};
    uint64_t now = clock_now_usec();
    int r;

    jailer_arguments(&a, l, &vmm->jail);
    firecracker_arguments(&a, &vmm->jail);
    options.argv = (const char *const *)a.argv;
    r = a.r < 0 ? error_set(err, -a.r, "start Firecracker: out of memory")
                : spawn_run(&options, l->deadline_usec > now ? l->deadline_usec - now : 1, NULL,
                            err);
    strv_free(a.argv);
    if (r < 0)
        return r;
    r = read_pid_file(&vmm->jail, &vmm->pid);
    return r < 0 ? error_set(err, -r, "the jailer left no pid file in '%s'", vmm->jail.root) : 0;
}

static int start_plain(const struct fc_launch *l, struct fc_vmm *vmm, int log_fd, struct error *err)
{
    struct arguments a = {0};
    struct spawn_options options = {.stdin_fd = -1, .stdout_fd = log_fd, .stderr_fd = log_fd,
                                    .new_session = true, .cwd = vmm->jail.root};
    char text[32], path[256];
    int r;

    add(&a, l->programs.firecracker);
    firecracker_arguments(&a, &vmm->jail);
    options.argv = (const char *const *)a.argv;
    r = a.r < 0 ? error_set(err, -a.r, "start Firecracker: out of memory")
                : spawn(&options, &vmm->pid, NULL, err);
    strv_free(a.argv);
    if (r < 0)
        return r;
    (void)snprintf(text, sizeof(text), "%d\n", (int)vmm->pid);
    (void)snprintf(path, sizeof(path), "%s/firecracker.pid", vmm->jail.root);
    return file_write_atomic(path, text, strlen(text), 0600, err);
}

/* Waits for the API socket to appear, or for the process to end, which is an error. */
static int wait_for_socket(const struct fc_vmm *vmm, uint64_t deadline_usec, struct error *err)
{
    _cleanup_close_ int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    char path[256], events[4096];

    (void)snprintf(path, sizeof(path), "%s/%s", vmm->jail.root, API_SOCKET);
    if (watch < 0 || inotify_add_watch(watch, vmm->jail.root, IN_CREATE | IN_MOVED_TO) < 0)
        return error_set(err, errno, "watch '%s': %s", vmm->jail.root, errno_text(errno));
    while (!file_exists(path)) {
        struct pollfd fds[2] = {{.fd = watch, .events = POLLIN},
                                {.fd = vmm->pidfd, .events = POLLIN}};
        uint64_t now = clock_now_usec();

        if (now >= deadline_usec)
            return error_set(err, ETIMEDOUT, "Firecracker made no API socket in time");
        if (poll(fds, 2, (int)MIN((deadline_usec - now) / 1000 + 1, (uint64_t)60000)) < 0 &&
            errno != EINTR)
            return error_set(err, errno, "poll: %s", errno_text(errno));
        if (fds[1].revents)
            return error_set_code(err, ERR_BACKEND_FAILED, "Firecracker ended at its start");
        (void)!read(watch, events, sizeof(events));
    }
    return 0;
}

int fc_vmm_launch(const struct fc_launch *l, struct fc_vmm *ret, struct error *err)
{
    struct fc_vmm vmm = {.pidfd = -EBADF};
    _cleanup_close_ int log_fd = -EBADF;
    int r;

    r = fc_jail_make(&vmm.jail, l->base, l->programs.jailed, l->uid, err);
    if (r < 0)
        return r;
    log_fd = open_log(&vmm.jail, err);
    r = log_fd;
    if (r >= 0)
        r = vmm.jail.jailed ? start_jailed(l, &vmm, log_fd, err)
                            : start_plain(l, &vmm, log_fd, err);
    if (r >= 0) {
        r = attach(&vmm);
        if (r < 0)
            error_set_code(err, ERR_BACKEND_FAILED, "Firecracker ended at its start");
    }
    if (r >= 0)
        r = wait_for_socket(&vmm, l->deadline_usec, err);
    if (r < 0) {
        (void)fc_vmm_kill(&vmm, clock_now_usec() + 5 * USEC_PER_SEC, NULL);
        (void)fc_jail_remove(&vmm.jail, NULL);
        return r;
    }
    *ret = vmm;
    return 0;
}

int fc_vmm_kill(struct fc_vmm *vmm, uint64_t deadline_usec, struct error *err)
{
    siginfo_t info;

    while (vmm->pidfd >= 0) {
        struct pollfd fd = {.fd = vmm->pidfd, .events = POLLIN};
        uint64_t now = clock_now_usec();

        if (pidfd_send_signal(vmm->pidfd, SIGKILL, NULL, 0) < 0 && errno == ESRCH)
            break;
        if (now >= deadline_usec)
            return error_set(err, ETIMEDOUT, "Firecracker (pid %d) does not die", (int)vmm->pid);
        if (poll(&fd, 1, (int)((deadline_usec - now) / 1000 + 1)) > 0)
            break;
    }
    if (vmm->pidfd >= 0)
        (void)waitid(P_PIDFD, (id_t)vmm->pidfd, &info, WEXITED | WNOHANG);
    vmm->pidfd = fd_close(vmm->pidfd);
    return 0;
}

/* ---- after a restart ---- */

int fc_vmm_record_write(const struct fc_vmm *vmm, const char *dir, struct error *err)
{
    json_t *json = json_pack("{s:s, s:s, s:I, s:I, s:i, s:b}", "slot", vmm->jail.slot, "base",
                             vmm->jail.base, "pid", (json_int_t)vmm->pid, "start_time",
                             (json_int_t)vmm->start_time, "uid", (int)vmm->jail.uid, "jailed",
                             (int)vmm->jail.jailed);
    _cleanup_free_ char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    char path[512];

    json_decref(json);
    if (!text)
        return error_set(err, ENOMEM, "record of Firecracker: out of memory");
    (void)snprintf(path, sizeof(path), "%s/firecracker.json", dir);
    return file_write_atomic(path, text, strlen(text), 0600, err);
}

int fc_vmm_record_read(const char *dir, struct fc_vmm *ret, struct error *err)
{
    struct fc_vmm vmm = {.pidfd = -EBADF};
    const char *slot, *base;
    json_int_t pid, start_time;
    char path[512];
    int uid, jailed, r = 0;
    json_t *json;

    (void)snprintf(path, sizeof(path), "%s/firecracker.json", dir);
    json = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    if (!json || json_unpack(json, "{s:s, s:s, s:I, s:I, s:i, s:b}", "slot", &slot, "base", &base,
                             "pid", &pid, "start_time", &start_time, "uid", &uid, "jailed",
                             &jailed) < 0) {
        json_decref(json);
        return error_set(err, ESRCH, "no record of a Firecracker in '%s'", dir);
    }
    (void)snprintf(vmm.jail.slot, sizeof(vmm.jail.slot), "%s", slot);
    (void)snprintf(vmm.jail.base, sizeof(vmm.jail.base), "%s", base);
    (void)snprintf(vmm.jail.root, sizeof(vmm.jail.root), "%s/firecracker/%s/root", vmm.jail.base,
                   vmm.jail.slot);
    vmm.jail.uid = (uid_t)uid;
    vmm.jail.jailed = jailed;
    vmm.pid = (pid_t)pid;
    vmm.start_time = (uint64_t)start_time;
    json_decref(json);
    if (!name_is_valid(vmm.jail.slot))
        r = error_set(err, ESRCH, "the record in '%s' names a bad slot", dir);
    if (r == 0 && attach(&vmm) < 0)
        r = error_set(err, ESRCH, "Firecracker (pid %d) no longer runs", (int)vmm.pid);
    *ret = vmm;
    return r;
}

int fc_vmm_find(const struct fc_jail *jail, struct fc_vmm *ret, struct error *err)
{
    struct fc_vmm vmm = {.jail = *jail, .pidfd = -EBADF};

    if (read_pid_file(jail, &vmm.pid) < 0 || attach(&vmm) < 0)
        return error_set(err, ESRCH, "no Firecracker runs in '%s'", jail->root);
    *ret = vmm;
    return 0;
}
