#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/macros.h"

void output_init(struct output *o, int fd)
{
    struct stat st;
    char path[64];
    int own;

    *o = (struct output){.fd = fd};
    if (fstat(fd, &st) < 0)
        return;
    o->is_socket = S_ISSOCK(st.st_mode);
    if (!S_ISFIFO(st.st_mode) && isatty(fd) != 1)
        return;
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    own = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (own < 0) {
        o->may_block = true;
        return;
    }
    o->fd = own;
    o->owned = true;
}

void output_done(struct output *o)
{
    if (o->owned)
        o->fd = fd_close(o->fd);
    o->owned = false;
}

ssize_t output_write(struct output *o, const uint8_t *data, size_t size)
{
    ssize_t n;

    if (o->gone)
        return (ssize_t)size;
    if (o->may_block) {
        struct pollfd poll_fd = {.fd = o->fd, .events = POLLOUT};

        if (poll(&poll_fd, 1, 0) <= 0)
            return -EAGAIN;
        size = MIN(size, (size_t)PIPE_BUF); /* this much fits when poll says so */
    }
    do
        n = o->is_socket ? send(o->fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL)
                         : write(o->fd, data, size);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}
