#include "guest/uevent.h"

#include <errno.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"

#define KERNEL_GROUP 1u
#define WAIT_MSEC 100

int uevent_open(void)
{
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = KERNEL_GROUP};
    _cleanup_close_ int fd =
        socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);

    if (fd < 0)
        return -errno;
    if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
        return -errno;
    return TAKE_FD(fd);
}

void uevent_wait(int fd, uint64_t deadline_usec)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint64_t now = clock_now_usec();
    char waste[4096];

    if (now >= deadline_usec)
        return;
    (void)poll(&p, 1, WAIT_MSEC);
    if (fd < 0)
        return;
    while (recv(fd, waste, sizeof(waste), MSG_DONTWAIT) > 0)
        ;
}
