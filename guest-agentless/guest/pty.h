#pragma once

#include <stdint.h>

/*
 * Opens a terminal from the devpts directory (-EBADF: the system's /dev/ptmx) without trusting a
 * path: both ends come from one open and an ioctl. Owned by the caller.
 */
int pty_open(int devpts_fd, uint32_t rows, uint32_t cols, int *ret_master, int *ret_slave);
int pty_resize(int master_fd, uint32_t rows, uint32_t cols);
