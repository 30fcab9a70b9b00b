#include "oci/unpackers.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "erofs/store.h"

#define THREADS_MAX 4u

struct claim {
    char diff_id[DIGEST_SIZE];
    int lock_fd; /* owned: nobody else brings this layer */
    char *path;  /* owned, when added */
    int fd;      /* owned, that path names; -EBADF: path is removed */
    bool added;
};

struct unpackers {
    struct store_work work;
    struct layer_budget budget;
    _Atomic bool stop;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t threads[THREADS_MAX]; /* the first n_threads */
    size_t n_threads, threads_max;
    struct claim *claims; /* owned */
    size_t n_claims, claims_max;
    size_t next;      /* the first that is added and not begun, or later */
    size_t n_pending; /* added, not finished */
    struct error err; /* of the first failure */
};

/* ---- one layer ---- */

static int unpack_claim(struct unpackers *u, const struct claim *c, size_t number,
                        struct error *err)
{
    char pack[288], index[288], name[64];
    struct layer_unpack job = {.blob = c->path,
                               .name = name,
                               .diff_id = c->diff_id,
                               .pack = pack,
                               .index = index,
                               .budget = &u->budget,
                               .cancel = &u->stop};
    int r;

    (void)snprintf(name, sizeof(name), "layer %.19s…", c->diff_id);
    (void)snprintf(pack, sizeof(pack), "%s/%zu.pack", u->work.dir, number);
    (void)snprintf(index, sizeof(index), "%s/%zu.index", u->work.dir, number);
    r = layer_unpack(&job, err);
    if (r == 0)
        r = store_add_layer(pack, index, c->diff_id, err);
    return r;
}

static struct claim *take_next(struct unpackers *u)
{
    for (size_t i = u->next; i < u->n_claims; i++)
        if (u->claims[i].added && u->claims[i].path) {
            if (i == u->next)
                u->next++;
            return &u->claims[i];
        }
    return NULL;
}

static void *run(void *userdata)
{
    struct unpackers *u = userdata;

    (void)pthread_mutex_lock(&u->lock);
    while (!atomic_load(&u->stop)) {
        struct claim *c = take_next(u);
        struct error err = {0};
        struct claim job;
        size_t number;

        if (!c) {
            (void)pthread_cond_wait(&u->changed, &u->lock);
            continue;
        }
        number = (size_t)(c - u->claims);
        job = *c;
        c->path = NULL;
        c->fd = -EBADF;
        (void)pthread_mutex_unlock(&u->lock);
        (void)unpack_claim(u, &job, number, &err);
        if (job.fd >= 0)
            (void)fd_close(job.fd);
        else
            (void)unlink(job.path);
        free(job.path);
        (void)pthread_mutex_lock(&u->lock);
        u->claims[number].lock_fd = fd_close(u->claims[number].lock_fd);
        u->n_pending--;
        if (err.errnum && !u->err.errnum) {
            u->err = err;
            atomic_store(&u->stop, true);
        }
        (void)pthread_cond_broadcast(&u->changed);
    }
    (void)pthread_mutex_unlock(&u->lock);
    return NULL;
}

/* ---- all of them ---- */

