#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/macros.h"

/*
 * The event loop: one thread, epoll. Sources are named, owned by whoever added them and
 * deregistered by source_free(). Freeing a source inside its own or another's callback is legal: no
 * further callback comes, the memory goes after the batch. A callback returns 0 or a negative
 * errno; a negative one is logged with the source's name and disables that source, never the loop.
 * No callback may block; one that runs over 10 ms is logged.
 */
struct loop;
struct source;

typedef int (*loop_io_fn)(struct source *s, int fd, uint32_t epoll_events, void *userdata);
typedef int (*loop_timer_fn)(struct source *s, uint64_t now_usec, void *userdata);
typedef int (*loop_signal_fn)(struct source *s, int signo, void *userdata);
typedef int (*loop_child_fn)(struct source *s, const siginfo_t *info, void *userdata);
typedef int (*loop_defer_fn)(struct source *s, void *userdata);
typedef void (*loop_post_fn)(void *userdata);

int loop_new(struct loop **ret);
struct loop *loop_free(struct loop *loop);

/* Runs until loop_quit(); returns the code given there or a negative errno. */
int loop_run(struct loop *loop);
void loop_quit(struct loop *loop, int code);
/* One iteration, waiting at most timeout_usec (USEC_INFINITY: for ever). For tests and tools. */
int loop_run_once(struct loop *loop, uint64_t timeout_usec);

/* Callbacks that ran over 10 ms so far. */
uint64_t loop_slow_callbacks(const struct loop *loop);

/* The descriptor stays the caller's: free the source before closing it. */
int loop_add_io(struct loop *loop, const char *name, int fd, uint32_t epoll_events, loop_io_fn fn,
                void *userdata, struct source **ret);
int source_set_io_events(struct source *s, uint32_t epoll_events);

/* One shot at a monotonic time; USEC_INFINITY leaves it unarmed. Re-arm with source_set_time(). */
int loop_add_timer(struct loop *loop, const char *name, uint64_t at_usec, loop_timer_fn fn,
                   void *userdata, struct source **ret);
int source_set_time(struct source *s, uint64_t at_usec);

/* Blocks the signal in this thread and delivers it here. Call before any thread is made. */
int loop_add_signal(struct loop *loop, const char *name, int signo, loop_signal_fn fn,
                    void *userdata, struct source **ret);

/*
 * Calls back once when the process behind pidfd ends. The pidfd stays the caller's. If the process
 * is our child it is reaped and `info` holds its status; otherwise info->si_pid is 0.
 */
int loop_add_child(struct loop *loop, const char *name, int pidfd, loop_child_fn fn, void *userdata,
                   struct source **ret);

/* Once, in the next iteration, before waiting for anything. */
int loop_add_defer(struct loop *loop, const char *name, loop_defer_fn fn, void *userdata,
                   struct source **ret);

/* From any thread: runs fn on the loop's thread, in order of posting. -ENOMEM is the only error. */
int loop_post(struct loop *loop, loop_post_fn fn, void *userdata);

/* Always returns NULL, to assign back. */
struct source *source_free(struct source *s);
static inline void source_cleanup(struct source **s)
{
    *s = source_free(*s);
}
