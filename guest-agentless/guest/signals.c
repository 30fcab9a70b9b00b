#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "guest/cgroup.h"
#include "guest/event.h"
#include "guest/server.h"

/* Who gets a signal. */

#define TREE_ROUNDS 8u /* a tree that forks while it is being killed is gone through again */
#define RETELL_FIRST_USEC (20 * USEC_PER_MSEC) /* doubled each time: 0.6 s in all */
#define RETELLS 5u

static ssize_t members(const struct process *p, pid_t *pids, size_t max)
{
    if (p->cgroup_fd >= 0)
        return cgroup_pids(p->cgroup_fd, pids, max);
    if (p->server->cgroup_fd >= 0)
        return 0; /* its cgroup is gone: nobody is left */
    return session_pids(p->pid, pids, max);
}

static bool in_set(const pid_t *set, size_t n, pid_t pid)
{
    for (size_t i = 0; i < n; i++) {
        if (set[i] == pid)
            return true;
    }
    return false;
}

/* Replaces *set by the members of now; when there is no memory for them it stays as it is. */
static void take_members(const struct process *p, pid_t **set, size_t *n_set)
{
    pid_t pids[PROCESS_RECENT_MAX];
    ssize_t n = members(p, pids, ARRAY_SIZE(pids));
    pid_t *copy = NULL;

    if (n > 0) {
        copy = malloc((size_t)n * sizeof(*copy));
        if (!copy)
            return;
        for (ssize_t i = 0; i < n; i++)
            copy[i] = pids[i];
    }
    free(*set);
    *set = copy;
    *n_set = n > 0 ? (size_t)n : 0;
}

void process_snapshot(struct process *p)
{
    take_members(p, &p->recent, &p->n_recent);
    p->retells = 0;
}

static int signal_members(struct process *p, int signo, bool recent_only)
{
    pid_t pids[PROCESS_RECENT_MAX];
    ssize_t n = members(p, pids, ARRAY_SIZE(pids));
    int count = 0;

    if (n < 0)
        return (int)n;
    for (ssize_t i = 0; i < n; i++) {
        if (recent_only && (pids[i] == p->pid || in_set(p->recent, p->n_recent, pids[i])))
            continue;
        if (kill(pids[i], signo) == 0)
            count++;
    }
    return count;
}

static int signal_tree(struct process *p, int signo)
{
    int r;

    if (signo != SIGKILL) {
        r = signal_members(p, signo, false);
        return r < 0 ? r : 0;
    }
    if (p->cgroup_fd >= 0 && cgroup_write(p->cgroup_fd, "cgroup.kill", "1") == 0)
        return 0;
    /* Kernels before 5.14, and tests without cgroups. */
    for (unsigned i = 0; i < TREE_ROUNDS; i++) {
        r = signal_members(p, signo, false);
        if (r <= 0)
            return r;
    }
    return 0;
}

static int signal_foreground(struct process *p, int signo)
{
    pid_t group = 0;

    if (!p->tty || p->streams[1].fd < 0)
        return -ENOTTY;
    if (ioctl(p->streams[1].fd, TIOCGPGRP, &group) < 0)
        return -errno;
    if (group <= 1)
        return -ESRCH;
    return kill(-group, signo) < 0 ? -errno : 0;
}

/*
 * An interrupt must not get lost because the shell was just about to start what it is meant for: it
 * would then wait for a child that never heard of it. So those that come up within the next moments
 * are told too, each of them once.
 */
static int interrupt_recent(struct process *p)
{
    int r = signal_members(p, SIGINT, true);

    if (r < 0)
        return r;
    take_members(p, &p->told, &p->n_told);
    p->retells = RETELLS;
    p->retell_usec = clock_now_usec() + RETELL_FIRST_USEC;
    return r;
}

void process_retell(struct process *p, uint64_t now_usec)
{
    pid_t pids[PROCESS_RECENT_MAX];
    ssize_t n = members(p, pids, ARRAY_SIZE(pids));

    for (ssize_t i = 0; i < n; i++) {
        if (pids[i] != p->pid && !in_set(p->recent, p->n_recent, pids[i]) &&
            !in_set(p->told, p->n_told, pids[i]))
            (void)kill(pids[i], SIGINT);
    }
    take_members(p, &p->told, &p->n_told);
    p->retells--;
    p->retell_usec = now_usec + (RETELL_FIRST_USEC << (RETELLS - p->retells));
}

int process_signal(struct process *p, int signo, int scope)
{
    bool alive = p->state < PROCESS_EXITED;
    int r;

    if (signo < 0 || signo > SIGRTMAX)
        return -EINVAL;
    /* One that runs our code cleans up after itself and needs no harder word. */
    if (p->op)
        return alive && signo != 0 && kill(p->pid, SIGTERM) < 0 ? -errno : 0;
    switch (scope) {
    case HEARTH__V1__SIGNAL__SCOPE__PROCESS:
        if (!alive)
            return -ESRCH;
        return kill(p->pid, signo) < 0 ? -errno : 0;
    case HEARTH__V1__SIGNAL__SCOPE__TREE:
        return signal_tree(p, signo);
    case HEARTH__V1__SIGNAL__SCOPE__RECENT:
        r = signo == SIGINT ? interrupt_recent(p) : signal_members(p, signo, true);
        return r < 0 ? r : 0;
    case HEARTH__V1__SIGNAL__SCOPE__FOREGROUND:
        return signal_foreground(p, signo);
    default:
        return -EINVAL;
    }
}

void process_kill_all(struct server *s, int signo)
{
    struct process *p;

    TAILQ_FOREACH(p, &s->processes, link)
    (void)process_signal(p, signo, HEARTH__V1__SIGNAL__SCOPE__TREE);
}
