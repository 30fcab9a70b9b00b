#include "base/worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#define WORKERS_MAX 32

struct job {
    worker_run_fn run;
    worker_done_fn done;
    void *data; /* the submitter's */
    struct job *next;
};

struct workers {
    struct loop *loop; /* ref */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct job *first, **last; /* queued */
    size_t n_queued, max_queued;
    bool stop;
    unsigned n_threads;
    pthread_t threads[WORKERS_MAX];
};

static void finish(void *userdata)
{
    struct job *job = userdata;

    job->done(job->data, /* cancelled= */ 0);
    free(job);
}

static void *work(void *userdata)
{
    struct workers *w = userdata;

    for (;;) {
        struct job *job;

        pthread_mutex_lock(&w->lock);
        while (!w->first && !w->stop)
            pthread_cond_wait(&w->wake, &w->lock);
        if (w->stop) {
            pthread_mutex_unlock(&w->lock);
            return NULL;
        }
        job = w->first;
        w->first = job->next;
        if (!w->first)
            w->last = &w->first;
        w->n_queued--;
        pthread_mutex_unlock(&w->lock);

        job->run(job->data);
        /* Posting fails only for want of memory; the result must not be lost, so try until it goes.
         */
        while (loop_post(w->loop, finish, job) < 0)
            (void)sched_yield();
    }
}

int workers_new(struct loop *loop, const char *name, unsigned threads, size_t max_queued,
                struct workers **ret)
{
    struct workers *w;
    sigset_t all, old;

    if (threads == 0 || threads > WORKERS_MAX)
        return -EINVAL;
    w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->loop = loop;
    w->last = &w->first;
    w->max_queued = max_queued;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);

    /* Signals belong to the loop's thread. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (; w->n_threads < threads; w->n_threads++) {
        if (pthread_create(&w->threads[w->n_threads], NULL, work, w) != 0)
            break;
        (void)pthread_setname_np(w->threads[w->n_threads], name);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (w->n_threads == 0) {
        workers_free(w);
        return -EAGAIN;
    }
    *ret = w;
    return 0;
}

struct workers *workers_free(struct workers *w)
{
    if (!w)
        return NULL;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    while (w->first) {
        struct job *job = w->first;

        w->first = job->next;
        job->done(job->data, /* cancelled= */ 1);
        free(job);
    }
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
    return NULL;
}

int workers_submit(struct workers *w, worker_run_fn run, worker_done_fn done, void *data)
{
    struct job *job = calloc(1, sizeof(*job));
    int r = 0;

    if (!job)
        return -ENOMEM;
    job->run = run;
    job->done = done;
    job->data = data;
    pthread_mutex_lock(&w->lock);
    if (w->n_queued >= w->max_queued) {
        r = -EAGAIN;
    } else {
        *w->last = job;
        w->last = &job->next;
        w->n_queued++;
        pthread_cond_signal(&w->wake);
    }
    pthread_mutex_unlock(&w->lock);
    if (r < 0)
        free(job);
    return r;
}
