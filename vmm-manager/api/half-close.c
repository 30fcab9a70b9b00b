#include "api/half-close.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/macros.h"

#define EVENTS_AT_ONCE 64
#define AGAIN_USEC (50 * USEC_PER_MSEC)

/*
 * Theory of operation. An epoll of its own, because the loop's may hold a connection's socket for
 * other reasons, reports level-triggered who has ended. While MHD has not read all that came before
 * the end, there is nothing to tell: it will be looked at again a moment later. Once it has,
 * shutdown() of a half that is closed already wakes all who poll the socket, and MHD reads the end.
 *
 * A socket that MHD has closed stays in the epoll while a child that was forked meanwhile and has
 * not begun its program holds it too, and its number may be another connection's by then. So what
 * the socket of that number says itself is what counts.
 */
struct half_close {
    int epoll_fd;         /* owned */
    struct source *io;    /* owned; off until `again` while somebody is to be looked at later */
    struct source *again; /* owned */
};

static int on_io(struct source *s, int fd, uint32_t epoll_events, void *userdata)
{
    struct half_close *h = userdata;
    struct epoll_event events[EVENTS_AT_ONCE];
    int n = epoll_wait(fd, events, ARRAY_SIZE(events), 0);
    bool later = false;
    char byte;

    (void)epoll_events;
    for (int i = 0; i < n; i++) {
        int client = events[i].data.fd;

        if (recv(client, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0) {
            later = true;
            continue;
        }
        (void)epoll_ctl(fd, EPOLL_CTL_DEL, client, NULL);
        (void)shutdown(client, SHUT_RD);
    }
    if (!later)
        return 0;
    (void)source_set_io_events(s, 0);
    return source_set_time(h->again, clock_now_usec() + AGAIN_USEC);
}

static int on_again(struct source *s, uint64_t now_usec, void *userdata)
{
    struct half_close *h = userdata;

    (void)s;
    (void)now_usec;
    return source_set_io_events(h->io, EPOLLIN);
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
    if (r >= 0)
        r = loop_add_timer(loop, "http-half-again", USEC_INFINITY, on_again, h, &h->again);
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
    (void)source_free(h->again);
    (void)fd_close(h->epoll_fd);
    free(h);
    return NULL;
}

void half_close_watch(struct half_close *h, int fd)
{
    struct epoll_event event = {.events = EPOLLRDHUP, .data.fd = fd};

    if (epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
        log_debug("http: the end of a client is not watched: %s, ignoring", errno_text(errno));
}
