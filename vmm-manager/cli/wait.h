#pragma once

#include <stdint.h>

struct progress;

/*
 * How the command line waits: on one descriptor, with a deadline, drawing a progress line
 * meanwhile, and broken off by a signal when the verb has asked for signals.
 */
struct wait {
    int signal_fd;             /* weak; -EBADF: signals have their default effect */
    int signal;                /* the one that broke a wait off; 0: none */
    struct progress *progress; /* weak; NULL: nothing is drawn */
};

/*
 * Waits until `fd` has one of `events` (POLLIN, POLLOUT) and returns what it has, as poll does.
 * -ETIMEDOUT at the deadline (USEC_INFINITY: none), -EINTR when a signal that
 * asks us to end came: w->signal is its number. A negative `fd` waits for the deadline or a signal
 * only.
 */
int wait_fd(struct wait *w, int fd, short events, uint64_t deadline_usec);

/* Deadline in `usec` from now; USEC_INFINITY stays. */
uint64_t wait_deadline(uint64_t usec);
