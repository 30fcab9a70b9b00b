#include "cli/daemon-start.h"

#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/paths.h"
#include "base/spawn.h"
#include "base/strv.h"

/* It adopts what the daemon before left behind, so the start may take a while on a busy machine. */
#define READY_TIMEOUT_USEC (60 * USEC_PER_SEC)
#define CONNECT_TIMEOUT_USEC (10 * USEC_PER_SEC)
#define RETRY_USEC (20 * USEC_PER_MSEC)
#define LOG_MAX_BYTES ((off_t)4 * 1024 * 1024)
#define LOG_TAIL_BYTES 4096

extern char **environ;

int daemon_binary(char *text, size_t size, struct error *err)
{
    int n = snprintf(text, size, "%s/hearthd", paths_program_dir());

    if (n < 0 || (size_t)n >= size)
        return error_set(err, ENAMETOOLONG, "the path of hearthd is too long");
    if (access(text, X_OK) < 0)
        return error_set(err, errno, "'%s': %s; hearthd must stand beside hearth", text,
                         errno_text(errno));
    return 0;
}

static const char *root_hint(int errnum)
{
    return (errnum == EACCES || errnum == EPERM) && geteuid() != 0 ? "; run hearth as root" : "";
}

int daemon_connect_running(struct error *err)
{
    uint64_t deadline = wait_deadline(CONNECT_TIMEOUT_USEC);
    struct wait pause = {.signal_fd = -EBADF};

    for (;;) {
        int fd = fd_connect_unix(paths_socket());

        if (fd >= 0)
            return fd;
        if (fd == -EINTR)
            continue;
        /* EAGAIN: more connections wait than the daemon has room for. */
        if (fd == -EAGAIN && clock_now_usec() < deadline) {
            (void)wait_fd(&pause, -1, 0, wait_deadline(RETRY_USEC));
            continue;
        }
        if (fd == -ENOENT || fd == -ECONNREFUSED)
            return error_set_errno(err, ERR_UNAVAILABLE, -fd, "no daemon listens on '%s'",
                                   paths_socket());
        return error_set_errno(err, ERR_UNAVAILABLE, -fd, "the daemon's socket '%s': %s%s",
                               paths_socket(), errno_text(-fd), root_hint(-fd));
    }
}

static bool autostart_is_off(void)
{
    const char *value = getenv("HEARTH_NO_AUTOSTART");

    return value && value[0] && strcmp(value, "0") != 0;
}

/* Waits for the lock without blocking for ever behind a stuck program. */
static int take_lock(struct wait *w, const char *path, struct error *err)
{
    uint64_t deadline = wait_deadline(READY_TIMEOUT_USEC);
    _cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

    if (fd < 0)
        return error_set(err, errno, "'%s': %s", path, errno_text(errno));
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        int r;

        if (errno != EWOULDBLOCK && errno != EINTR)
            return error_set(err, errno, "lock '%s': %s", path, errno_text(errno));
        if (clock_now_usec() >= deadline)
            return error_set(err, ETIMEDOUT, "another hearth holds '%s' for too long", path);
        r = wait_fd(w, -1, 0, wait_deadline(RETRY_USEC));
        if (r < 0 && r != -ETIMEDOUT)
            return error_set_errno(err, ERR_CANCELLED, -r, "interrupted");
    }
    return TAKE_FD(fd);
}

static int open_log(const char *path, off_t *ret_start, struct error *err)
{
    _cleanup_close_ int fd = -EBADF;
    struct stat st;

    if (stat(path, &st) == 0 && st.st_size > LOG_MAX_BYTES) {
        _cleanup_free_ char *old = string_printf("%s.1", path);

        if (old)
            (void)rename(path, old);
    }
    fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (fd < 0 || fstat(fd, &st) < 0)
        return error_set(err, errno, "'%s': %s", path, errno_text(errno));
    *ret_start = st.st_size;
    return TAKE_FD(fd);
}

