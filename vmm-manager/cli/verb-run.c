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

/* The image in front of the command, if there is one: before "--", or a word with a tag. */
static void take_image(struct cli *cli, char ***args, uint32_t *count)
{
    struct options *o = &cli->options;
    char *first = *count > 0 ? (*args)[0] : NULL;
    uint32_t words = 0;

    if (!first || o->image || o->template)
        return;
    if (*count > 1 && strcmp((*args)[1], "--") == 0)
        words = 2;
    else if (strpbrk(first, ":@") && first[0] != '/' && first[0] != '.')
        words = 1;
    if (words == 0)
        return;
    o->image = first;
    *args += words;
    *count -= words;
}

static int append_list(char ***argv, const json_t *list)
{
    json_t *word;
    size_t i;

    json_array_foreach(list, i, word)
    {
        int r = strv_append(argv, json_string_value(word) ? json_string_value(word) : "");

        if (r < 0)
            return r;
    }
    return 0;
}

/* What the image wants to be run, with the user's words in the place of its own arguments. */
static int image_argv(const struct cli *cli, const json_t *sandbox, char *const *args, char ***ret)
{
    const json_t *entrypoint = json_object_get(sandbox, "entrypoint");
    int r = 0;

    if (cli->options.entrypoint)
        r = strv_append(ret, cli->options.entrypoint);
    else
        r = append_list(ret, entrypoint);
    for (size_t i = 0; r >= 0 && args && args[i]; i++)
        r = strv_append(ret, args[i]);
    if (r >= 0 && !args && !cli->options.entrypoint)
        r = append_list(ret, json_object_get(sandbox, "cmd"));
    return r;
}

static void remove_after_death(struct cli *cli, void *userdata)
{
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}", client_string(userdata, "id"));
    struct error ignored = {0};

    if (path)
        (void)client_call(cli, "DELETE", path, NULL, NULL, &ignored);
}

int verb_run(struct cli *cli, char **args, uint32_t count)
{
    _cleanup_strv_ char **argv = NULL;
    bool tty;
    char generated[16] = "run-";
    const char *name = cli->options.name;
    json_auto_t *sandbox = NULL;
    struct error err = {0};
    int guard, r;

    take_image(cli, &args, &count);
    tty = !cli->options.json && (cli->options.tty || (count == 0 && verb_is_terminal()));
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
    guard = run_guard_start(cli, remove_after_death, sandbox);
    r = image_argv(cli, sandbox, count > 0 ? args : NULL, &argv);
    r = r < 0 ? error_set(&err, -r, "out of memory")
              : verb_run_in(cli, client_string(sandbox, "id"), argv, tty, &err);
    remove_sandbox(cli, client_string(sandbox, "id"));
    run_guard_release(guard);
    return r < 0 ? remote_fail(cli, r, &err) : r;
}
