#include "guest/listener.h"

#include <errno.h>
#include <linux/vm_sockets.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/macros.h"
#include "guest/server.h"

static void on_accept(struct source *source, uint32_t events)
{
    struct listener *l = container_of(source, struct listener, source);
    struct sockaddr_vm peer = {0};
    socklen_t size = sizeof(peer);
    int fd = accept4(l->fd, (struct sockaddr *)&peer, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);

    (void)events;
    if (fd < 0)
        return;
    if (l->host_only && (peer.svm_family != AF_VSOCK || peer.svm_cid != VMADDR_CID_HOST)) {
        (void)fd_close(fd);
        return;
    }
    for (unsigned i = 0; i < ARRAY_SIZE(l->conns); i++)
        conn_yield(&l->conns[i]);
    (void)conn_open_consume(&l->conns[l->conns[0].parked ? 1 : 0], l->server, fd,
                            /* persistent= */ false);
}

void listener_init(struct listener *l, struct server *s)
{
    *l = (struct listener){.server = s, .fd = -EBADF};
    for (unsigned i = 0; i < ARRAY_SIZE(l->conns); i++)
        l->conns[i] = (struct conn){.server = s, .fd = -EBADF};
}

int listener_open_consume(struct listener *l, int fd, bool host_only)
{
    int r = source_add(&l->server->poller, &l->source, fd, EPOLLIN, on_accept);

    l->host_only = host_only;
    l->fd = fd;
    if (r < 0)
        l->fd = fd_close(l->fd);
    return r;
}

void listener_tidy(struct listener *l)
{
    for (unsigned i = 0; i < ARRAY_SIZE(l->conns); i++) {
        if (l->conns[i].broken)
            conn_close(&l->conns[i]);
    }
}

void listener_done(struct listener *l)
{
    source_remove(&l->server->poller, &l->source);
    l->fd = fd_close(l->fd);
    for (unsigned i = 0; i < ARRAY_SIZE(l->conns); i++)
        conn_close(&l->conns[i]);
}
