#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/error.h"

struct spawn_options {
    const char *const *argv; /* NULL-terminated; argv[0] is looked up in PATH unless it has a '/' */
    const char *const *env;  /* NULL-terminated "K=V"; NULL: a minimal PATH, LANG=C.UTF-8 */
    const char *cwd;         /* NULL: stays */
    int stdin_fd;            /* negative: /dev/null */
    int stdout_fd;           /* negative: /dev/null */
    int stderr_fd;           /* negative: /dev/null */
    const int *keep_fds;     /* passed as 3, 4, …; everything else is closed */
    size_t n_keep_fds;
    bool new_session; /* setsid: not killed with our terminal */
};

/* fork + exec at once. A failed exec is reported here, not as a child that exits 127. */
int spawn(const struct spawn_options *options, pid_t *ret_pid, int *ret_pidfd, struct error *err);

/*
 * Runs a tool to its end and blocks: for worker threads and start-up only. Output of both streams
 * goes to `output` (may be NULL; the tail is kept when it is full). Over the deadline the tool is
 * killed. A non-zero exit is an error that names the tool, its status and its last line.
 */
int spawn_run(const struct spawn_options *options, uint64_t timeout_usec, struct buf *output,
              struct error *err);
