#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/loop.h"

/*
 * File I/O by io_uring on the loop: requests are handed to the kernel at once, completions arrive
 * through an eventfd that is a source of the loop. For files, not for sockets. A kernel or a policy
 * without io_uring makes uring_new() fail, and its user does the work on a worker instead.
 */
struct uring;

/* At most `entries` requests are in flight. -ENOSYS or -EPERM where io_uring is not to be had. */
int uring_new(struct loop *loop, unsigned entries, struct uring **ret);
/* Waits until the kernel has let go of every buffer; no callback comes. Always NULL. */
struct uring *uring_free(struct uring *u);

/* Bytes moved (may be fewer than asked for; 0 at the end of the file) or a negative errno. */
typedef void (*uring_done_fn)(int result, void *userdata);

/* The buffer stays the caller's and must live until `done`. -EAGAIN: too many are in flight. */
int uring_read(struct uring *u, int fd, void *data, uint32_t size, uint64_t offset,
               uring_done_fn done, void *userdata);
int uring_write(struct uring *u, int fd, const void *data, uint32_t size, uint64_t offset,
                uring_done_fn done, void *userdata);
