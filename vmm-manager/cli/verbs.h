#pragma once

#include <jansson.h>
#include <stdint.h>

#include "cli/cli.h"
#include "cli/text.h"

/* The verbs, one file each; see struct command. */
int verb_run(struct cli *cli, char **args, uint32_t count);
int verb_create(struct cli *cli, char **args, uint32_t count);
int verb_ls(struct cli *cli, char **args, uint32_t count);
int verb_inspect(struct cli *cli, char **args, uint32_t count);
int verb_exec(struct cli *cli, char **args, uint32_t count);
int verb_shell(struct cli *cli, char **args, uint32_t count);
int verb_session_run(struct cli *cli, char **args, uint32_t count);
int verb_session_ls(struct cli *cli, char **args, uint32_t count);
int verb_session_new(struct cli *cli, char **args, uint32_t count);
int verb_session_attach(struct cli *cli, char **args, uint32_t count);
int verb_session_close(struct cli *cli, char **args, uint32_t count);
int verb_cp(struct cli *cli, char **args, uint32_t count);
int verb_logs(struct cli *cli, char **args, uint32_t count);
int verb_rm(struct cli *cli, char **args, uint32_t count);
int verb_hibernate(struct cli *cli, char **args, uint32_t count);
int verb_resume(struct cli *cli, char **args, uint32_t count);
int verb_fork(struct cli *cli, char **args, uint32_t count);
int verb_checkpoint(struct cli *cli, char **args, uint32_t count);
int verb_checkpoint_ls(struct cli *cli, char **args, uint32_t count);
int verb_rollback(struct cli *cli, char **args, uint32_t count);
int verb_snapshot_ls(struct cli *cli, char **args, uint32_t count);
int verb_snapshot_repair(struct cli *cli, char **args, uint32_t count);
int verb_snapshot_verify(struct cli *cli, char **args, uint32_t count);
int verb_snapshot_rm(struct cli *cli, char **args, uint32_t count);
int verb_image_build(struct cli *cli, char **args, uint32_t count);
int verb_image_ls(struct cli *cli, char **args, uint32_t count);
int verb_image_inspect(struct cli *cli, char **args, uint32_t count);
int verb_image_import(struct cli *cli, char **args, uint32_t count);
int verb_image_pull(struct cli *cli, char **args, uint32_t count);
int verb_image_export(struct cli *cli, char **args, uint32_t count);
int verb_image_prune(struct cli *cli, char **args, uint32_t count);
int verb_login(struct cli *cli, char **args, uint32_t count);
int verb_logout(struct cli *cli, char **args, uint32_t count);
int verb_image_rm(struct cli *cli, char **args, uint32_t count);
int verb_image_base(struct cli *cli, char **args, uint32_t count);
int verb_image_code(struct cli *cli, char **args, uint32_t count);
int verb_code_run(struct cli *cli, char **args, uint32_t count);
int verb_rex(struct cli *cli, char **args, uint32_t count);
int verb_kernel_ls(struct cli *cli, char **args, uint32_t count);
int verb_kernel_fetch(struct cli *cli, char **args, uint32_t count);
int verb_firecracker_install(struct cli *cli, char **args, uint32_t count);
int verb_kernel_build(struct cli *cli, char **args, uint32_t count);
int verb_template_build(struct cli *cli, char **args, uint32_t count);
int verb_template_inspect(struct cli *cli, char **args, uint32_t count);
int verb_template_ls(struct cli *cli, char **args, uint32_t count);
int verb_template_rm(struct cli *cli, char **args, uint32_t count);
int verb_pool_ls(struct cli *cli, char **args, uint32_t count);
int verb_pool_set(struct cli *cli, char **args, uint32_t count);
int verb_key_create(struct cli *cli, char **args, uint32_t count);
int verb_key_ls(struct cli *cli, char **args, uint32_t count);
int verb_key_revoke(struct cli *cli, char **args, uint32_t count);
int verb_bench(struct cli *cli, char **args, uint32_t count);
int verb_doctor(struct cli *cli, char **args, uint32_t count);
int verb_version(struct cli *cli, char **args, uint32_t count);
int verb_daemon_status(struct cli *cli, char **args, uint32_t count);
int verb_daemon_start(struct cli *cli, char **args, uint32_t count);
int verb_daemon_stop(struct cli *cli, char **args, uint32_t count);
int verb_help(struct cli *cli, char **args, uint32_t count);
int verb_completion(struct cli *cli, char **args, uint32_t count);

/* ---- what several of them share ---- */

/* Body of a create request from the options; a new reference, or NULL and err. */
json_t *verb_spec(const struct cli *cli, const char *name, struct error *err);

/*
 * Makes a sandbox, drawing progress; its description goes to *ret. Broken off in the middle
 * (signal, daemon gone), it sees to it that none is left.
 */
int verb_make_sandbox(struct cli *cli, const char *name, json_t **ret, struct error *err);

/* Whether a command is given our stdin, and a terminal, as the options and our streams say. */
bool verb_wants_stdin(const struct cli *cli, bool tty);
bool verb_is_terminal(void);

/* Runs argv, or with NULL the shell of the image, in a sandbox. As remote_run(). */
int verb_run_in(struct cli *cli, const char *sandbox, char *const *argv, bool tty,
                struct error *err);

/* GETs `path`, or DELETEs it, and fails or prints it as JSON. Returns the exit status. */
int verb_show(struct cli *cli, const char *path);
int verb_delete(struct cli *cli, const char *path, const char *name);
/* DELETEs each of `args`, which stands for the {} of `pattern`. Returns the last failure's status.
 */
int verb_delete_each(struct cli *cli, const char *pattern, char **args, uint32_t count);

/* A list: what the daemon has under `key`, as a table, or with --quiet only the `id` of each. */
struct list_verb {
    const char *key, *id;
    const char *const *heads;
    unsigned n_heads;
    int (*add)(struct table *t, const json_t *row);
};
/* GETs `path` (NULL: out of memory) and prints the list, or with --json the answer as it is. */
int verb_list(struct cli *cli, const char *path, const struct list_verb *what);
/*
 * POSTs `body` (NULL: none) to `path`, drawing progress with `what`; *ret is what stands under
 * `key`. Returns the exit status; not EXIT_DONE: the error was told.
 */
int verb_work(struct cli *cli, const char *path, json_t *body, const char *what, const char *key,
              json_t **ret);
/* Runs a script of libexec/hearth, with the options that it takes, in place of this program;
 * returns only on failure. */
int verb_script(struct cli *cli, const char *script);
