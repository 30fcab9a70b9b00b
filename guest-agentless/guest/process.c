#include "guest/process.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/strv.h"
#include "guest/cgroup.h"
#include "guest/event.h"
#include "guest/server.h"

struct process *process_new(struct server *s)
{
    struct process *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    p->server = s;
    p->id = ++s->last_process_id;
    p->pidfd = p->error_fd = p->cgroup_fd = p->procs_fd = -EBADF;
    p->deadline_usec = p->kill_usec = USEC_INFINITY;
    for (unsigned i = 0; i < PROCESS_STREAMS; i++)
        stream_init(&p->streams[i], p, (uint8_t)i);
    TAILQ_INSERT_TAIL(&s->processes, p, link);
    return p;
}

static void leave_cgroup(struct server *s, uint64_t id)
{
    struct leftover *left = malloc(sizeof(*left));

    if (!left)
        return;
    left->id = id;
    TAILQ_INSERT_TAIL(&s->leftovers, left, link);
}

void process_free(struct process *p)
{
    struct server *s = p->server;

    if (p->ready)
        TAILQ_REMOVE(&s->ready, p, ready_link);
    TAILQ_REMOVE(&s->processes, p, link);
    for (unsigned i = 0; i < PROCESS_STREAMS; i++)
        stream_done(&p->streams[i]);
    source_remove(&s->poller, &p->pid_source);
    source_remove(&s->poller, &p->error_source);
    p->pidfd = fd_close(p->pidfd);
    p->error_fd = fd_close(p->error_fd);
    p->cgroup_fd = fd_close(p->cgroup_fd);
    p->procs_fd = fd_close(p->procs_fd);
    if (p->cgroup_left && cgroup_remove(s->cgroup_fd, p->cgroup) == -EBUSY)
        leave_cgroup(s, p->cgroup);
    free(p->label);
    strv_free(p->argv);
    free(p->recent);
    free(p->told);
    free(p);
}

struct process *process_find(struct server *s, uint64_t id)
{
    struct process *p;

    TAILQ_FOREACH(p, &s->processes, link)
    {
        if (p->id == id)
            return p->state == PROCESS_RELEASED ? NULL : p;
    }
    return NULL;
}

struct process *process_find_channel(struct server *s, uint32_t channel)
{
    struct process *p;

    TAILQ_FOREACH(p, &s->processes, link)
    {
        if (p->channel == channel)
            return p;
    }
    return NULL;
}

unsigned process_count_alive(const struct server *s)
{
    const struct process *p;
    unsigned count = 0;

    TAILQ_FOREACH(p, &s->processes, link)
    count += p->state < PROCESS_EXITED;
    return count;
}

static bool none_but(const struct server *s, const struct process *self)
{
    const struct process *p;

    TAILQ_FOREACH(p, &s->processes, link)
    {
        if (p != self && (p->state < PROCESS_EXITED || p->cgroup_left))
            return false;
    }
    return TAILQ_EMPTY(&s->leftovers);
}

bool process_is_alone(const struct process *p)
{
    return none_but(p->server, p);
}

bool process_none_left(const struct server *s)
{
    return none_but(s, NULL);
}

void process_mark_ready(struct process *p)
{
    if (p->ready || p->channel == 0 || p->state == PROCESS_SPAWNING)
        return;
    p->ready = true;
    TAILQ_INSERT_TAIL(&p->server->ready, p, ready_link);
}

static void unstall_all(struct process *p)
{
    for (unsigned i = 0; i < PROCESS_STREAMS; i++) {
        struct stream *s = &p->streams[i];

        if (s->present && !s->to_guest)
            stream_unstall(s);
    }
}

void process_attach(struct process *p, uint32_t channel)
{
    if (p->channel != 0 && p->channel != channel)
        event_closed(p->server, p->channel, "attached elsewhere");
    p->channel = channel;
    p->exit_sent = false;
    for (unsigned i = 0; i < PROCESS_STREAMS; i++) {
        struct stream *s = &p->streams[i];

        s->end_sent = false;
        s->window = 0;
        s->credit = 0;
        s->sent = s->told = s->ring.start;
    }
}

/* Nobody is attached any more. */
static void clear_channel(struct process *p)
{
    p->channel = 0;
    if (p->ready) {
        TAILQ_REMOVE(&p->server->ready, p, ready_link);
        p->ready = false;
    }
}

/* May free an operation of ours. */
void process_detach(struct process *p)
{
    clear_channel(p);
    if (p->op) {
        /* Its handler removes a half-written file. */
        if (p->state < PROCESS_EXITED)
            (void)kill(p->pid, SIGTERM);
        else
            process_free(p);
        return;
    }
    unstall_all(p);
}

void process_detach_all(struct server *s)
{
    struct process *p, *next;

    for (p = TAILQ_FIRST(&s->processes); p; p = next) {
        next = TAILQ_NEXT(p, link);
        if (p->channel != 0)
            process_detach(p);
    }
}

static bool has_open_output(const struct process *p)
{
    for (unsigned i = 0; i < PROCESS_STREAMS; i++) {
        const struct stream *s = &p->streams[i];

        if (s->present && !s->to_guest && s->fd >= 0)
            return true;
    }
    return false;
}

void process_release(struct process *p)
{
    if (p->kill_usec != USEC_INFINITY) {
        p->kill_usec = USEC_INFINITY;
        (void)process_signal(p, SIGKILL, HEARTH__V1__SIGNAL__SCOPE__TREE);
    }
    if (p->channel != 0) {
        event_closed(p->server, p->channel, "released");
        clear_channel(p);
    }
    if (p->op || !has_open_output(p)) {
        process_free(p);
        return;
    }
    p->state = PROCESS_RELEASED;
    for (unsigned i = 0; i < PROCESS_STREAMS; i++) {
        struct stream *s = &p->streams[i];

        if (s->present && !s->to_guest)
            ring_done(&s->ring);
    }
    unstall_all(p);
}

/* The oldest in that state, unattached ones first; NULL when there are at most `max`. */
static struct process *surplus(struct server *s, enum process_state state, unsigned max)
{
    struct process *p, *oldest = NULL, *idle = NULL;
    unsigned count = 0;

    TAILQ_FOREACH(p, &s->processes, link)
    {
        if (p->state != state)
            continue;
        count++;
        if (!oldest)
            oldest = p;
        if (!idle && p->channel == 0)
            idle = p;
    }
    if (count <= max)
        return NULL;
    return idle ? idle : oldest;
}

static bool all_sent(const struct process *p)
{
    for (unsigned i = 0; i < PROCESS_STREAMS; i++) {
        const struct stream *s = &p->streams[i];

        if (s->present && !s->to_guest && s->sent < s->ring.end)
            return false;
    }
    return true;
}

void process_evict(struct server *s)
{
    struct process *p, *next;

    while ((p = surplus(s, PROCESS_EXITED, PROCESSES_EXITED_MAX)))
        process_release(p);
    while ((p = surplus(s, PROCESS_RELEASED, PROCESSES_RELEASED_MAX)))
        process_free(p);
    /* History of the ended makes way for output of the living. */
    for (p = TAILQ_FIRST(&s->processes); p && s->pool.used > s->pool.max / 4 * 3; p = next) {
        next = TAILQ_NEXT(p, link);
        if (p->state == PROCESS_EXITED && p->channel == 0 && all_sent(p))
            process_release(p);
    }
}
