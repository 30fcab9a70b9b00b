#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "cli/cli.h"

/*
 * Runs something in a sandbox, joined to our own streams, to its end. When the connection breaks in
 * the middle (the daemon was killed), it attaches again to the same process or command from the
 * offsets it has seen: the output comes out whole and once, and the exit status is the command's.
 */
struct remote {
    struct cli *cli;     /* weak; wait.signal_fd is set, see remote_signals() */
    const char *sandbox; /* weak */
    const char *session; /* weak; NULL: a process of its own */
    bool tty;
    bool with_stdin;
};

/* From here on signals are passed on instead of ending this program. */
int remote_signals(struct cli *cli, struct error *err);

/*
 * POSTs `body` to `path` with an upgrade and joins the stream. Returns the exit status to end with,
 * or a negative errno and err when nothing was run or its fate is unknown; -EINTR: a signal ended
 * the wait, cli->wait.signal.
 */
int remote_run(struct remote *remote, const char *path, json_t *body, struct error *err);

/* The same without streams: prints the result as JSON. */
int remote_run_json(struct cli *cli, const char *path, json_t *body, struct error *err);

/* Adds argv[], and env{} if there is any. -EINVAL and err when something is not UTF-8. */
int remote_add_argv(json_t *body, char *const *argv, struct error *err);
int remote_add_env(json_t *body, char *const *env, struct error *err);
int remote_add_string(json_t *body, const char *key, const char *value, struct error *err);
/* tty, stdin and the size of our terminal, as the options and our streams say. */
int remote_add_stdio(struct remote *remote, json_t *body);

/* Exit status for an error of this program's own run: quiet and 128 + signal after a signal. */
int remote_fail(struct cli *cli, int r, const struct error *err);
