#include "cli/remote.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cli/client.h"
#include "cli/exit-code.h"
#include "cli/stream.h"

#define REATTACH_TIMEOUT_USEC (60 * USEC_PER_SEC)
#define REATTACH_PAUSE_USEC (200 * USEC_PER_MSEC)
#define WINDOW_START 65536u

int remote_signals(struct cli *cli, struct error *err)
{
    int fd;

    if (cli->wait.signal_fd >= 0)
        return 0;
    fd = stream_signals();
    if (fd < 0)
        return error_set(err, -fd, "signals: %s", errno_text(-fd));
    cli->wait.signal_fd = fd;
    return 0;
}

int remote_fail(struct cli *cli, int r, const struct error *err)
{
    if (r == -EINTR && cli->wait.signal > 0)
        return 128 + cli->wait.signal;
    return cli_fail(cli, err);
}

/* ---- request bodies ---- */

int remote_add_string(json_t *body, const char *key, const char *value, struct error *err)
{
    if (!value)
        return 0;
    if (json_object_set_new(body, key, json_string(value)) < 0)
        return error_set(err, EINVAL, "%s: not valid UTF-8", key);
    return 0;
}

int remote_add_argv(json_t *body, char *const *argv, struct error *err)
{
    json_t *list = json_array();

    if (json_object_set_new(body, "argv", list) < 0)
        return error_set(err, ENOMEM, "out of memory");
    for (unsigned i = 0; argv[i]; i++)
        if (json_array_append_new(list, json_string(argv[i])) < 0)
            return error_set(err, EINVAL, "argument %u is not valid UTF-8", i);
    return 0;
}

int remote_add_env(json_t *body, char *const *env, struct error *err)
{
    json_t *object = json_object_get(body, "env");

    if (!env || !env[0])
        return 0;
    if (!object) {
        object = json_object();
        if (json_object_set_new(body, "env", object) < 0)
            return error_set(err, ENOMEM, "out of memory");
    }
    for (; *env; env++) {
        const char *equals = strchr(*env, '=');
        _cleanup_free_ char *key = equals ? strndup(*env, (size_t)(equals - *env)) : NULL;

        if (!key)
            return error_set(err, ENOMEM, "out of memory");
        if (json_object_set_new(object, key, json_string(equals + 1)) < 0)
            return error_set(err, EINVAL, "environment variable '%s' is not valid UTF-8", key);
    }
    return 0;
}

int remote_add_stdio(struct remote *m, json_t *body)
{
    uint16_t rows, cols;

    if (m->with_stdin)
        (void)json_object_set_new(body, "stdin", json_true());
    if (!m->tty)
        return 0;
    (void)json_object_set_new(body, "tty", json_true());
    if (terminal_size(&rows, &cols) < 0)
        return 0;
    (void)json_object_set_new(body, "rows", json_integer(rows));
    (void)json_object_set_new(body, "cols", json_integer(cols));
    return 0;
}

/* ---- the end of a command ---- */

static bool is_set(const json_t *result, const char *key)
{
    return json_is_true(json_object_get(result, key));
}

static void say_result(const struct cli *cli, const json_t *result)
{
    if (is_set(result, "timed_out"))
        cli_note(cli, "timed out after %.1f s",
                 (double)json_integer_value(json_object_get(result, "duration_ms")) / 1000);
    if (is_set(result, "oom_killed"))
        cli_note(cli, "killed: out of memory in the sandbox");
    if (is_set(result, "state_lost"))
        cli_note(cli, "the shell of the session ended; its variables and functions are lost, "
                      "the next command starts a new one");
    else if (is_set(result, "shell_exited"))
        cli_note(cli, "the shell of the session ended; a new one goes on in the same directory "
                      "with the same environment");
}

static int finish(struct remote *m, struct stream *s, struct error *err)
{
    terminal_restore(&s->terminal);
    if (s->lost > 0)
        cli_note(m->cli, "%" PRIu64 " bytes of output were lost while nobody was attached",
                 s->lost);
    if (!s->result) {
        error_copy(err, &s->failure);
        return s->failure.errnum > 0 ? -s->failure.errnum
                                     : error_set(err, EIO, "the command failed");
    }
    say_result(m->cli, s->result);
    return exit_code_of_result(s->result);
}

/* ---- attaching again ---- */

static bool may_come_back(int r, const struct error *err)
{
    return r == -ECONNRESET || err->code == ERR_UNAVAILABLE || err->code == ERR_TIMEOUT;
}

