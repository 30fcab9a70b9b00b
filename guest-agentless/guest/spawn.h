#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/macros.h"
#include "guest/process.h"
#include "protocol/session.pb-c.h"

/*
 * Starting a process. The parent makes the pipes or the terminal and the cgroup and forks; the
 * child enters the root, becomes the user and executes, or runs an operation of ours. What stops it
 * goes through the error pipe as one spawn_failure; the pipe's plain end means that it runs.
 */
struct server;

#define SPAWN_ARGS_MAX 32768u /* entries of argv and of env, each */
#define SPAWN_ENV_ADDED 5u
#define SPAWN_RING_DEFAULT (1024u * 1024u)
#define SPAWN_RING_MAX (16u * 1024u * 1024u)

struct spawn_failure {
    uint32_t code; /* enum Code of session.proto */
    int32_t errnum;
    char message[400];
};

/* What the child needs; made by the parent before the fork. */
struct spawn {
    char **argv;      /* NULL: run `request` instead */
    char **env;       /* NULL-terminated, with SPAWN_ENV_ADDED free slots after the NULL */
    const char *cwd;  /* "": the user's home or "/" */
    const char *user; /* "": root */
    bool tty, no_new_privileges;
    const Hearth__V1__Confine *confine; /* weak; NULL: none */
    const Hearth__V1__Request *request; /* file or dial */
    int fds[PROCESS_STREAMS];           /* the child's ends by number; owned; -EBADF: none */
    int error_fd;                       /* owned: writing end */
    int cgroup_fd;    /* weak: to enter, when the kernel could not do it at fork */
    const char *root; /* NULL: stay */
    bool is_init;
};

/* Exec, FileOp or Dial on its channel: starts it or answers Error. */
void spawn_exec(struct server *s, uint32_t channel, const Hearth__V1__Exec *exec);
void spawn_op(struct server *s, uint32_t channel, const Hearth__V1__Request *request);

/* The child's side; never returns. */
_Noreturn void spawn_child(struct spawn *sp);
/* Tells the parent through the error pipe why it cannot start, and ends. */
_Noreturn void spawn_fail(int error_fd, int code, int errnum, const char *format, ...)
    _printf_(4, 5);
