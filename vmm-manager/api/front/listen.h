#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

/* Listening sockets, non-blocking. */

struct unix_listener {
    int fd; /* owned; -EBADF: none */
    dev_t dev;
    ino_t ino; /* of the socket file, to know it again */
};

/*
 * Mode 0600. Replaces the socket of a daemon that is gone without a moment in which the path is
 * missing.
 */
int unix_listen(const char *path, struct unix_listener *ret, struct error *err);
/* Removes the file if it is still this one. */
void unix_listener_close(struct unix_listener *listener, const char *path);

#define TCP_ADDRESS_SIZE 80u
/*
 * `where` is HOST:PORT ("127.0.0.1:7070", "[::1]:0"), port 0: any that is free. On success
 * `address` is the same with the true port. -EADDRINUSE when it is taken.
 */
int tcp_listen(const char *where, int *ret_fd, char address[static TCP_ADDRESS_SIZE],
               struct error *err);
/* Only processes of this host can reach it. */
bool tcp_address_is_local(const char *address);
