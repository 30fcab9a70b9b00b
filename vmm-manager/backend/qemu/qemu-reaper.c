#include "backend/qemu/qemu-reaper.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/qemu/qemu-process.h"
#include "backend/qemu/qemu-root.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/strv.h"

#define TICKETS_MAX 64
#define LOOK_USEC (5 * USEC_PER_MSEC)
/* Between looks at all processes, each of which takes milliseconds: while probes are expected, and
 * while they are not, but may happen. */
#define PROBING_USEC (20 * USEC_PER_MSEC)
#define PROBES_USEC USEC_PER_SEC
#define ID_SIZE 64
#define DEAD_MAX 64

struct ticket {
    bool used;
    char id[ID_SIZE]; /* "" for none */
};

struct reaper {
    char *root; /* owned */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
    unsigned n_used;
    struct ticket tickets[TICKETS_MAX];
    /* the thread's own */
    uint64_t looked_usec; /* when all processes were looked at */
    pid_t dead[DEAD_MAX]; /* what was found then */
    size_t n_dead;
};

/*
 * libvirt asks a QEMU for its capabilities whenever the program or the host changed; such a QEMU
 * removes its own pid file as it ends. So all processes are looked at, seldom, and a dead QEMU that
 * was there the last time too is nobody else's: the loop reaps its own at once.
 */
static void reap_probes(struct reaper *r)
{
    _cleanup_close_ int fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    pid_t dead[DEAD_MAX];
    size_t n_dead = 0;
    _Alignas(struct dirent64) char data[4096];
    ssize_t n = 0;

    while (fd >= 0 && (n = getdents64(fd, data, sizeof(data))) > 0) {
        const struct dirent64 *e;

        for (ssize_t at = 0; at < n && n_dead < DEAD_MAX; at += e->d_reclen) {
            uint64_t pid;

            e = (const struct dirent64 *)(const void *)(data + at);
            if (parse_u64(e->d_name, 2, INT32_MAX, &pid) < 0 || !process_is_dead_qemu((pid_t)pid))
                continue;
            for (size_t i = 0; i < r->n_dead; i++)
                if (r->dead[i] == (pid_t)pid)
                    (void)waitpid((pid_t)pid, NULL, WNOHANG);
            dead[n_dead++] = (pid_t)pid;
        }
    }
    memcpy(r->dead, dead, n_dead * sizeof(*dead));
    r->n_dead = n_dead;
}

/*
 * One look, without the lock. No memory is allocated: libvirt forks all the time meanwhile, and the
 * address sanitizer's allocator does not survive that in the child.
 */
static void look(struct reaper *r, const struct ticket *tickets)
{
    uint64_t now = clock_now_usec();
    bool probing = false;

    for (size_t i = 0; i < TICKETS_MAX; i++) {
        if (!tickets[i].used)
            continue;
        if (*tickets[i].id) {
            pid_t pid = root_read_pid(r->root, tickets[i].id);

            /* The pid file may be of a process of long ago. */
            if (pid > 1 && process_is_dead_qemu(pid))
                (void)waitpid(pid, NULL, WNOHANG);
        } else {
            probing = true;
        }
    }
    if (now - r->looked_usec >= (probing ? PROBING_USEC : PROBES_USEC)) {
        r->looked_usec = now;
        reap_probes(r);
    }
}

static void *reaper_main(void *userdata)
{
    struct reaper *r = userdata;

    (void)pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        struct ticket tickets[TICKETS_MAX];
        struct timespec at;
        uint64_t until;

        if (r->n_used == 0) {
            (void)pthread_cond_wait(&r->wake, &r->lock);
            r->looked_usec = clock_now_usec(); /* nothing to find yet */
            continue;
        }
        memcpy(tickets, r->tickets, sizeof(tickets));
        (void)pthread_mutex_unlock(&r->lock);
        look(r, tickets);
        (void)pthread_mutex_lock(&r->lock);
        until = clock_now_usec() + LOOK_USEC;
        at.tv_sec = (time_t)(until / USEC_PER_SEC);
        at.tv_nsec = (long)(until % USEC_PER_SEC * 1000);
        if (!r->stop)
            (void)pthread_cond_timedwait(&r->wake, &r->lock, &at);
    }
    (void)pthread_mutex_unlock(&r->lock);
    return NULL;
}

int reaper_new(const char *root, struct reaper **ret, struct error *err)
{
    struct reaper *r = calloc(1, sizeof(*r));
    pthread_condattr_t attr;
    sigset_t all, old;
    int k;

    if (!r || string_set(&r->root, root) < 0) {
        free(r);
        return error_set(err, ENOMEM, "out of memory");
    }
    (void)pthread_mutex_init(&r->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&r->wake, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old); /* signals belong to the loop's thread */
    k = pthread_create(&r->thread, NULL, reaper_main, r);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (k != 0) {
        free(r->root);
        free(r);
        return error_set(err, k, "start the reaper thread: %s", errno_text(k));
    }
    *ret = r;
    return 0;
}

struct reaper *reaper_free(struct reaper *r)
{
    if (!r)
        return NULL;
    (void)pthread_mutex_lock(&r->lock);
    r->stop = true;
    (void)pthread_cond_signal(&r->wake);
    (void)pthread_mutex_unlock(&r->lock);
    (void)pthread_join(r->thread, NULL);
    (void)pthread_cond_destroy(&r->wake);
    (void)pthread_mutex_destroy(&r->lock);
    free(r->root);
    free(r);
    return NULL;
}

int reaper_begin(struct reaper *r, const char *id)
{
    int found = -ENOSPC;

    (void)pthread_mutex_lock(&r->lock);
    for (int i = 0; i < TICKETS_MAX && found < 0; i++) {
        if (r->tickets[i].used)
            continue;
        r->tickets[i].used = true;
        (void)snprintf(r->tickets[i].id, sizeof(r->tickets[i].id), "%s", id ? id : "");
        if (r->n_used++ == 0)
            (void)pthread_cond_signal(&r->wake);
        found = i;
    }
    (void)pthread_mutex_unlock(&r->lock);
    return found;
}

void reaper_end(struct reaper *r, int ticket)
{
    if (ticket < 0)
        return;
    (void)pthread_mutex_lock(&r->lock);
    r->tickets[ticket].used = false;
    r->n_used--;
    (void)pthread_mutex_unlock(&r->lock);
}
