#pragma once

#include <stddef.h>

#include "base/loop.h"

/*
 * A few threads for calls that block (libvirt, mkfs, big files). A job is a copy of all it needs:
 * `run` sees only the job, on a worker thread; `done` gets it back on the loop's thread.
 */
struct workers;

int workers_new(struct loop *loop, const char *name, unsigned threads, size_t max_queued,
                struct workers **ret);
/* Waits for running jobs; queued ones are not run, but their `done` is called with cancelled=1. */
struct workers *workers_free(struct workers *w);

typedef void (*worker_run_fn)(void *job);
typedef void (*worker_done_fn)(void *job, int cancelled);

/* -EAGAIN when the queue is full. */
int workers_submit(struct workers *w, worker_run_fn run, worker_done_fn done, void *job);
