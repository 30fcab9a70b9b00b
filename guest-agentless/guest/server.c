#include "guest/server.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/cgroup.h"

#define POOL_MIN (8u * 1024u * 1024u)
#define POOL_MAX (256u * 1024u * 1024u)
#define POOL_SHARE 8u /* of the memory */
#define FLUSH_USEC (2 * USEC_PER_SEC)

int server_init(struct server *s, const struct guest_options *options, bool is_init)
{
    struct sysinfo info = {0};
    uint64_t memory;
    int r;

    *s = (struct server){.options = *options,
                         .is_init = is_init,
                         .cgroup_fd = -EBADF,
                         .ops_fd = -EBADF,
                         .devpts_fd = -EBADF,
                         .thawed = options->thawed_from_start};
    TAILQ_INIT(&s->processes);
    TAILQ_INIT(&s->ready);
    TAILQ_INIT(&s->leftovers);
    control_init(&s->control);
    (void)sysinfo(&info);
    memory = (uint64_t)info.totalram * info.mem_unit / POOL_SHARE;
    s->pool.max = (size_t)MAX((uint64_t)POOL_MIN, MIN(memory, (uint64_t)POOL_MAX));
    r = poller_init(&s->poller);
    if (r < 0)
        return r;
    if (options->cgroup_dir) {
        s->cgroup_fd = cgroup_open_tree(options->cgroup_dir);
        if (s->cgroup_fd < 0)
            return s->cgroup_fd;
        s->ops_fd = openat(s->cgroup_fd, "ops", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (s->ops_fd < 0)
            return -errno;
    }
    return 0;
}

void server_done(struct server *s)
{
    struct process *p, *next;
    struct leftover *left;

    process_kill_all(s, SIGKILL);
    for (p = TAILQ_FIRST(&s->processes); p; p = next) {
        next = TAILQ_NEXT(p, link);
        if (p->state < PROCESS_EXITED && p->pid > 0) {
            (void)kill(p->pid, SIGKILL);
            (void)waitpid(p->pid, NULL, 0);
        }
        process_free(p);
    }
    while ((left = TAILQ_FIRST(&s->leftovers))) {
        TAILQ_REMOVE(&s->leftovers, left, link);
        free(left);
    }
    control_done(s);
    s->cgroup_fd = fd_close(s->cgroup_fd);
    s->ops_fd = fd_close(s->ops_fd);
    s->devpts_fd = fd_close(s->devpts_fd);
    poller_done(&s->poller);
}

void server_conn_lost(struct server *s, struct conn *c)
{
    if (s->active != c)
        return;
    s->active = NULL;
    s->control.channel = 0;
    process_detach_all(s);
}

static void server_hurry(struct server *s, uint64_t now)
{
    bool urgent = urgency_turn(&s->urgency, now);

    if (!s->is_init || urgent == s->urgent)
        return;
    urgency_apply(urgent);
    s->urgent = urgent;
}

uint64_t server_turn(struct server *s, struct conn *const *conns, unsigned n_conns)
{
    uint64_t now = clock_now_usec(), next;

    process_run_timers(s, now);
    control_run(s, now);
    for (unsigned i = 0; i < n_conns; i++)
        conn_turn(conns[i]);
    process_look_around(s);
    server_hurry(s, now);
    /* Only now: the requests of this turn have set deadlines too. */
    next = MIN(process_next_timer(s), s->control.deadline_usec);
    next = MIN(next, urgency_deadline(&s->urgency));
    for (unsigned i = 0; i < n_conns; i++)
        next = MIN(next, conn_deadline(conns[i]));
    return next;
}

void server_flush(struct server *s, struct conn *const *conns, unsigned n_conns)
{
    uint64_t until = clock_now_usec() + FLUSH_USEC;

    while (s->active && s->active->out.size > 0 && clock_now_usec() < until) {
        (void)server_turn(s, conns, n_conns);
        if (s->active && s->active->out.size > 0)
            (void)poller_run(&s->poller, until);
    }
}
