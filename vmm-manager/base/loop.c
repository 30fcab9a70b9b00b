#include "base/loop.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"

/*
 * Theory of operation. Every source is on the list `all`. Timers stand in a binary heap too,
 * deferred sources on a list of their own. One iteration: run deferred sources, wait for epoll
 * until the nearest timer, run what is ready, run posted functions, run due timers, free what died.
 * A source freed during the iteration is only marked dead, because the epoll batch or the heap walk
 * may still name it.
 */
#define SLOW_CALLBACK_USEC (10 * USEC_PER_MSEC)
#define BATCH_MAX 64
#define NOT_IN_HEAP SIZE_MAX

enum source_kind {
    SOURCE_IO,
    SOURCE_TIMER,
    SOURCE_SIGNAL,
    SOURCE_CHILD,
    SOURCE_DEFER,
    SOURCE_POST, /* the loop's own: wakes it for posted functions */
};

struct source {
    struct loop *loop; /* ref */
    enum source_kind kind;
    bool dead;
    bool in_epoll;
    char name[32];
    int fd; /* watched; owned for signals only */
    void *userdata;
    union {
        loop_io_fn io;
        loop_timer_fn timer;
        loop_signal_fn on_signal;
        loop_child_fn child;
        loop_defer_fn defer;
    } fn;
    uint64_t at_usec;  /* timer */
    size_t heap_index; /* timer, NOT_IN_HEAP when unarmed */
    struct source *next_dead;
    struct source *next_deferred;
};

struct post {
    loop_post_fn fn;
    void *userdata;
    struct post *next;
};

struct loop {
    int epoll_fd;
    bool quit;
    int code;
    struct source **heap; /* weak entries, nearest first */
    size_t n_heap, heap_capacity;
    struct source *dead;
    struct source *deferred;
    struct source *wake; /* owned */
    pthread_mutex_t post_lock;
    struct post *first_post, **last_post;
    uint64_t slow_callbacks; /* over SLOW_CALLBACK_USEC */
};

/* ---- timer heap ---- */

static void heap_put(struct loop *loop, size_t i, struct source *s)
{
    loop->heap[i] = s;
    s->heap_index = i;
}

static void heap_up(struct loop *loop, size_t i)
{
    struct source *s = loop->heap[i];

    while (i > 0 && loop->heap[(i - 1) / 2]->at_usec > s->at_usec) {
        heap_put(loop, i, loop->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    heap_put(loop, i, s);
}

static void heap_down(struct loop *loop, size_t i)
{
    struct source *s = loop->heap[i];

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= loop->n_heap)
            break;
        if (child + 1 < loop->n_heap && loop->heap[child + 1]->at_usec < loop->heap[child]->at_usec)
            child++;
        if (loop->heap[child]->at_usec >= s->at_usec)
            break;
        heap_put(loop, i, loop->heap[child]);
        i = child;
    }
    heap_put(loop, i, s);
}

static void heap_remove(struct source *s)
{
    struct loop *loop = s->loop;
    size_t i = s->heap_index;

    if (i == NOT_IN_HEAP)
        return;
    s->heap_index = NOT_IN_HEAP;
    loop->n_heap--;
    if (i == loop->n_heap)
        return;
    heap_put(loop, i, loop->heap[loop->n_heap]);
    heap_up(loop, i);
    heap_down(loop, loop->heap[i]->heap_index);
}

static int heap_insert(struct source *s)
{
    struct loop *loop = s->loop;

    if (loop->n_heap == loop->heap_capacity) {
        size_t capacity = loop->heap_capacity ? loop->heap_capacity * 2 : 64;
        struct source **grown = reallocarray(loop->heap, capacity, sizeof(*grown));

        if (!grown)
            return -ENOMEM;
        loop->heap = grown;
        loop->heap_capacity = capacity;
    }
    heap_put(loop, loop->n_heap++, s);
    heap_up(loop, s->heap_index);
    return 0;
}

/* ---- sources ---- */