/* The daemon outlives this program: it gets what it needs and none of the caller's secrets. */
static int daemon_env(char ***ret)
{
    static const char *const passed[] = {
        "HEARTH_", "HOME=", "LANG=", "TMPDIR=", "ASAN_OPTIONS=", "UBSAN_OPTIONS=", "TSAN_OPTIONS="};
    static const char standard[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    const char *path = getenv("PATH");
    _cleanup_strv_ char **env = NULL;
    _cleanup_free_ char *text =
        string_printf("PATH=%s%s%s", path ? path : "", path && path[0] ? ":" : "", standard);
    int r = text ? strv_append(&env, text) : -ENOMEM;

    for (char **e = environ; *e && r >= 0; e++)
        for (size_t i = 0; i < ARRAY_SIZE(passed) && r >= 0; i++)
            if (string_starts_with(*e, passed[i]))
                r = strv_append(&env, *e);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(env);
    return 0;
}

/* What the daemon wrote last before it gave up: the message of its last log line. */
static void last_words(const char *log_path, off_t start, char *text, size_t size)
{
    _cleanup_close_ int fd = open(log_path, O_RDONLY | O_CLOEXEC);
    char tail[LOG_TAIL_BYTES + 1];
    json_auto_t *json = NULL;
    const char *message;
    struct stat st;
    ssize_t n;
    char *line;

    text[0] = '\0';
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_size <= start)
        return;
    n = pread(fd, tail, LOG_TAIL_BYTES, MAX(start, st.st_size - LOG_TAIL_BYTES));
    if (n <= 0)
        return;
    while (n > 0 && tail[n - 1] == '\n')
        n--;
    tail[n] = '\0';
    line = strrchr(tail, '\n');
    line = line ? line + 1 : tail;
    json = json_loads(line, 0, NULL);
    message = json_string_value(json_object_get(json, "message"));
    (void)snprintf(text, size, "%.*s", (int)size - 1, message ? message : line);
}

/* One line: "ready", or why not; the end of the pipe without one means that the daemon died. */
static int wait_ready(struct wait *w, int ready_fd, struct error *err)
{
    uint64_t deadline = wait_deadline(READY_TIMEOUT_USEC);
    char line[600];
    size_t size = 0;

    while (size < sizeof(line) - 1 && !memchr(line, '\n', size)) {
        ssize_t n;
        int r = wait_fd(w, ready_fd, POLLIN, deadline);

        if (r == -ETIMEDOUT)
            return error_set(err, ETIMEDOUT, "hearthd is not ready after %u s",
                             (unsigned)(READY_TIMEOUT_USEC / USEC_PER_SEC));
        if (r < 0)
            return error_set_errno(err, ERR_CANCELLED, -r, "interrupted");
        n = read(ready_fd, line + size, sizeof(line) - 1 - size);
        if (n <= 0)
            break;
        size += (size_t)n;
    }
    line[size] = '\0';
    line[strcspn(line, "\n")] = '\0';
    if (strcmp(line, "ready") == 0)
        return 0;
    return error_set_errno(err, ERR_UNAVAILABLE, ECHILD, "%s", line);
}

