#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/macros.h"

/* Closes a descriptor if it is one; keeps errno. Returns -EBADF, to assign back. */
int fd_close(int fd);

static inline void fd_cleanup(int *fd)
{
    *fd = fd_close(*fd);
}
#define _cleanup_close_ _cleanup_(fd_cleanup)

int fd_set_nonblock(int fd, bool nonblock);
int fd_set_cloexec(int fd, bool cloexec);

/* Reads until `size` bytes or end of file; returns the count or a negative errno. Blocks. */
ssize_t fd_read_full(int fd, void *data, size_t size);
/* Writes all of it; 0 or a negative errno. Blocks. */
int fd_write_full(int fd, const void *data, size_t size);

/*
 * Opens a path that came from outside, never leaving the tree of dir_fd: no `..`, no absolute
 * symlink, no magic link gets out. Flags as for open(); O_CLOEXEC is added.
 */
int fd_open_beneath(int dir_fd, const char *path, int flags, mode_t mode);

/* Connects a stream socket to a Unix path (at most 107 bytes). Non-blocking descriptor. */
int fd_connect_unix(const char *path);
