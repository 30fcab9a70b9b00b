#include "backend/firecracker/fc-vmm.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/firecracker/fc-put.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/spawn.h"
#include "base/strv.h"

#define PIDS_MAX 64u
#define RETRY_MSEC 2
/*
 * The serial line is for kernel messages and last words only: rate limited, so that a guest that
 * prints without end costs neither CPU nor disk. Not part of a snapshot, and the one setting that
 * may come before a load: so every process gets it at its start.
 */
#define SERIAL_LIMIT                                                                               \
    "{\"rate_limiter\":{\"size\":65536,\"one_time_burst\":262144,\"refill_time\":1000}}"

/* Field N of /proc/PID/stat, counted behind the name, which may hold anything; owned by *text. */
static const char *read_stat(pid_t pid, int field, char **text)
{
    char path[64], *p;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (file_read(path, 4096, text, NULL, NULL) < 0)
        return NULL;
    p = strrchr(*text, ')');
    for (int at = 2; p && at < field; at++)
        p = strchr(p + 1, ' ');
    return p ? p + 1 : NULL;
}

static int read_start_time(pid_t pid, uint64_t *ret)
{
    _cleanup_free_ char *text = NULL;
    const char *field = read_stat(pid, 22, &text);

    if (!field)
        return -ESRCH;
    *ret = strtoull(field, NULL, 10);
    return 0;
}

bool fc_vmm_is_stopped(pid_t pid)
{
    _cleanup_free_ char *text = NULL;
    const char *state = read_stat(pid, 3, &text);

    return state && (*state == 'T' || *state == 't');
}

/* Jailed or not, the jail is what the process works in: tells it from another with the same pid. */
static bool works_in(pid_t pid, const struct fc_jail *jail)
{
    struct stat there, here;
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/%d/cwd", (int)pid);
    return stat(path, &there) == 0 && stat(jail->root, &here) == 0 && there.st_dev == here.st_dev &&
           there.st_ino == here.st_ino;
}