static json_t *attach_body(const struct remote *m, const struct stream *s)
{
    json_t *body = json_pack("{s:{s:I, s:I}}", "from", "stdout", (json_int_t)s->seen[1], "stderr",
                             (json_int_t)s->seen[2]);

    if (body && m->session)
        (void)json_object_set_new(body, "command", json_integer((json_int_t)s->command));
    return body;
}

static int attach_again(struct remote *m, struct stream *s, struct error *err)
{
    uint64_t deadline = wait_deadline(REATTACH_TIMEOUT_USEC);
    char process[24];
    _cleanup_free_ char *path = NULL;
    json_auto_t *body = attach_body(m, s);

    (void)snprintf(process, sizeof(process), "%" PRIu64, s->process_id);
    path = m->session ? client_path("/v1/sandboxes/{}/sessions/{}/attach", m->sandbox, m->session)
                      : client_path("/v1/sandboxes/{}/processes/{}/attach", m->sandbox, process);
    if (!path || !body)
        return error_set(err, ENOMEM, "out of memory");
    for (;;) {
        _cleanup_buf_ struct buf rest = {0};
        int fd = -EBADF, r;

        error_clear(err);
        r = client_upgrade(m->cli, path, body, &fd, &rest, err);
        if (r >= 0) {
            stream_connect(s, fd, &rest);
            return 0;
        }
        if (r == -EINTR || !may_come_back(r, err) || clock_now_usec() >= deadline)
            return r;
        r = wait_fd(&m->cli->wait, -1, 0, wait_deadline(REATTACH_PAUSE_USEC));
        if (r == -EINTR)
            return error_set_errno(err, ERR_CANCELLED, EINTR, "interrupted");
    }
}

/* The connection ended before the command did. */
static int recover(struct remote *m, struct stream *s, struct error *err)
{
    uint64_t granted = s->stdin_sent + WINDOW_START;
    uint64_t unacknowledged = granted > s->stdin_window ? granted - s->stdin_window : 0;
    int r;

    if (!s->started)
        return error_set_errno(err, ERR_UNAVAILABLE, ECONNRESET,
                               "the daemon went away before the command started");
    if (m->cli->options.verbose)
        cli_note(m->cli, "the connection to the daemon broke; attaching again");
    r = attach_again(m, s, err);
    if (r < 0) {
        error_wrap(err, "the connection broke while the command ran; attach again");
        return r;
    }
    if (unacknowledged > 0 && !m->tty)
        cli_note(m->cli, "up to %" PRIu64 " bytes of input may have been lost with the daemon",
                 unacknowledged);
    return 0;
}

static int pump_to_end(struct remote *m, struct stream *s, struct error *err)
{
    int r = stream_pump(s, err);

    while (r == STREAM_BROKEN) {
        r = recover(m, s, err);
        if (r >= 0)
            r = stream_pump(s, err);
    }
    if (r < 0)
        return r;
    if (s->write_errno > 0)
        return error_set(err, s->write_errno, "write: %s", errno_text(s->write_errno));
    return r == STREAM_ABANDONED ? 128 + s->last_signal : finish(m, s, err);
}

int remote_run(struct remote *m, const char *path, json_t *body, struct error *err)
{
    _cleanup_buf_ struct buf rest = {0};
    struct stream s;
    int fd = -EBADF, r;

    if (!path)
        return error_set(err, ENOMEM, "out of memory");
    r = client_upgrade(m->cli, path, body, &fd, &rest, err);
    if (r < 0)
        return r;
    stream_init(&s, m->cli->wait.signal_fd);
    s.tty = m->tty;
    s.stdin_wanted = m->with_stdin;
    s.stdin_window = WINDOW_START;
    if (m->tty && m->with_stdin && isatty(STDIN_FILENO) == 1)
        (void)terminal_raw(&s.terminal);
    stream_connect(&s, fd, &rest);
    r = pump_to_end(m, &s, err);
    stream_done(&s);
    return r;
}

int remote_run_json(struct cli *cli, const char *path, json_t *body, struct error *err)
{
    json_auto_t *result = NULL;
    int r;

    if (!path)
        return error_set(err, ENOMEM, "out of memory");
    r = client_call_long(cli, "POST", path, body, USEC_INFINITY, &result, err);
    if (r < 0)
        return r;
    r = client_print_json(result);
    return r < 0 ? EXIT_FAILED : exit_code_of_result(result);
}
