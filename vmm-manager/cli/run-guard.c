#include "cli/run-guard.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/fd.h"

_Noreturn static void guard(struct cli *cli, int fd, run_guard_fn fn, void *userdata)
{
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    char byte;

    /* The daemon must see our parent's connection end with our parent. */
    http_close(&cli->http);
    cli->wait = (struct wait){.signal_fd = -EBADF};
    cli->options.quiet = true;
    (void)setsid();
    for (int i = STDIN_FILENO; null_fd >= 0 && i <= STDERR_FILENO; i++)
        (void)dup2(null_fd, i);
    if (fd_read_full(fd, &byte, 1) == 0)
        fn(cli, userdata);
    _exit(0);
}

int run_guard_start(struct cli *cli, run_guard_fn fn, void *userdata)
{
    _cleanup_close_ int read_end = -EBADF, write_end = -EBADF;
    int fds[2];
    pid_t pid;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    read_end = fds[0];
    write_end = fds[1];
    pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0) {
        write_end = fd_close(write_end);
        guard(cli, read_end, fn, userdata);
    }
    return TAKE_FD(write_end);
}

void run_guard_release(int fd)
{
    if (fd < 0)
        return;
    (void)fd_write_full(fd, "", 1);
    (void)fd_close(fd);
}
