#include "guest/poller.h"

#include <errno.h>
#include <limits.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/fd.h"

int poller_init(struct poller *p)
{
    *p = (struct poller){.fd = epoll_create1(EPOLL_CLOEXEC)};
    return p->fd < 0 ? -errno : 0;
}

void poller_done(struct poller *p)
{
    p->fd = fd_close(p->fd);
}

int source_add(struct poller *p, struct source *s, int fd, uint32_t events, source_fn fn)
{
    struct epoll_event e = {.events = events, .data.ptr = s};

    if (epoll_ctl(p->fd, EPOLL_CTL_ADD, fd, &e) < 0)
        return -errno;
    *s = (struct source){.fn = fn, .fd = fd, .events = events};
    return 0;
}

void source_set_events(struct poller *p, struct source *s, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = s};
    int op = EPOLL_CTL_MOD;

    if (!s->fn || s->events == events)
        return;
    if (events == 0)
        op = EPOLL_CTL_DEL;
    else if (s->events == 0)
        op = EPOLL_CTL_ADD;
    if (epoll_ctl(p->fd, op, s->fd, &e) == 0)
        s->events = events;
}

void source_remove(struct poller *p, struct source *s)
{
    if (!s->fn)
        return;
    if (s->events != 0)
        (void)epoll_ctl(p->fd, EPOLL_CTL_DEL, s->fd, NULL);
    s->fn = NULL;
    for (int i = 0; i < p->n_batch; i++) {
        if (p->batch[i] == s)
            p->batch[i] = NULL;
    }
}

static int wait_msec(uint64_t deadline_usec)
{
    uint64_t now, msec;

    if (deadline_usec == USEC_INFINITY)
        return -1;
    now = clock_now_usec();
    if (deadline_usec <= now)
        return 0;
    msec = (deadline_usec - now + USEC_PER_MSEC - 1) / USEC_PER_MSEC;
    return msec > INT_MAX ? INT_MAX : (int)msec;
}

int poller_run(struct poller *p, uint64_t deadline_usec)
{
    struct epoll_event events[POLLER_BATCH];
    int n = epoll_wait(p->fd, events, POLLER_BATCH, wait_msec(deadline_usec));

    if (n < 0)
        return errno == EINTR ? 0 : -errno;
    p->n_batch = n;
    for (int i = 0; i < n; i++)
        p->batch[i] = events[i].data.ptr;
    for (int i = 0; i < n; i++) {
        if (p->batch[i])
            p->batch[i]->fn(p->batch[i], events[i].events);
    }
    p->n_batch = 0;
    return 0;
}
