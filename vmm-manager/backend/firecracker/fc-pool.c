#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/firecracker/fc-private.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"

#define SPAWN_USEC (60 * USEC_PER_SEC)
#define KILL_USEC (1 * USEC_PER_SEC)
#define PAUSE_USEC (5 * USEC_PER_SEC)
/* The VM that took a process has the host for itself so long, while there is another process. */
#define QUIET_USEC (1 * USEC_PER_SEC)

/*
 * One process that waits for a VM. It is not watched: whoever takes it looks whether it runs, and
 * so does the housework, now and then.
 */
struct fc_idle {
    struct fc_vmm vmm;
    struct fc_idle *next;
};

struct spawn_job {
    struct fc *b; /* weak; the worker only asks it for the programs */
    struct fc_launch launch;
    struct fc_vmm vmm;
    struct error err;
};

static void drop(struct fc *b, struct fc_vmm *vmm)
{
    struct error err = {0};

    if (fc_vmm_kill(vmm, clock_now_usec() + KILL_USEC, &err) < 0 ||
        fc_jail_remove(&vmm->jail, &err) < 0)
        log_warning("Failed to end an idle Firecracker: %s, ignoring", err.text);
    if (vmm->jail.jailed)
        fc_uid_release(b, vmm->jail.uid);
}

static void spawn_run_job(void *userdata)
{
    struct spawn_job *job = userdata;

    if (fc_programs_get(job->b, &job->launch.programs, &job->err) >= 0)
        (void)fc_vmm_launch(&job->launch, &job->vmm, &job->err);
}

static void spawn_done(void *userdata, int cancelled)
{
    struct spawn_job *job = userdata;
    struct fc *b = job->b;

    b->n_spawning--;
    if (cancelled || job->err.errnum || !job->vmm.jail.jailed)
        fc_uid_release(b, job->launch.uid);
    if (job->err.errnum) {
        b->pool_not_before_usec = clock_now_usec() + PAUSE_USEC;
        log_warning("Failed to start an idle Firecracker: %s, trying again later", job->err.text);
    } else if (!cancelled) {
        fc_pool_put(b, &job->vmm);
    }
    free(job);
}

static int spawn_one(struct fc *b)
{
    struct spawn_job *job = calloc(1, sizeof(*job));
    int r;

    if (!job)
        return -ENOMEM;
    job->b = b;
    job->vmm.pidfd = -EBADF;
    job->launch.deadline_usec = clock_now_usec() + SPAWN_USEC;
    job->launch.cancel_fd = -EBADF;
    (void)snprintf(job->launch.base, sizeof(job->launch.base), "%s", b->dir);
    r = fc_uid_take(b, &job->launch.uid);
    if (r >= 0) {
        r = workers_submit(b->workers, spawn_run_job, spawn_done, job);
        if (r < 0)
            fc_uid_release(b, job->launch.uid);
    }
    if (r < 0)
        free(job);
    else
        b->n_spawning++;
    return r;
}

void fc_pool_fill(struct fc *b)
{
    uint64_t now = clock_now_usec();

    if (b->closing || now < b->pool_not_before_usec)
        return;
    if (b->n_idle > 0 && now < b->pool_taken_usec + QUIET_USEC)
        return;
    while (b->n_idle + b->n_spawning < b->options.pool_size)
        if (spawn_one(b) < 0)
            return;
}

void fc_pool_put(struct fc *b, const struct fc_vmm *vmm)
{
    struct fc_idle *idle = calloc(1, sizeof(*idle));
    struct fc_vmm copy = *vmm;

    if (!idle) {
        drop(b, &copy);
        return;
    }
    idle->vmm = copy;
    idle->next = b->idle;
    b->idle = idle;
    b->n_idle++;
    fc_want_housework(b);
}

static struct fc_idle *pop(struct fc *b)
{
    struct fc_idle *idle = b->idle;

    if (!idle)
        return NULL;
    b->idle = idle->next;
    b->n_idle--;
    return idle;
}

static bool runs(const struct fc_vmm *vmm)
{
    struct pollfd fd = {.fd = vmm->pidfd, .events = POLLIN};

    return poll(&fd, 1, 0) == 0 && !fc_vmm_is_stopped(vmm->pid);
}

void fc_pool_check(struct fc *b)
{
    struct fc_idle **p = &b->idle;

    while (*p) {
        struct fc_idle *idle = *p;

        if (runs(&idle->vmm)) {
            p = &idle->next;
            continue;
        }
        *p = idle->next;
        b->n_idle--;
        drop(b, &idle->vmm);
        free(idle);
    }
}

int fc_pool_take(struct fc *b, struct fc_vmm *ret)
{
    struct fc_idle *idle;

    while ((idle = pop(b))) {
        struct fc_vmm vmm = idle->vmm;

        free(idle);
        if (runs(&vmm)) {
            b->pool_taken_usec = clock_now_usec();
            *ret = vmm;
            return 0;
        }
        drop(b, &vmm);
    }
    return -ENOENT;
}

void fc_pool_done(struct fc *b)
{
    struct fc_idle *idle;

    while ((idle = pop(b))) {
        drop(b, &idle->vmm);
        free(idle);
    }
}
