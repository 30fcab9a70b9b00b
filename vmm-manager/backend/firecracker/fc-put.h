#pragma once

#include <stdint.h>

#include "base/error.h"

/*
 * One PUT of Firecracker's API that has no answer but "done", for worker threads: blocks until the
 * deadline, or until `cancel_fd` (-EBADF: none) can be read: -ECANCELED. Errors as those of
 * fc_client_call().
 */
int fc_put(const char *socket_path, const char *path, const char *body, uint64_t deadline_usec,
           int cancel_fd, struct error *err);
