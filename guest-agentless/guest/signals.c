#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/macros.h"
#include "guest/cgroup.h"
#include "guest/event.h"
#include "guest/server.h"

/* Who gets a signal. */

#define TREE_ROUNDS 8u /* a tree that forks while it is being killed is gone through again */
#define RETELL_FIRST_USEC (20 * USEC_PER_MSEC) /* doubled each time: 0.6 s in all */
#define RETELLS 5u
#define NAME_SIZE 32 /* of /proc/PID/comm with its newline */

static ssize_t members(struct process *p, pid_t *pids, size_t max)
{
    if (p->cgroup_fd >= 0)
        return cgroup_pids(p->cgroup_fd, &p->procs_fd, pids, max);
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

/* Replaces *set by `n` pids; when there is no memory for them it stays as it is. */
static void set_replace(pid_t **set, size_t *n_set, const pid_t *pids, size_t n)
{
    pid_t *copy = NULL;

    if (n > 0) {
        copy = malloc(n * sizeof(*copy));
        if (!copy)
            return;
        for (size_t i = 0; i < n; i++)
            copy[i] = pids[i];
    }
    free(*set);
    *set = copy;
    *n_set = n;
}

void process_snapshot(struct process *p)
{
    static pid_t pids[PROCESS_RECENT_MAX]; /* too large to be cleared for each command */
    ssize_t n = p->alone ? 0 : members(p, pids, ARRAY_SIZE(pids));

    set_replace(&p->recent, &p->n_recent, pids, n > 0 ? (size_t)n : 0);
    p->retells = 0;
    p->look = p->alone = false;
}

void process_look_around(struct server *s)
{
    struct process *p;
    pid_t pids[2];

    if (!s->look)
        return;
    s->look = false;
    TAILQ_FOREACH(p, &s->processes, link)
    {
        if (!p->look)
            continue;
        p->look = false;
        p->alone =
            p->cgroup_fd >= 0 && members(p, pids, ARRAY_SIZE(pids)) == 1 && pids[0] == p->pid;
    }
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

static void read_name(pid_t pid, char name[static NAME_SIZE])
{
    char path[32];
    ssize_t n;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? 0 : read(fd, name, NAME_SIZE - 1);
    (void)fd_close(fd);
    name[n > 0 ? n : 0] = '\0';
}

/*
 * An interrupt must not get lost because the shell was just about to start what it is meant for: it
 * would then wait for a child that never heard of it. So those that come up within the next moments
 * are told too, each of them once. One that was still a copy of the shell when it was told may have
 * taken it for the shell's own business: it is told again when it has become another program. Such
 * a one stands in `told` as a negative pid.
 */
static int tell_interrupt(struct process *p)
{
    pid_t pids[PROCESS_RECENT_MAX], told[PROCESS_RECENT_MAX];
    ssize_t n = members(p, pids, ARRAY_SIZE(pids));
    char shell[NAME_SIZE], name[NAME_SIZE];
    size_t n_told = 0;

    if (n < 0)
        return (int)n;
    read_name(p->pid, shell);
    for (ssize_t i = 0; i < n; i++) {
        pid_t pid = pids[i];
        bool copy;

        if (pid == p->pid || in_set(p->recent, p->n_recent, pid))
            continue;
        read_name(pid, name);
        copy = strcmp(name, shell) == 0;
        if (!in_set(p->told, p->n_told, pid) && !(copy && in_set(p->told, p->n_told, -pid)))
            (void)kill(pid, SIGINT);
        told[n_told++] = copy ? -pid : pid;
    }
    set_replace(&p->told, &p->n_told, told, n_told);
    return 0;
}

static int interrupt_recent(struct process *p)
{
    int r;

    set_replace(&p->told, &p->n_told, NULL, 0);
    r = tell_interrupt(p);
    if (r < 0)
        return r;
    p->retells = RETELLS;
    p->retell_usec = clock_now_usec() + RETELL_FIRST_USEC;
    return 0;
}

void process_retell(struct process *p, uint64_t now_usec)
{
    (void)tell_interrupt(p);
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