/* The process by its pid; with a known start time it must be that one. */
static int attach(struct fc_vmm *vmm)
{
    uint64_t start_time;
    int fd = pidfd_open(vmm->pid, 0);

    if (fd < 0)
        return -ESRCH;
    if (read_start_time(vmm->pid, &start_time) < 0 ||
        (vmm->start_time != 0 && vmm->start_time != start_time)) {
        (void)fd_close(fd);
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
                             const struct fc_jail *jail, int netns)
{
    add(a, l->programs.jailer);
    add_option(a, "--id", "%s", jail->slot);
    add_option(a, "--exec-file", "%s", l->programs.firecracker);
    add_option(a, "--uid", "%u", (unsigned)jail->uid);
    add_option(a, "--gid", "%u", (unsigned)jail->uid);
    add_option(a, "--chroot-base-dir", "%s", l->base);
    add_option(a, "--cgroup-version", "2");
    add_option(a, "--parent-cgroup", "hearth");
    /* The limits are set when it is known what will run in it; this makes the controllers there. */
    add_option(a, "--cgroup", "memory.max=max");
    add_option(a, "--cgroup", "cpu.max=max 100000");
    add_option(a, "--cgroup", "pids.max=%u", PIDS_MAX);
    add_option(a, "--resource-limit", "no-file=2048");
    if (netns >= 0)
        add_option(a, "--netns", "/proc/%d/fd/%d", (int)getpid(), netns);
    add(a, "--new-pid-ns");
    add(a, "--");
}

static void firecracker_arguments(struct arguments *a, const struct fc_jail *jail)
{
    if (!jail->jailed)
        add_option(a, "--id", "%s", jail->slot);
    add_option(a, "--api-sock", "%s", FC_API_SOCKET);
    add_option(a, "--level", "Error"); /* its log and the guest's serial line are one stream */
    if (getenv("HEARTH_FIRECRACKER_NO_SECCOMP"))
        add(a, "--no-seccomp");
}

/* ---- start ---- */

static int open_log(const struct fc_jail *jail, struct error *err)
{
    char path[108];
    int fd;

    fc_jail_path(jail, FC_SERIAL_LOG, path);
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    return fd < 0 ? error_set(err, errno, "create '%s': %s", path, errno_text(errno)) : fd;
}

static void pid_file(const struct fc_jail *jail, char path[108])
{
    char name[64];

    (void)snprintf(name, sizeof(name), "%s.pid", jail->program);
    fc_jail_path(jail, name, path);
}

static int read_pid_file(const struct fc_jail *jail, pid_t *ret)
{
    _cleanup_free_ char *text = NULL;
    char path[108];
    uint64_t pid;
    int r;

    pid_file(jail, path);
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

/* Waits for the jailer's own end; a jailer that hangs is killed. */
static int wait_for_jailer(int pidfd, uint64_t deadline_usec, int cancel_fd, struct error *err)
{
    struct pollfd fds[] = {{.fd = pidfd, .events = POLLIN}, {.fd = cancel_fd, .events = POLLIN}};
    uint64_t now = clock_now_usec();
    siginfo_t info = {0};
    bool late;

    late = poll(fds, 2, deadline_usec > now ? (int)((deadline_usec - now) / 1000 + 1) : 0) <= 0;
    if (late || fds[1].revents)
        (void)pidfd_send_signal(pidfd, SIGKILL, NULL, 0);
    while (waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED) < 0 && errno == EINTR)
        ;
    if (late)
        return error_set(err, ETIMEDOUT, "the jailer does not end");
    if (fds[1].revents)
        return error_set(err, ECANCELED, "the start of Firecracker was given up");
    if (info.si_code != CLD_EXITED || info.si_status != 0)
        return error_set_code(err, ERR_BACKEND_FAILED, "the jailer failed (%s %d)",
                              info.si_code == CLD_EXITED ? "status" : "signal", info.si_status);
    return 0;
}

/* In a thread of its own, which takes the new namespace with it when it ends. */
static void *unshare_network(void *userdata)
{
    int *ret = userdata;

    *ret =
        unshare(CLONE_NEWNET) < 0 ? -errno : open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    return NULL;
}

/*
 * An empty network namespace, held by a descriptor until a process is in it: no name to be left
 * behind. -EINVAL when the kernel knows none.
 */
static int new_network(struct error *err)
{
    pthread_t thread;
    int fd = -EIO, r = pthread_create(&thread, NULL, unshare_network, &fd);

    if (r == 0)
        (void)pthread_join(thread, NULL);
    r = r != 0 ? -r : fd;
    return r < 0 ? error_set(err, -r, "new network namespace: %s", errno_text(-r)) : r;
}

/* The jailer forks into the new pid namespace, writes the pid and ends. */
static int start_jailed(const struct fc_launch *l, struct fc_vmm *vmm, int log_fd,
                        struct error *err)
{
    struct arguments a = {0};
    struct spawn_options options = {
        .stdin_fd = -1, .stdout_fd = log_fd, .stderr_fd = log_fd, .new_session = true};
    _cleanup_close_ int pidfd = -EBADF, netns = new_network(err);
    pid_t pid;
    int r, k;

    if (netns < 0 && netns != -EINVAL)
        return netns;
    jailer_arguments(&a, l, &vmm->jail, netns);
    firecracker_arguments(&a, &vmm->jail);
    options.argv = (const char *const *)a.argv;
    r = a.r < 0 ? error_set(err, -a.r, "start Firecracker: out of memory")
                : spawn(&options, &pid, &pidfd, err);
    (void)strv_free(a.argv);
    if (r < 0)
        return r;
    r = wait_for_jailer(pidfd, l->deadline_usec, l->cancel_fd, err);
    /* Also after a failure: it may have forked already. */
    k = read_pid_file(&vmm->jail, &vmm->pid);
    if (r >= 0 && k < 0)
        r = error_set(err, -k, "the jailer left no pid file in '%s'", vmm->jail.root);
    return r;
}

static int start_plain(const struct fc_launch *l, struct fc_vmm *vmm, int log_fd, struct error *err)
{
    struct arguments a = {0};
    struct spawn_options options = {.stdin_fd = -1,
                                    .stdout_fd = log_fd,
                                    .stderr_fd = log_fd,
                                    .new_session = true,
                                    .cwd = vmm->jail.root};
    char text[32], path[108];
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
    pid_file(&vmm->jail, path);
    return file_write_atomic(path, text, strlen(text), 0600, err);
}

/* Waits until something listens on the API socket; an end of the process is an error. */
static int wait_for_socket(const struct fc_vmm *vmm, uint64_t deadline_usec, int cancel_fd,
                           struct error *err)
{
    _cleanup_close_ int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    char path[108], events[4096];

    fc_jail_path(&vmm->jail, FC_API_SOCKET, path);
    if (watch < 0 || inotify_add_watch(watch, vmm->jail.root, IN_CREATE | IN_MOVED_TO) < 0)
        return error_set(err, errno, "watch '%s': %s", vmm->jail.root, errno_text(errno));
    for (;;) {
        struct pollfd fds[] = {{.fd = watch, .events = POLLIN},
                               {.fd = vmm->pidfd, .events = POLLIN},
                               {.fd = cancel_fd, .events = POLLIN}};
        uint64_t now = clock_now_usec();
        int fd = fd_connect_unix(path), wait_msec = RETRY_MSEC;

        if (fd >= 0) {
            (void)fd_close(fd);
            return 0;
        }
        if (fd != -ENOENT && fd != -ECONNREFUSED)
            return error_set(err, -fd, "connect to '%s': %s", path, errno_text(-fd));
        if (now >= deadline_usec)
            return error_set(err, ETIMEDOUT, "Firecracker made no API socket in time");
        if (fd == -ENOENT)
            wait_msec = (int)MIN((deadline_usec - now) / 1000 + 1, (uint64_t)60000);
        if (poll(fds, ARRAY_SIZE(fds), wait_msec) < 0 && errno != EINTR)
            return error_set(err, errno, "poll: %s", errno_text(errno));
        if (fds[1].revents)
            return error_set_code(err, ERR_BACKEND_FAILED, "Firecracker ended at its start");
        if (fds[2].revents)
            return error_set(err, ECANCELED, "the start of Firecracker was given up");
        (void)!read(watch, events, sizeof(events));
    }
}

/* What Firecracker or the jailer said last, for whoever reads the error. */
static void add_last_words(const struct fc_jail *jail, struct error *err)
{
    _cleanup_free_ char *text = NULL;
    char path[108], *line;
    size_t n;

    fc_jail_path(jail, FC_SERIAL_LOG, path);
    if (!err || file_read(path, 64 * 1024, &text, &n, NULL) < 0)
        return;
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
        text[--n] = '\0';
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < ' ' && text[i] != '\n')
            text[i] = '?';
    line = strrchr(text, '\n');
    line = line ? line + 1 : text;
    if (*line) {
        char before[sizeof(err->text)];

        (void)snprintf(before, sizeof(before), "%s", err->text);
        (void)snprintf(err->text, sizeof(err->text), "%.200s: %.300s", before, line);
    }
}