static struct source *source_alloc(struct loop *loop, enum source_kind kind, const char *name,
                                   void *userdata)
{
    struct source *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->loop = loop;
    s->kind = kind;
    s->fd = -EBADF;
    s->userdata = userdata;
    s->heap_index = NOT_IN_HEAP;
    (void)snprintf(s->name, sizeof(s->name), "%s", name);
    return s;
}

static int source_watch(struct source *s, uint32_t epoll_events)
{
    struct epoll_event event = {.events = epoll_events, .data.ptr = s};

    if (epoll_ctl(s->loop->epoll_fd, EPOLL_CTL_ADD, s->fd, &event) < 0)
        return -errno;
    s->in_epoll = true;
    return 0;
}

static void source_disable(struct source *s)
{
    if (s->in_epoll)
        (void)epoll_ctl(s->loop->epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
    s->in_epoll = false;
    heap_remove(s);
    if (s->kind == SOURCE_DEFER) {
        for (struct source **p = &s->loop->deferred; *p; p = &(*p)->next_deferred) {
            if (*p == s) {
                *p = s->next_deferred;
                break;
            }
        }
    }
}

struct source *source_free(struct source *s)
{
    if (!s || s->dead)
        return NULL;
    source_disable(s);
    if (s->kind == SOURCE_SIGNAL || s->kind == SOURCE_POST)
        s->fd = fd_close(s->fd);
    s->dead = true;
    s->next_dead = s->loop->dead;
    s->loop->dead = s;
    return NULL;
}

static void free_dead(struct loop *loop)
{
    while (loop->dead) {
        struct source *s = loop->dead;

        loop->dead = s->next_dead;
        free(s);
    }
}

static int add_watched(struct loop *loop, struct source *s, uint32_t epoll_events,
                       struct source **ret)
{
    int r = source_watch(s, epoll_events);

    (void)loop;
    if (r < 0) {
        if (s->kind == SOURCE_SIGNAL || s->kind == SOURCE_POST)
            fd_close(s->fd);
        free(s);
        return r;
    }
    *ret = s;
    return 0;
}

int loop_add_io(struct loop *loop, const char *name, int fd, uint32_t epoll_events, loop_io_fn fn,
                void *userdata, struct source **ret)
{
    struct source *s = source_alloc(loop, SOURCE_IO, name, userdata);

    if (!s)
        return -ENOMEM;
    s->fd = fd;
    s->fn.io = fn;
    return add_watched(loop, s, epoll_events, ret);
}

int source_set_io_events(struct source *s, uint32_t epoll_events)
{
    struct epoll_event event = {.events = epoll_events, .data.ptr = s};

    if (s->dead || !s->in_epoll)
        return -ESTALE;
    return epoll_ctl(s->loop->epoll_fd, EPOLL_CTL_MOD, s->fd, &event) < 0 ? -errno : 0;
}

int loop_add_timer(struct loop *loop, const char *name, uint64_t at_usec, loop_timer_fn fn,
                   void *userdata, struct source **ret)
{
    struct source *s = source_alloc(loop, SOURCE_TIMER, name, userdata);
    int r;

    if (!s)
        return -ENOMEM;
    s->fn.timer = fn;
    r = source_set_time(s, at_usec);
    if (r < 0) {
        free(s);
        return r;
    }
    *ret = s;
    return 0;
}

int source_set_time(struct source *s, uint64_t at_usec)
{
    if (s->dead)
        return -ESTALE;
    heap_remove(s);
    s->at_usec = at_usec;
    return at_usec == USEC_INFINITY ? 0 : heap_insert(s);
}

int loop_add_signal(struct loop *loop, const char *name, int signo, loop_signal_fn fn,
                    void *userdata, struct source **ret)
{
    struct source *s = source_alloc(loop, SOURCE_SIGNAL, name, userdata);
    sigset_t set;

    if (!s)
        return -ENOMEM;
    s->fn.on_signal = fn;
    sigemptyset(&set);
    sigaddset(&set, signo);
    if (pthread_sigmask(SIG_BLOCK, &set, NULL) != 0 ||
        (s->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)) < 0) {
        free(s);
        return -errno;
    }
    return add_watched(loop, s, EPOLLIN, ret);
}

