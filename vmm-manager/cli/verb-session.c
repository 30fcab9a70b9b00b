#include "cli/verbs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "cli/client.h"
#include "cli/remote.h"
#include "cli/terminal.h"
#include "cli/text.h"

#define TEXT_MAX ((size_t)1024 * 1024)

static const char *session_name(const struct cli *cli)
{
    return cli->options.session ? cli->options.session : "default";
}

/* Like ssh: several words are one line of shell. */
static int join_words(char **words, struct buf *text, struct error *err)
{
    int r = 0;

    buf_init(text, TEXT_MAX);
    for (unsigned i = 0; words[i] && r >= 0; i++) {
        if (i > 0)
            r = buf_append(text, " ", 1);
        if (r >= 0)
            r = buf_append_string(text, words[i]);
    }
    return r < 0 ? error_set(err, EINVAL, "the text is longer than %zu bytes", TEXT_MAX) : 0;
}

/* The daemon makes only the default session by itself; a named one is made here on first use. */
static int make_session(struct cli *cli, const char *sandbox, const char *name, struct error *err)
{
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/sessions", sandbox);
    json_auto_t *body = json_object();
    int r;

    r = remote_add_string(body, "name", name, err);
    if (r >= 0)
        r = client_call(cli, "POST", path, body, NULL, err);
    if (r < 0 && err->code == ERR_ALREADY_EXISTS)
        r = 0; /* by another program, a moment ago */
    return r;
}

static int run_text(struct remote *m, const char *path, json_t *body, struct error *err)
{
    return m->cli->options.json ? remote_run_json(m->cli, path, body, err)
                                : remote_run(m, path, body, err);
}

int verb_session_run(struct cli *cli, char **args, uint32_t count)
{
    struct remote m = {.cli = cli, .sandbox = args[0], .session = session_name(cli)};
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/sessions/{}/run", args[0], m.session);
    _cleanup_buf_ struct buf text = {0};
    json_auto_t *body = json_object();
    struct error err = {0};
    int r;

    (void)count;
    m.with_stdin = !cli->options.json && verb_wants_stdin(cli, /* tty= */ false);
    r = join_words(args + 1, &text, &err);
    if (r >= 0)
        r = remote_add_string(body, "text", buf_string(&text), &err);
    if (r >= 0 && cli->options.timeout_usec > 0)
        (void)json_object_set_new(
            body, "timeout_ms",
            json_integer((json_int_t)MAX(cli->options.timeout_usec / USEC_PER_MSEC, UINT64_C(1))));
    if (r >= 0 && m.with_stdin)
        (void)json_object_set_new(body, "stdin", json_true());
    if (r >= 0)
        r = remote_signals(cli, &err);
    if (r >= 0)
        r = run_text(&m, path, body, &err);
    if (r < 0 && err.code == ERR_SESSION_NOT_FOUND) {
        error_clear(&err);
        r = make_session(cli, args[0], m.session, &err);
        if (r >= 0)
            r = run_text(&m, path, body, &err);
    }
    return r < 0 ? remote_fail(cli, r, &err) : r;
}

static int get_sessions(struct cli *cli, const char *sandbox, json_t **ret, struct error *err)
{
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/sessions", sandbox);

    return client_call(cli, "GET", path, NULL, ret, err);
}

static int add_session(struct table *t, const json_t *session)
{
    char command[24];

    (void)snprintf(command, sizeof(command), "%" JSON_INTEGER_FORMAT,
                   json_integer_value(json_object_get(session, "command")));
    return table_add(t, (const char *const[]){client_string(session, "name"),
                                              client_string(session, "kind"),
                                              client_string(session, "state"), command,
                                              client_string(session, "cwd")});
}

int verb_session_ls(struct cli *cli, char **args, uint32_t count)
{
    static const char *const heads[] = {"NAME", "KIND", "STATE", "COMMANDS", "CWD"};
    static const struct list_verb list = {"sessions", "name", heads, ARRAY_SIZE(heads),
                                          add_session};
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/sessions", args[0]);

    (void)count;
    return verb_list(cli, path, &list);
}

int verb_session_new(struct cli *cli, char **args, uint32_t count)
{
    const struct options *o = &cli->options;
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/sessions", args[0]);
    json_auto_t *body = json_object(), *answer = NULL;
    struct error err = {0};
    uint16_t rows, cols;

    (void)count;
    if (remote_add_string(body, "name", args[1], &err) < 0 ||
        remote_add_string(body, "kind", o->kind, &err) < 0 ||
        remote_add_string(body, "user", o->user, &err) < 0 ||
        remote_add_string(body, "cwd", o->workdir, &err) < 0 ||
        remote_add_env(body, o->env, &err) < 0)
        return cli_fail(cli, &err);
    if (o->kind && strcmp(o->kind, "tty") == 0 && terminal_size(&rows, &cols) >= 0) {
        (void)json_object_set_new(body, "rows", json_integer(rows));
        (void)json_object_set_new(body, "cols", json_integer(cols));
    }
    if (client_call(cli, "POST", path, body, &answer, &err) < 0)
        return cli_fail(cli, &err);
    if (o->json)
        return client_print_json(answer) < 0 ? EXIT_FAILED : EXIT_DONE;
    return puts(args[1]) == EOF ? EXIT_FAILED : EXIT_DONE;
}

static bool session_is_tty(const json_t *answer, const char *name)
{
    json_t *session;
    size_t i;

    json_array_foreach(json_object_get(answer, "sessions"), i,
                       session) if (strcmp(client_string(session, "name"), name) ==
                                    0) return strcmp(client_string(session, "kind"), "tty") == 0;
    return false;
}

int verb_session_attach(struct cli *cli, char **args, uint32_t count)
{
    const char *name = count > 1 ? args[1] : session_name(cli);
    struct remote m = {.cli = cli, .sandbox = args[0], .session = name};
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/sessions/{}/attach", args[0], name);
    json_auto_t *sessions = NULL, *body = json_object();
    struct error err = {0};
    int r;

    r = get_sessions(cli, args[0], &sessions, &err);
    if (r >= 0)
        r = remote_signals(cli, &err);
    if (r >= 0) {
        m.tty = session_is_tty(sessions, name);
        m.with_stdin = m.tty && verb_wants_stdin(cli, true);
        r = remote_run(&m, path, body, &err);
    }
    return r < 0 ? remote_fail(cli, r, &err) : r;
}

int verb_session_close(struct cli *cli, char **args, uint32_t count)
{
    const char *name = count > 1 ? args[1] : session_name(cli);
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/sessions/{}", args[0], name);

    return verb_delete(cli, path, NULL);
}
