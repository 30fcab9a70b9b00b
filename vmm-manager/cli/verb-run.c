#include "cli/verbs.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/strv.h"
#include "cli/client.h"
#include "cli/remote.h"
#include "cli/run-guard.h"

#define REMOVE_SILENCE_USEC (60 * USEC_PER_SEC)

bool verb_is_terminal(void)
{
    return isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
}

bool verb_wants_stdin(const struct cli *cli, bool tty)
{
    const struct options *o = &cli->options;

    return !o->no_stdin && (o->interactive || tty || isatty(STDIN_FILENO) != 1);
}

/* What a program on a terminal needs to know about it. */
static int add_terminal_env(json_t *body, struct error *err)
{
    static const char *const names[] = {"TERM", "COLORTERM", "LANG"};
    _cleanup_strv_ char **env = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        const char *value = getenv(names[i]);
        _cleanup_free_ char *pair = value ? string_printf("%s=%s", names[i], value) : NULL;

        if (pair && strv_append(&env, pair) < 0)
            return error_set(err, ENOMEM, "out of memory");
    }
    return remote_add_env(body, env, err);
}

static json_t *exec_body(struct remote *m, char *const *argv, struct error *err)
{
    const struct options *o = &m->cli->options;
    json_auto_t *body = json_object();

    if (!body || remote_add_argv(body, argv, err) < 0 || remote_add_stdio(m, body) < 0)
        return NULL;
    if (m->tty && add_terminal_env(body, err) < 0)
        return NULL;
    if (remote_add_string(body, "user", o->user, err) < 0 ||
        remote_add_string(body, "cwd", o->workdir, err) < 0 ||
        remote_add_env(body, o->env, err) < 0)
        return NULL;
    if (o->timeout_usec > 0)
        (void)json_object_set_new(
            body, "timeout_ms",
            json_integer((json_int_t)MAX(o->timeout_usec / USEC_PER_MSEC, UINT64_C(1))));
    if (o->detach)
        (void)json_object_set_new(body, "detach", json_true());
    return json_incref(body);
}

static int run_argv(struct cli *cli, const char *sandbox, char *const *argv, bool tty,
                    struct error *err)
{
    struct remote m = {.cli = cli,
                       .sandbox = sandbox,
                       .tty = tty,
                       .with_stdin = !cli->options.json && !cli->options.detach &&
                                     verb_wants_stdin(cli, tty)};
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/exec", sandbox);
    json_auto_t *body = exec_body(&m, argv, err);
    json_auto_t *answer = NULL;
    int r;

    if (!body || !path)
        return error_fill(err, -ENOMEM, "out of memory");
    if (cli->options.detach) {
        r = client_call(cli, "POST", path, body, &answer, err);
        if (r < 0)
            return r;
        if (cli->options.json)
            return client_print_json(answer) < 0 ? EXIT_FAILED : EXIT_DONE;
        (void)printf("%" JSON_INTEGER_FORMAT "\n",
                     json_integer_value(json_object_get(answer, "process_id")));
        return EXIT_DONE;
    }
    if (cli->options.json)
        return remote_run_json(cli, path, body, err);
    return remote_run(&m, path, body, err);
}

int verb_run_in(struct cli *cli, const char *sandbox, char *const *argv, bool tty,
                struct error *err)
{
    static char bash[] = "bash", sh[] = "sh";
    char *const shells[][2] = {{bash, NULL}, {sh, NULL}};
    int r = 0;

    if (argv)
        return run_argv(cli, sandbox, argv, tty, err);
    for (size_t i = 0; i < ARRAY_SIZE(shells); i++) {
        error_clear(err);
        r = run_argv(cli, sandbox, shells[i], tty, err);
        if (r >= 0 || err->code != ERR_COMMAND_NOT_FOUND)
            return r;
    }
    return error_set_code(err, ERR_NO_SHELL, "the image has no shell: neither bash nor sh");
}

/* At the end of everything, in every case. A further signal means that the user has had enough. */
static void remove_sandbox(struct cli *cli, const char *id)
{
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}", id);
    struct error err = {0};
    int r;

    if (!path)
        return;
    for (unsigned i = 0; i < 2; i++) {
        error_clear(&err);
        r = client_call_long(cli, "DELETE", path, NULL, REMOVE_SILENCE_USEC, NULL, &err);
        if (r >= 0 || err.code == ERR_SANDBOX_NOT_FOUND || err.code == ERR_NOT_FOUND)
            return;
        if (r != -ECONNRESET)
            break; /* else the daemon was killed under us: the next one finishes it */
    }
    cli_note(cli, "sandbox '%s' was not removed: %s", id, err.text);
}

int verb_run(struct cli *cli, char **args, uint32_t count)
{
    bool tty = !cli->options.json && (cli->options.tty || (count == 0 && verb_is_terminal()));
    char generated[16] = "run-";
    const char *name = cli->options.name;
    json_auto_t *sandbox = NULL;
    struct error err = {0};
    int guard, r;

    r = remote_signals(cli, &err);
    if (r < 0)
        return cli_fail(cli, &err);
    if (!name) {
        /* A name of its own, so that it can be removed even if the answer never comes. */
        r = random_id(generated + 4, 8);
        if (r < 0)
            return cli_fail(cli, &(struct error){.errnum = -r, .text = "no random numbers"});
        name = generated;
    }
    r = verb_make_sandbox(cli, name, &sandbox, &err);
    if (r < 0)
        return remote_fail(cli, r, &err);
    guard = run_guard_start(cli, client_string(sandbox, "id"));
    r = verb_run_in(cli, client_string(sandbox, "id"), count > 0 ? args : NULL, tty, &err);
    remove_sandbox(cli, client_string(sandbox, "id"));
    run_guard_release(guard);
    return r < 0 ? remote_fail(cli, r, &err) : r;
}