int unpackers_new(size_t n_layers, uint64_t packed_bytes, struct unpackers **ret, struct error *err)
{
    struct unpackers *u = calloc(1, sizeof(*u));
    pthread_condattr_t attr;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    char dir[256];
    int r;

    if (!u)
        return error_set(err, ENOMEM, "out of memory");
    u->work.lock_fd = -EBADF;
    u->claims = calloc(n_layers + 1, sizeof(u->claims[0]));
    u->claims_max = n_layers;
    u->threads_max = MIN(MIN((size_t)MAX(cpus, 1), n_layers), THREADS_MAX);
    atomic_store(&u->budget.packed, packed_bytes);
    (void)pthread_mutex_init(&u->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&u->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    r = u->claims ? store_work_init(&u->work, err) : error_set(err, ENOMEM, "out of memory");
    if (r == 0)
        r = store_path(dir, "layers", err);
    if (r == 0)
        r = dir_create(dir, 0755, err);
    if (r < 0) {
        (void)unpackers_free(u);
        return r;
    }
    *ret = u;
    return 0;
}

struct unpackers *unpackers_free(struct unpackers *u)
{
    if (!u)
        return NULL;
    (void)pthread_mutex_lock(&u->lock);
    atomic_store(&u->stop, true);
    (void)pthread_cond_broadcast(&u->changed);
    (void)pthread_mutex_unlock(&u->lock);
    for (size_t i = 0; i < u->n_threads; i++)
        (void)pthread_join(u->threads[i], NULL);
    for (size_t i = 0; i < u->n_claims; i++) {
        (void)fd_close(u->claims[i].lock_fd);
        (void)fd_close(u->claims[i].fd);
        free(u->claims[i].path);
    }
    free(u->claims);
    store_work_done(&u->work);
    (void)pthread_cond_destroy(&u->changed);
    (void)pthread_mutex_destroy(&u->lock);
    free(u);
    return NULL;
}

int unpackers_claim(struct unpackers *u, const char *diff_id, size_t *ret_claim, struct error *err)
{
    _cleanup_close_ int fd = -EBADF;
    char path[256];
    int r;

    if (store_has_layer(diff_id))
        return 1;
    r = store_hash_path(path, "layers", diff_id + 7, ".lock", err);
    if (r < 0)
        return r;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(err, errno, "open '%s': %s", path, errno_text(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return -EAGAIN;
    if (store_has_layer(diff_id))
        return 1;
    (void)pthread_mutex_lock(&u->lock);
    if (u->n_claims >= u->claims_max) {
        r = error_set(err, E2BIG, "more layers than there are");
    } else {
        struct claim *c = &u->claims[u->n_claims];

        (void)snprintf(c->diff_id, sizeof(c->diff_id), "%s", diff_id);
        c->lock_fd = TAKE_FD(fd);
        c->fd = -EBADF;
        *ret_claim = u->n_claims++;
    }
    (void)pthread_mutex_unlock(&u->lock);
    return r;
}

int unpackers_add(struct unpackers *u, size_t claim, const char *path, int fd_consume,
                  struct error *err)
{
    char *copy = strdup(path);
    int r = 0;

    if (!copy) {
        (void)fd_close(fd_consume);
        return error_set(err, ENOMEM, "out of memory");
    }
    (void)pthread_mutex_lock(&u->lock);
    u->claims[claim].path = copy;
    u->claims[claim].fd = fd_consume;
    u->claims[claim].added = true;
    u->next = MIN(u->next, claim);
    u->n_pending++;
    if (u->n_threads < u->threads_max) {
        r = pthread_create(&u->threads[u->n_threads], NULL, run, u);
        u->n_threads += r == 0;
        r = r != 0 && u->n_threads == 0 ? error_set(err, r, "start a thread: %s", errno_text(r))
                                        : 0;
    }
    (void)pthread_cond_broadcast(&u->changed);
    (void)pthread_mutex_unlock(&u->lock);
    return r;
}

void unpackers_packed(struct unpackers *u, uint64_t bytes)
{
    atomic_fetch_add(&u->budget.packed, bytes);
}

bool unpackers_failed(struct unpackers *u)
{
    return atomic_load(&u->stop);
}

int unpackers_wait(struct unpackers *u, const _Atomic bool *cancel, struct error *err)
{
    int r = 0;

    (void)pthread_mutex_lock(&u->lock);
    while (u->n_pending > 0 && !u->err.errnum && r == 0) {
        struct timespec until;

        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec++;
        (void)pthread_cond_timedwait(&u->changed, &u->lock, &until);
        if (cancel && atomic_load(cancel))
            r = error_set(err, ECANCELED, "cancelled");
    }
    if (u->err.errnum) {
        error_copy(err, &u->err);
        r = -u->err.errnum;
    }
    (void)pthread_mutex_unlock(&u->lock);
    return r;
}