static int start_daemon(struct wait *w, const char *binary, const char *log_path, struct error *err)
{
    _cleanup_close_ int log_fd = -EBADF, ready_read = -EBADF, ready_write = -EBADF;
    _cleanup_strv_ char **env = NULL;
    char words[256];
    int pipe_fds[2], r;
    off_t log_start = 0;
    pid_t pid;

    log_fd = open_log(log_path, &log_start, err);
    if (log_fd < 0)
        return log_fd;
    r = daemon_env(&env);
    if (r < 0)
        return error_set(err, -r, "out of memory");
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return error_set(err, errno, "pipe: %s", errno_text(errno));
    ready_read = pipe_fds[0];
    ready_write = pipe_fds[1];
    {
        const char *argv[] = {
            binary, "--state", paths_state_dir(), "--socket", paths_socket(), "--ready-fd=3", NULL};
        struct spawn_options options = {
            .argv = argv,
            .env = (const char *const *)env,
            .cwd = "/",
            .stdin_fd = -EBADF,
            .stdout_fd = log_fd,
            .stderr_fd = log_fd,
            .keep_fds = &ready_write,
            .n_keep_fds = 1,
            .new_session = true,
        };

        r = spawn(&options, &pid, NULL, err);
    }
    if (r < 0)
        return r;
    ready_write = fd_close(ready_write);
    if (w->progress)
        progress_update(w->progress, "starting hearthd", -1);
    r = wait_ready(w, ready_read, err);
    if (r >= 0)
        return 0;
    (void)waitpid(pid, NULL, WNOHANG);
    if (r != -ECHILD)
        return r;
    if (err->text[0] == '\0') {
        last_words(log_path, log_start, words, sizeof(words));
        (void)error_set_errno(err, ERR_UNAVAILABLE, ECHILD, "%s",
                              words[0] ? words : "it ended without a word");
    }
    error_wrap(err, "hearthd did not start (log: %s)", log_path);
    return r;
}

static int start_locked(struct wait *w, struct error *err)
{
    const char *state = paths_state_dir();
    _cleanup_free_ char *lock_path = string_printf("%s/hearthd.start", state);
    _cleanup_free_ char *log_path = string_printf("%s/hearthd.log", state);
    _cleanup_close_ int lock = -EBADF;
    char binary[PATH_MAX];
    int fd, r;

    if (!lock_path || !log_path)
        return error_set(err, ENOMEM, "out of memory");
    r = daemon_binary(binary, sizeof(binary), err);
    if (r < 0)
        return r;
    r = dir_create(state, 0700, err);
    if (r < 0)
        return error_set(err, -r, "state directory '%s': %s%s", state, errno_text(-r),
                         root_hint(-r));
    lock = take_lock(w, lock_path, err);
    if (lock < 0)
        return lock;
    /* Another program may have started it while we waited. */
    fd = daemon_connect_running(NULL);
    if (fd >= 0)
        return fd;
    r = start_daemon(w, binary, log_path, err);
    if (r < 0)
        return r;
    return daemon_connect_running(err);
}

bool daemon_is_other_build(int fd)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    char binary[PATH_MAX], running[64];
    struct stat here, there;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || peer.pid <= 0 ||
        daemon_binary(binary, sizeof(binary), NULL) < 0)
        return false;
    (void)snprintf(running, sizeof(running), "/proc/%d/exe", peer.pid);
    if (stat(binary, &here) < 0 || stat(running, &there) < 0)
        return false;
    return here.st_ino != there.st_ino || here.st_dev != there.st_dev ||
           here.st_mtim.tv_sec != there.st_mtim.tv_sec ||
           here.st_mtim.tv_nsec != there.st_mtim.tv_nsec;
}

/* It serves all the same; a person at a terminal is told, a script is not. */
static void tell_other_build(struct cli *cli, int fd)
{
    if (cli->told_build || isatty(STDERR_FILENO) != 1 || !daemon_is_other_build(fd))
        return;
    cli->told_build = true;
    cli_note(cli, "the daemon that runs is of another build; 'hearth daemon stop' makes way for "
                  "this one, sandboxes stay");
}

int daemon_connect(struct cli *cli, struct error *err)
{
    int fd = daemon_connect_running(err);

    if (fd >= 0)
        tell_other_build(cli, fd);
    if (fd != -ENOENT && fd != -ECONNREFUSED)
        return fd;
    if (autostart_is_off()) {
        error_wrap(err, "HEARTH_NO_AUTOSTART is set");
        return fd;
    }
    error_clear(err);
    return start_locked(&cli->wait, err);
}
