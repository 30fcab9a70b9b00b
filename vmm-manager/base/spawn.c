#include "base/spawn.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

#define SPAWN_KEEP_MAX 16

static const char *const default_env[] = {
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", NULL};

/* In the child: reports errno through the pipe and ends. */
_Noreturn static void child_fail(int error_pipe)
{
    int errnum = errno;

    (void)!write(error_pipe, &errnum, sizeof(errnum));
    _exit(127);
}

/*
 * In the child: puts the wanted descriptors at 0, 1, 2, 3… First all of them are moved out of the
 * way, so that no target overwrites a source that is still needed.
 */
static void child_fds(const struct spawn_options *o, int null_fd, int *error_pipe)
{
    int wanted[3 + SPAWN_KEEP_MAX];
    int base = 3 + SPAWN_KEEP_MAX + 1;
    size_t n = 3 + o->n_keep_fds;

    wanted[0] = o->stdin_fd;
    wanted[1] = o->stdout_fd;
    wanted[2] = o->stderr_fd;
    for (size_t i = 0; i < o->n_keep_fds; i++)
        wanted[3 + i] = o->keep_fds[i];
    *error_pipe = fcntl(*error_pipe, F_DUPFD_CLOEXEC, base);
    if (*error_pipe < 0)
        _exit(127);
    for (size_t i = 0; i < n; i++) {
        wanted[i] = fcntl(wanted[i] < 0 ? null_fd : wanted[i], F_DUPFD_CLOEXEC, base);
        if (wanted[i] < 0)
            child_fail(*error_pipe);
    }
    for (size_t i = 0; i < n; i++)
        if (dup2(wanted[i], (int)i) < 0)
            child_fail(*error_pipe);
    (void)syscall(SYS_close_range, (unsigned)n, ~0U, CLOSE_RANGE_CLOEXEC);
}

_Noreturn static void child(const struct spawn_options *o, int null_fd, int error_pipe)
{
    sigset_t none;

    child_fds(o, null_fd, &error_pipe);
    if (o->new_session && setsid() < 0)
        child_fail(error_pipe);
    if (o->cwd && chdir(o->cwd) < 0)
        child_fail(error_pipe);
    for (int s = 1; s < NSIG; s++) {
        struct sigaction action = {.sa_handler = SIG_DFL};

        (void)sigaction(s, &action, NULL);
    }
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    /* execvpe only reads the strings; its prototype predates const. */
    execvpe(o->argv[0], (char *const *)(uintptr_t)o->argv,
            (char *const *)(uintptr_t)(o->env ? o->env : default_env));
    child_fail(error_pipe);
}

int spawn(const struct spawn_options *o, pid_t *ret_pid, int *ret_pidfd, struct error *err)
{
    _cleanup_close_ int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    _cleanup_close_ int report = -EBADF, error_pipe = -EBADF, pidfd = -EBADF;
    int pipe_fds[2], errnum = 0;
    ssize_t n;
    pid_t pid;

    if (o->n_keep_fds > SPAWN_KEEP_MAX)
        return error_set(err, EINVAL, "start '%s': too many descriptors", o->argv[0]);
    if (null_fd < 0 || pipe2(pipe_fds, O_CLOEXEC) < 0)
        return error_set(err, errno, "start '%s': %s", o->argv[0], errno_text(errno));
    report = pipe_fds[0];
    error_pipe = pipe_fds[1];
    pid = fork();
    if (pid < 0)
        return error_set(err, errno, "start '%s': %s", o->argv[0], errno_text(errno));
    if (pid == 0)
        child(o, null_fd, error_pipe);
    error_pipe = fd_close(error_pipe);
    n = fd_read_full(report, &errnum, sizeof(errnum));
    if (n != 0) {
        (void)waitpid(pid, NULL, 0);
        return error_set(err, n == sizeof(errnum) ? errnum : EIO, "start '%s': %s", o->argv[0],
                         errno_text(n == sizeof(errnum) ? errnum : EIO));
    }
    if (ret_pidfd) {
        pidfd = pidfd_open(pid, 0);
        if (pidfd < 0) {
            int saved = errno;

            (void)kill(pid, SIGKILL);
            (void)waitpid(pid, NULL, 0);
            return error_set(err, saved, "start '%s': pidfd: %s", o->argv[0], errno_text(saved));
        }
        *ret_pidfd = TAKE_FD(pidfd);
    }
    *ret_pid = pid;
    return 0;
}

/* Keeps the tail: makes room at the front when full. */
static void keep_output(struct buf *output, const char *data, size_t size)
{
    if (!output)
        return;
    if (size > output->max) {
        data += size - output->max;
        size = output->max;
    }
    if (buf_room(output) < size)
        buf_consume(output, size - buf_room(output));
    (void)buf_append(output, data, size);
}

/* The last line that is not empty, for the error text. */
static void last_line(const struct buf *output, char *text, size_t size)
{
    const char *s = buf_string(output);
    size_t end = output->size, start;

    while (end > 0 && (s[end - 1] == '\n' || s[end - 1] == '\r' || s[end - 1] == ' '))
        end--;
    start = end;
    while (start > 0 && s[start - 1] != '\n')
        start--;
    if (end - start >= size)
        start = end - size + 1;
    memcpy(text, s + start, end - start);
    text[end - start] = '\0';
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20)
            *p = ' ';
}

