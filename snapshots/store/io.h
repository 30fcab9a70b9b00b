#pragma once

#include <stddef.h>
#include <stdint.h>

/*
 * File I/O for threads that may block, several requests in flight: io_uring, or plain calls where
 * it is not to be had. Used by one thread. Requests complete in any order.
 */
struct io;

#define IO_DEPTH_MAX 64u

int io_new(unsigned depth, struct io **ret);
/* Waits until the kernel has let go of every buffer. Always NULL. */
struct io *io_free(struct io *io);
static inline void io_cleanup(struct io **io)
{
    *io = io_free(*io);
}

/* The buffer stays the caller's until its tag comes back. -EAGAIN: `depth` are in flight. */
int io_read(struct io *io, int fd, void *data, uint32_t size, uint64_t offset, uint64_t tag);
int io_write(struct io *io, int fd, const void *data, uint32_t size, uint64_t offset, uint64_t tag);
/*
 * The next that is done: *ret_tag, *ret_result the bytes moved (a read is short only at the end of
 * the file, a write never) or a negative errno. -ENOENT when nothing is in flight.
 */
int io_wait(struct io *io, uint64_t *ret_tag, int *ret_result);
unsigned io_in_flight(const struct io *io);
