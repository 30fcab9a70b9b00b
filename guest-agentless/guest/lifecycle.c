#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/cgroup.h"
#include "guest/event.h"
#include "guest/server.h"
#include "guest/spawn.h"

/* From fork to exit: what the error pipe, the pidfd and the clock bring. */

void process_spawned(struct process *p)
{
    struct server *s = p->server;
    struct spawn_failure failure;
    ssize_t n;

    if (p->error_fd < 0)
        return;
    n = read(p->error_fd, &failure, sizeof(failure));
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    source_remove(&s->poller, &p->error_source);
    p->error_fd = fd_close(p->error_fd);
    if (n == (ssize_t)sizeof(failure)) {
        failure.message[sizeof(failure.message) - 1] = '\0';
        event_error(s, p->channel, (int)failure.code, failure.errnum, "%s", failure.message);
        p->channel = 0; /* the entry goes when its child is reaped */
        return;
    }
    p->state = PROCESS_RUNNING;
    if (p->channel == 0) {
        process_detach(p);
        return;
    }
    event_started(p);
    process_mark_ready(p);
}

static void sweep_cgroup(struct process *p)
{
    if (p->cgroup_left && cgroup_remove(p->server->cgroup_fd, p->cgroup) != -EBUSY) {
        p->cgroup_left = false;
        p->cgroup_fd = fd_close(p->cgroup_fd);
    }
}

void process_sweep_cgroups(struct server *s)
{
    struct leftover *left, *next;
    struct process *p;

    TAILQ_FOREACH(p, &s->processes, link)
    {
        if (p->state >= PROCESS_EXITED)
            sweep_cgroup(p);
    }
    for (left = TAILQ_FIRST(&s->leftovers); left; left = next) {
        next = TAILQ_NEXT(left, link);
        if (cgroup_remove(s->cgroup_fd, left->id) == -EBUSY)
            continue;
        TAILQ_REMOVE(&s->leftovers, left, link);
        free(left);
    }
}

static void process_ended(struct process *p, int status)
{
    p->ended_usec = clock_now_usec();
    p->state = PROCESS_EXITED;
    p->signal = WIFSIGNALED(status) ? (uint32_t)WTERMSIG(status) : 0;
    p->status = WIFEXITED(status) ? (uint32_t)WEXITSTATUS(status) : 0;
    p->deadline_usec = USEC_INFINITY;
    if (p->cgroup_fd >= 0 && p->cgroup_left)
        p->oom_killed = cgroup_oom_killed(p->cgroup_fd);
    for (unsigned i = 0; i < PROCESS_STREAMS; i++) {
        struct stream *s = &p->streams[i];

        if (!s->present)
            continue;
        if (s->to_guest) {
            source_remove(&p->server->poller, &s->source);
            s->fd = fd_close(s->fd);
            buf_clear(&s->pending);
        } else {
            stream_begin_drain(s);
        }
    }
    sweep_cgroup(p);
}

void process_reap(struct process *p)
{
    struct server *s = p->server;
    int status;

    if (p->state >= PROCESS_EXITED || wait4(p->pid, &status, WNOHANG, &p->usage) != p->pid)
        return;
    source_remove(&s->poller, &p->pid_source);
    p->pidfd = fd_close(p->pidfd);
    if (p->state == PROCESS_SPAWNING)
        process_spawned(p);
    if (p->state == PROCESS_SPAWNING) {
        process_free(p);
        return;
    }
    process_ended(p, status);
    if (p->op && p->channel == 0) {
        process_free(p);
        return;
    }
    process_mark_ready(p);
    process_evict(s);
}

void process_run_timers(struct server *s, uint64_t now_usec)
{
    struct process *p;

    if (!s->thawed)
        return;
    TAILQ_FOREACH(p, &s->processes, link)
    {
        if (p->deadline_usec <= now_usec) {
            p->deadline_usec = USEC_INFINITY;
            p->timed_out = true;
            p->kill_usec = now_usec + p->kill_grace_msec * USEC_PER_MSEC;
            (void)process_signal(p, SIGTERM, HEARTH__V1__SIGNAL__SCOPE__TREE);
        }
        if (p->kill_usec <= now_usec) {
            p->kill_usec = USEC_INFINITY;
            (void)process_signal(p, SIGKILL, HEARTH__V1__SIGNAL__SCOPE__TREE);
        }
        if (p->retells > 0 && p->retell_usec <= now_usec)
            process_retell(p, now_usec);
    }
}

uint64_t process_next_timer(const struct server *s)
{
    uint64_t next = USEC_INFINITY;
    const struct process *p;

    if (!s->thawed)
        return next;
    TAILQ_FOREACH(p, &s->processes, link)
    {
        next = MIN(next, MIN(p->deadline_usec, p->kill_usec));
        if (p->retells > 0)
            next = MIN(next, p->retell_usec);
    }
    return next;
}

void process_shift_timers(struct server *s, uint64_t by_usec)
{
    struct process *p;

    TAILQ_FOREACH(p, &s->processes, link)
    {
        if (p->deadline_usec != USEC_INFINITY)
            p->deadline_usec += by_usec;
        if (p->kill_usec != USEC_INFINITY)
            p->kill_usec += by_usec;
    }
}