/* Reads until the pipe is closed or the deadline has passed; -ETIMEDOUT then. */
static int collect(int fd, int pidfd, uint64_t deadline_usec, struct buf *output)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = pidfd, .events = POLLIN}};
        uint64_t now = clock_now_usec();
        char block[8192];
        ssize_t n;
        int r;

        if (now >= deadline_usec)
            return -ETIMEDOUT;
        r = poll(fds, 2, (int)MIN((deadline_usec - now) / 1000 + 1, (uint64_t)60000));
        if (r < 0 && errno != EINTR)
            return -errno;
        if (r <= 0)
            continue;
        if (fds[0].revents) {
            n = read(fd, block, sizeof(block));
            if (n < 0 && (errno == EINTR || errno == EAGAIN))
                continue;
            if (n <= 0)
                return 0;
            keep_output(output, block, (size_t)n);
        } else if (fds[1].revents) {
            return 0; /* it ended; a daemonised child may hold the pipe for ever */
        }
    }
}

int spawn_run(const struct spawn_options *options, uint64_t timeout_usec, struct buf *output,
              struct error *err)
{
    _cleanup_buf_ struct buf own = {.max = 4096};
    _cleanup_close_ int in = -EBADF, out = -EBADF, pidfd = -EBADF;
    struct spawn_options o = *options;
    struct buf *kept = output ? output : &own;
    siginfo_t info = {0};
    char line[256];
    int fds[2], r;
    pid_t pid;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return error_set(err, errno, "run '%s': %s", o.argv[0], errno_text(errno));
    in = fds[0];
    out = fds[1];
    if (o.stdout_fd < 0)
        o.stdout_fd = out;
    if (o.stderr_fd < 0)
        o.stderr_fd = out;
    r = spawn(&o, &pid, &pidfd, err);
    if (r < 0)
        return r;
    out = fd_close(out);
    r = fd_set_nonblock(in, true);
    if (r == 0)
        r = collect(in, pidfd, clock_now_usec() + timeout_usec, kept);
    if (r < 0)
        (void)kill(pid, SIGKILL);
    while (waitid(P_PID, (id_t)pid, &info, WEXITED) < 0 && errno == EINTR)
        ;
    if (r < 0)
        return error_set(err, -r, "run '%s': %s", o.argv[0], errno_text(-r));
    if (info.si_code == CLD_EXITED && info.si_status == 0)
        return 0;
    last_line(kept, line, sizeof(line));
    return error_set(err, EIO, "'%s' %s %d: %s", o.argv[0],
                     info.si_code == CLD_EXITED ? "exited with status" : "was killed by signal",
                     info.si_status, line);
}