int loop_add_child(struct loop *loop, const char *name, int pidfd, loop_child_fn fn, void *userdata,
                   struct source **ret)
{
    struct source *s = source_alloc(loop, SOURCE_CHILD, name, userdata);

    if (!s)
        return -ENOMEM;
    s->fd = pidfd;
    s->fn.child = fn;
    return add_watched(loop, s, EPOLLIN, ret);
}

int loop_add_defer(struct loop *loop, const char *name, loop_defer_fn fn, void *userdata,
                   struct source **ret)
{
    struct source *s = source_alloc(loop, SOURCE_DEFER, name, userdata);
    struct source **p = &loop->deferred;

    if (!s)
        return -ENOMEM;
    s->fn.defer = fn;
    while (*p)
        p = &(*p)->next_deferred;
    *p = s;
    *ret = s;
    return 0;
}

/* ---- posting ---- */

int loop_post(struct loop *loop, loop_post_fn fn, void *userdata)
{
    struct post *post = calloc(1, sizeof(*post));
    uint64_t one = 1;

    if (!post)
        return -ENOMEM;
    post->fn = fn;
    post->userdata = userdata;
    pthread_mutex_lock(&loop->post_lock);
    *loop->last_post = post;
    loop->last_post = &post->next;
    pthread_mutex_unlock(&loop->post_lock);
    /* Can only fail when the counter is full, and then the loop is awake anyway. */
    (void)!write(loop->wake->fd, &one, sizeof(one));
    return 0;
}

static void run_posts(struct loop *loop)
{
    struct post *post;

    pthread_mutex_lock(&loop->post_lock);
    post = loop->first_post;
    loop->first_post = NULL;
    loop->last_post = &loop->first_post;
    pthread_mutex_unlock(&loop->post_lock);
    while (post) {
        struct post *next = post->next;

        post->fn(post->userdata);
        free(post);
        post = next;
    }
}

/* ---- the loop ---- */

static struct source *wake_new(struct loop *loop)
{
    struct source *s = source_alloc(loop, SOURCE_POST, "post", NULL);

    if (!s)
        return NULL;
    s->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->fd < 0 || source_watch(s, EPOLLIN) < 0) {
        fd_close(s->fd);
        free(s);
        return NULL;
    }
    return s;
}

uint64_t loop_slow_callbacks(const struct loop *loop)
{
    return loop->slow_callbacks;
}

int loop_new(struct loop **ret)
{
    struct loop *loop = calloc(1, sizeof(*loop));

    if (!loop)
        return -ENOMEM;
    pthread_mutex_init(&loop->post_lock, NULL);
    loop->last_post = &loop->first_post;
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd >= 0)
        loop->wake = wake_new(loop);
    if (!loop->wake) {
        int r = errno ? -errno : -ENOMEM;

        loop_free(loop);
        return r;
    }
    *ret = loop;
    return 0;
}

struct loop *loop_free(struct loop *loop)
{
    if (!loop)
        return NULL;
    run_posts(loop); /* results of workers are owned by their callbacks */
    loop->wake = source_free(loop->wake);
    free_dead(loop);
    free(loop->heap);
    fd_close(loop->epoll_fd);
    pthread_mutex_destroy(&loop->post_lock);
    free(loop);
    return NULL;
}

static int dispatch_signal(struct source *s)
{
    struct signalfd_siginfo info;

    if (read(s->fd, &info, sizeof(info)) != sizeof(info))
        return 0;
    return s->fn.on_signal(s, (int)info.ssi_signo, s->userdata);
}

static int dispatch_child(struct source *s)
{
    siginfo_t info = {0};

    /* Not our child (adopted): no status to be had. */
    if (waitid(P_PIDFD, (id_t)s->fd, &info, WEXITED | WNOHANG) < 0)
        info = (siginfo_t){0};
    source_disable(s);
    return s->fn.child(s, &info, s->userdata);
}