static const char *program_name(const struct fc_programs *programs)
{
    const char *slash = strrchr(programs->firecracker, '/');

    return slash ? slash + 1 : programs->firecracker;
}

static int start(const struct fc_launch *l, struct fc_vmm *vmm, struct error *err)
{
    _cleanup_close_ int log_fd = open_log(&vmm->jail, err);
    int r;

    if (log_fd < 0)
        return log_fd;
    r = vmm->jail.jailed ? start_jailed(l, vmm, log_fd, err) : start_plain(l, vmm, log_fd, err);
    if (vmm->pid > 0 && attach(vmm) < 0 && r >= 0)
        r = error_set_code(err, ERR_BACKEND_FAILED, "Firecracker ended at its start");
    if (r >= 0)
        r = wait_for_socket(vmm, l->deadline_usec, l->cancel_fd, err);
    if (r >= 0) {
        char path[108];

        fc_jail_path(&vmm->jail, FC_API_SOCKET, path);
        r = fc_put(path, "/serial", SERIAL_LIMIT, l->deadline_usec, l->cancel_fd, err);
    }
    return r;
}

int fc_vmm_launch(const struct fc_launch *l, struct fc_vmm *ret, struct error *err)
{
    struct fc_vmm vmm = {.pidfd = -EBADF};
    int r;

    r = fc_jail_make(&vmm.jail, l->base, program_name(&l->programs), l->programs.jailed, l->uid,
                     err);
    if (r < 0)
        return r;
    r = start(l, &vmm, err);
    if (r < 0) {
        (void)fc_vmm_kill(&vmm, clock_now_usec() + 5 * USEC_PER_SEC, NULL);
        add_last_words(&vmm.jail, err);
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

int fc_vmm_record_write(const struct fc_vmm *vmm, const char *path, struct error *err)
{
    json_t *json = json_pack("{s:s, s:I, s:I, s:i, s:b, s:b}", "jail", vmm->jail.dir, "pid",
                             (json_int_t)vmm->pid, "start_time", (json_int_t)vmm->start_time, "uid",
                             (int)vmm->jail.uid, "jailed", (int)vmm->jail.jailed, "restored",
                             (int)vmm->restored);
    _cleanup_close_ int fd = -EBADF;
    char new_path[512];
    int r;
    _cleanup_free_ char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;

    json_decref(json);
    if (!text)
        return error_set(err, ENOMEM, "record of Firecracker: out of memory");
    /* Whole or not at all, but not synced: a crash of the host ends the process it tells of. */
    (void)snprintf(new_path, sizeof(new_path), "%.*s/.%s", (int)(strrchr(path, '/') - path), path,
                   strrchr(path, '/') + 1);
    fd = open(new_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    r = fd < 0 ? -errno : fd_write_full(fd, text, strlen(text));
    if (r >= 0 && rename(new_path, path) < 0)
        r = -errno;
    return r < 0 ? error_set(err, -r, "write '%s': %s", path, errno_text(-r)) : 0;
}

int fc_vmm_record_read(const char *path, struct fc_vmm *ret, struct error *err)
{
    struct fc_vmm vmm = {.pidfd = -EBADF};
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    const char *dir;
    json_int_t pid, start_time;
    int uid, jailed, restored, r;

    if (!json)
        return error_set(err, ENOENT, "no record '%s' of a Firecracker", path);
    r = json_unpack(json, "{s:s, s:I, s:I, s:i, s:b, s:b}", "jail", &dir, "pid", &pid, "start_time",
                    &start_time, "uid", &uid, "jailed", &jailed, "restored", &restored);
    if (r == 0)
        r = fc_jail_from_dir(&vmm.jail, dir, jailed, (uid_t)uid);
    json_decref(json);
    if (r < 0 || pid <= 0)
        return error_set(err, ENOENT, "record '%s' of a Firecracker is broken", path);
    vmm.pid = (pid_t)pid;
    vmm.start_time = (uint64_t)start_time;
    vmm.restored = restored;
    r = works_in(vmm.pid, &vmm.jail) ? attach(&vmm) : -ESRCH;
    *ret = vmm;
    return r < 0 ? error_set(err, ESRCH, "Firecracker (pid %d) no longer runs", (int)vmm.pid) : 0;
}

/* A daemon that died right after the start left no pid file. */
static pid_t search(const struct fc_jail *jail)
{
    pid_t found = 0;
    struct dirent *e;
    DIR *d = opendir("/proc");

    while (d && !found && (e = readdir(d))) {
        pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);

        if (pid > 0 && works_in(pid, jail))
            found = pid;
    }
    if (d)
        (void)closedir(d);
    return found;
}

int fc_vmm_find(const struct fc_jail *jail, struct fc_vmm *ret, struct error *err)
{
    struct fc_vmm vmm = {.jail = *jail, .pidfd = -EBADF};

    if (read_pid_file(jail, &vmm.pid) < 0 || !works_in(vmm.pid, jail))
        vmm.pid = search(jail);
    if (vmm.pid <= 0 || attach(&vmm) < 0)
        return error_set(err, ESRCH, "no Firecracker runs in '%s'", jail->root);
    *ret = vmm;
    return 0;
}
