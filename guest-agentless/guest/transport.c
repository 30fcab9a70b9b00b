#include "guest/transport.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/server.h"
#include "guest/uevent.h"
#include "protocol/frame.h"

#define PORTS_DIR "/sys/class/virtio-ports"

static bool port_has_name(const char *port, const char *name)
{
    char path[320], text[64];
    ssize_t n;

    (void)snprintf(path, sizeof(path), PORTS_DIR "/%.255s/name", port);
    {
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);

        n = fd < 0 ? -1 : fd_read_full(fd, text, sizeof(text) - 1);
    }
    if (n <= 0)
        return false;
    text[n] = '\0';
    text[strcspn(text, "\n")] = '\0';
    return strcmp(text, name) == 0;
}

static int open_port(void)
{
    DIR *d = opendir(PORTS_DIR);
    int fd = -ENODEV;
    struct dirent *e;

    if (!d)
        return -ENODEV;
    while (fd < 0 && (e = readdir(d))) {
        char path[320];

        if (e->d_name[0] == '.' || !port_has_name(e->d_name, PROTOCOL_PORT_NAME))
            continue;
        (void)snprintf(path, sizeof(path), "/dev/%.255s", e->d_name);
        fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
            fd = -errno;
    }
    (void)closedir(d);
    return fd;
}

static int listen_vsock(struct transport *t)
{
    struct sockaddr_vm address = {
        .svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = PROTOCOL_VSOCK_PORT};
    _cleanup_close_ int fd = -EBADF;

    /* The kernel may know vsock and the machine have no device: that is the device's own node. */
    fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 4) < 0)
        return -errno;
    return listener_open_consume(&t->vsock, TAKE_FD(fd), /* host_only= */ true);
}

static bool has_vsock_device(void)
{
    _cleanup_close_ int fd = open("/dev/vsock", O_RDONLY | O_CLOEXEC);
    unsigned cid = 0;

    if (fd < 0 || ioctl(fd, IOCTL_VM_SOCKETS_GET_LOCAL_CID, &cid) < 0)
        return false;
    return cid > VMADDR_CID_HOST && cid != VMADDR_CID_ANY;
}

int transport_open(struct transport *t, struct server *s, uint64_t deadline_usec)
{
    _cleanup_close_ int uevents = uevent_open();
    bool listening, vsock;
    int fd;

    *t = (struct transport){.server = s, .port = {.server = s, .fd = -EBADF}};
    listener_init(&t->vsock, s);
    t->conns[0] = &t->port;
    t->conns[1] = &t->vsock.conns[0];
    t->conns[2] = &t->vsock.conns[1];
    listening = listen_vsock(t) == 0;
    for (;;) {
        fd = open_port();
        vsock = listening && has_vsock_device();
        if (fd >= 0 || vsock || clock_now_usec() >= deadline_usec)
            break;
        uevent_wait(uevents, deadline_usec);
    }
    if (fd >= 0)
        return conn_open_consume(&t->port, s, fd, /* persistent= */ true);
    return vsock ? 0 : -ENODEV;
}

void transport_tidy(struct transport *t)
{
    listener_tidy(&t->vsock);
}

void transport_done(struct transport *t)
{
    listener_done(&t->vsock);
    conn_close(&t->port);
}
