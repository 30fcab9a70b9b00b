#include "base/fd.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

int fd_close(int fd)
{
    if (fd >= 0) {
        int saved = errno;

        (void)close(fd);
        errno = saved;
    }
    return -EBADF;
}

static int set_flag(int fd, int get, int set, int flag, bool on)
{
    int flags = fcntl(fd, get);

    if (flags < 0)
        return -errno;
    flags = on ? flags | flag : flags & ~flag;
    return fcntl(fd, set, flags) < 0 ? -errno : 0;
}

int fd_set_nonblock(int fd, bool nonblock)
{
    return set_flag(fd, F_GETFL, F_SETFL, O_NONBLOCK, nonblock);
}

int fd_set_cloexec(int fd, bool cloexec)
{
    return set_flag(fd, F_GETFD, F_SETFD, FD_CLOEXEC, cloexec);
}

ssize_t fd_read_full(int fd, void *data, size_t size)
{
    size_t done = 0;

    while (done < size) {
        ssize_t n = read(fd, (char *)data + done, size - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

int fd_write_full(int fd, const void *data, size_t size)
{
    const char *p = data;

    while (size > 0) {
        ssize_t n = write(fd, p, size);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        p += n;
        size -= (size_t)n;
    }
    return 0;
}

int fd_open_beneath(int dir_fd, const char *path, int flags, mode_t mode)
{
    struct open_how how = {
        .flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
        .mode = (flags & (O_CREAT | __O_TMPFILE)) ? mode : 0,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
    };
    long fd = syscall(SYS_openat2, dir_fd, path, &how, sizeof(how));

    return fd < 0 ? -errno : (int)fd;
}

int fd_connect_unix(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    _cleanup_close_ int fd = -EBADF;
    size_t length = strlen(path);

    if (length >= sizeof(address.sun_path))
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, length + 1);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
        return -errno;
    return TAKE_FD(fd);
}
