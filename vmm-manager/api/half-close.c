#include "api/half-close.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/macros.h"

#define EVENTS_AT_ONCE 64

/* An epoll of its own: the loop's may hold a connection's socket for other reasons. */
struct half_close {
    int epoll_fd;      /* owned */
    struct source *io; /* owned */
};

static int on_io(struct source *s, int fd, uint32_t epoll_events, void *userdata)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    int n = epoll_wait(fd, events, ARRAY_SIZE(events), 0);

    (void)s;
    (void)epoll_events;
    (void)userdata;
    /* Nothing more can come from there; what has come can still be read. This wakes all who poll.
     */
    for (int i = 0; i < n; i++)
        (void)shutdown(events[i].data.fd, SHUT_RD);
    return 0;
}

int half_close_new(struct loop *loop, struct half_close **ret)
{
    struct half_close *h = calloc(1, sizeof(*h));
    int r;

    if (!h)
        return -ENOMEM;
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    r = h->epoll_fd < 0 ? -errno
                        : loop_add_io(loop, "http-half", h->epoll_fd, EPOLLIN, on_io, h, &h->io);
    if (r < 0) {
        (void)half_close_free(h);
        return r;
    }
    *ret = h;
    return 0;
}

struct half_close *half_close_free(struct half_close *h)
{
    if (!h)
        return NULL;
    (void)source_free(h->io);
    (void)fd_close(h->epoll_fd);
    free(h);
    return NULL;
}

void half_close_watch(struct half_close *h, int fd)
{
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.fd = fd};

    if (epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
        log_debug("http: the end of a client is not watched: %s, ignoring", errno_text(errno));
}