static void dispatch(struct source *s, uint32_t epoll_events, uint64_t now_usec)
{
    uint64_t started = clock_now_usec(), took;
    char name[sizeof(s->name)];
    int r = 0;

    memcpy(name, s->name, sizeof(name));
    switch (s->kind) {
    case SOURCE_IO:
        r = s->fn.io(s, s->fd, epoll_events, s->userdata);
        break;
    case SOURCE_TIMER:
        r = s->fn.timer(s, now_usec, s->userdata);
        break;
    case SOURCE_SIGNAL:
        r = dispatch_signal(s);
        break;
    case SOURCE_CHILD:
        r = dispatch_child(s);
        break;
    case SOURCE_DEFER:
        r = s->fn.defer(s, s->userdata);
        break;
    case SOURCE_POST: {
        uint64_t count;

        (void)!read(s->fd, &count, sizeof(count));
        run_posts(s->loop);
        break;
    }
    }
    /* The source may be dead by now, but its memory is still there. */
    took = clock_now_usec() - started;
    if (took > SLOW_CALLBACK_USEC) {
        s->loop->slow_callbacks++;
        log_debug("callback of '%s' took %u ms", name, (unsigned)(took / USEC_PER_MSEC));
    }
    if (r < 0) {
        log_error_errno(r, "event source '%s' failed, disabling it", name);
        if (!s->dead)
            source_disable(s);
    }
}

static void run_deferred(struct loop *loop)
{
    struct source *batch = loop->deferred;

    /* What they add runs in the next iteration; what they free leaves the rest of the batch alone.
     */
    size_t n = 0;

    for (struct source *s = batch; s; s = s->next_deferred)
        n++;
    while (n-- > 0 && loop->deferred) {
        struct source *s = loop->deferred;

        loop->deferred = s->next_deferred;
        s->next_deferred = NULL;
        dispatch(s, 0, 0);
    }
}

static void run_timers(struct loop *loop)
{
    uint64_t now = clock_now_usec();

    while (loop->n_heap > 0 && loop->heap[0]->at_usec <= now && !loop->quit) {
        struct source *s = loop->heap[0];

        heap_remove(s);
        dispatch(s, 0, now);
    }
}

/* Milliseconds for epoll_wait, rounded up so that a timer is due when it returns. */
static int wait_msec(const struct loop *loop, uint64_t timeout_usec)
{
    uint64_t usec = timeout_usec, now;

    if (loop->deferred)
        return 0;
    if (loop->n_heap > 0) {
        now = clock_now_usec();
        usec = MIN(usec, loop->heap[0]->at_usec > now ? loop->heap[0]->at_usec - now : 0);
    }
    if (usec == USEC_INFINITY)
        return -1;
    return (int)MIN((usec + 999) / 1000, (uint64_t)3600 * 1000);
}

int loop_run_once(struct loop *loop, uint64_t timeout_usec)
{
    struct epoll_event events[BATCH_MAX];
    int n;

    run_deferred(loop);
    free_dead(loop);
    n = epoll_wait(loop->epoll_fd, events, BATCH_MAX,
                   loop->quit ? 0 : wait_msec(loop, timeout_usec));
    if (n < 0 && errno != EINTR)
        return -errno;
    for (int i = 0; i < n; i++) {
        struct source *s = events[i].data.ptr;

        if (!s->dead && s->in_epoll)
            dispatch(s, events[i].events, 0);
    }
    run_timers(loop);
    free_dead(loop);
    return 0;
}

int loop_run(struct loop *loop)
{
    loop->quit = false;
    while (!loop->quit) {
        int r = loop_run_once(loop, USEC_INFINITY);

        if (r < 0)
            return r;
    }
    return loop->code;
}

void loop_quit(struct loop *loop, int code)
{
    loop->quit = true;
    loop->code = code;
}
