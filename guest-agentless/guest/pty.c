#include "guest/pty.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>

#include "base/fd.h"

#define ROWS_DEFAULT 24u
#define COLS_DEFAULT 80u

int pty_resize(int master_fd, uint32_t rows, uint32_t cols)
{
    struct winsize size = {
        .ws_row = (unsigned short)(rows ? rows : ROWS_DEFAULT),
        .ws_col = (unsigned short)(cols ? cols : COLS_DEFAULT),
    };

    if (rows > UINT16_MAX || cols > UINT16_MAX)
        return -EINVAL;
    return ioctl(master_fd, TIOCSWINSZ, &size) < 0 ? -errno : 0;
}

int pty_open(int devpts_fd, uint32_t rows, uint32_t cols, int *ret_master, int *ret_slave)
{
    _cleanup_close_ int master = -EBADF, slave = -EBADF;
    const int flags = O_RDWR | O_NOCTTY | O_CLOEXEC;
    int unlock = 0, r;

    master = devpts_fd >= 0 ? openat(devpts_fd, "ptmx", flags | O_NONBLOCK)
                            : open("/dev/ptmx", flags | O_NONBLOCK);
    if (master < 0)
        return -errno;
    if (ioctl(master, TIOCSPTLCK, &unlock) < 0)
        return -errno;
    slave = ioctl(master, TIOCGPTPEER, flags);
    if (slave < 0)
        return -errno;
    r = pty_resize(master, rows, cols);
    if (r < 0)
        return r;
    *ret_master = TAKE_FD(master);
    *ret_slave = TAKE_FD(slave);
    return 0;
}
