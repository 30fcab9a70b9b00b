#include "guest/reap.h"

#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/macros.h"

#define REAP_BATCH 256u

static struct process *process_of(struct server *s, pid_t pid)
{
    struct process *p;

    TAILQ_FOREACH(p, &s->processes, link)
    {
        if (p->pid == pid && p->state < PROCESS_EXITED)
            return p;
    }
    return NULL;
}

/* Reaps the dead one by one; false when none is left, or the next one's own source will do it. */
static bool reap_next(struct server *s)
{
    siginfo_t info = {0};
    struct process *p;

    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
        return false;
    p = process_of(s, info.si_pid);
    if (p) {
        process_reap(p);
        return true;
    }
    if (info.si_pid == s->control.pid)
        return control_reap(s);
    return waitpid(info.si_pid, NULL, WNOHANG) == info.si_pid;
}

static void on_signal(struct source *source, uint32_t events)
{
    struct reaper *r = container_of(source, struct reaper, source);
    struct signalfd_siginfo info[8];

    (void)events;
    while (read(r->fd, info, sizeof(info)) > 0)
        ;
    for (unsigned i = 0; reap_next(r->server); i++) {
        if (i < REAP_BATCH)
            continue;
        /* A storm of orphans may not keep the host waiting: the rest comes in the next round. */
        (void)kill(getpid(), SIGCHLD);
        break;
    }
    process_sweep_cgroups(r->server);
}

int reaper_init(struct reaper *r, struct server *s)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return -errno;
    *r = (struct reaper){.server = s, .fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)};
    if (r->fd < 0)
        return -errno;
    return source_add(&s->poller, &r->source, r->fd, EPOLLIN, on_signal);
}
