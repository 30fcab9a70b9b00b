#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "api/swerex/rex-private.h"
#include "api/swerex/tty-text.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/strv.h"
#include "host/exec.h"

/* POST /execute: one program, outside of all sessions, as subprocess.run() would. */
#define OUTPUT_MAX (64u * 1024u * 1024u)
#define MERGE "exec \"$@\" 2>&1"

struct execute {
    struct request *req;         /* weak */
    struct exec *exec;           /* owned */
    struct sandbox_watch *watch; /* owned */
    struct buf out, err;
    char *shown, *error_msg; /* owned; the command as people read it */
    double timeout_sec;
    bool check;
};

static void on_over(void *state, enum request_end why)
{
    struct execute *x = state;

    (void)why;
    if (x->exec)
        (void)exec_signal(x->exec, SIGKILL, EXEC_SIGNAL_TREE);
    x->exec = exec_free(x->exec);
    x->watch = sandbox_watch_free(x->watch);
    buf_done(&x->out);
    buf_done(&x->err);
    free(x->shown);
    free(x->error_msg);
    free(x);
}

static void on_output(struct exec *e, uint8_t stream, uint64_t offset, const uint8_t *data,
                      size_t size, void *userdata)
{
    struct execute *x = userdata;
    struct buf *to = stream == 2 ? &x->err : &x->out;

    (void)offset;
    (void)buf_append(to, data, MIN(size, buf_room(to)));
    exec_consumed(e, stream, size);
}

static void on_exit_(struct exec *e, const struct exec_exit *exit, void *userdata)
{
    struct execute *x = userdata;
    _cleanup_free_ char *out = text_backslashed(buf_data(&x->out), x->out.size);
    _cleanup_free_ char *err = text_backslashed(buf_data(&x->err), x->err.size), *text = NULL;
    int code = exit->signal ? -(int)exit->signal : (int)exit->status;

    (void)e;
    x->exec = exec_free(x->exec);
    if (exit->timed_out) {
        text = string_printf("Timeout (%gs) exceeded while running command %s", x->timeout_sec,
                             x->shown);
        rex_raise(x->req, "swerex.exceptions.CommandTimeoutError", text ? text : "", NULL);
    } else if (x->check && code != 0) {
        text = string_printf("%s%sCommand %s failed with exit code %d. Stdout:\n%s\nStderr:\n%s",
                             x->error_msg ? x->error_msg : "", x->error_msg ? ": " : "", x->shown,
                             code, out ? out : "", err ? err : "");
        rex_raise(x->req, "swerex.exceptions.NonZeroExitCodeError", text ? text : "", NULL);
    } else {
        request_answer(x->req, 200,
                       json_pack("{s:s, s:s, s:i}", "stdout", out ? out : "", "stderr",
                                 err ? err : "", "exit_code", code));
    }
}

static void on_closed(struct exec *e, const struct error *reason, void *userdata)
{
    struct execute *x = userdata;

    (void)e;
    if (reason->code == ERR_GUEST_GONE && x->watch)
        return;
    if (x->exec) {
        x->exec = exec_free(x->exec);
        rex_raise_error(x->req, reason);
    }
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct execute *x = userdata;

    (void)sb;
    x->watch = sandbox_watch_free(x->watch);
    if (x->exec) {
        x->exec = exec_free(x->exec);
        rex_raise_error(x->req, reason);
    }
}

/* A list as it is; a text for the shell, or (without one) as the name of a program. */
static int make_argv(const json_t *body, char ***ret, char **ret_shown, struct error *err)
{
    const json_t *command = json_object_get(body, "command");
    bool shell = json_is_true(json_object_get(body, "shell"));
    bool merge = json_is_true(json_object_get(body, "merge_output_streams"));
    json_t *word;
    size_t i;
    int r = 0;

    if (merge) {
        r = strv_append(ret, "/bin/sh");
        r = r < 0 ? r : strv_append(ret, "-c");
        r = r < 0 ? r : strv_append(ret, MERGE);
        r = r < 0 ? r : strv_append(ret, "sh");
    }
    if (r >= 0 && json_is_string(command)) {
        if (shell) {
            r = strv_append(ret, "/bin/sh");
            r = r < 0 ? r : strv_append(ret, "-c");
        }
        r = r < 0 ? r : strv_append(ret, json_string_value(command));
        *ret_shown = text_repr(json_string_value(command));
    } else if (json_is_array(command) && json_array_size(command) > 0) {
        json_array_foreach(command, i, word)
        {
            if (!json_is_string(word))
                return error_set(err, EINVAL, "command: not a list of texts");
            if (r >= 0)
                r = strv_append(ret, json_string_value(word));
        }
        _cleanup_free_ char *text = json_dumps(command, JSON_ENCODE_ANY);

        *ret_shown = text ? TAKE_PTR(text) : NULL;
    } else if (r >= 0) {
        return error_set(err, EINVAL, "command: neither a text nor a list");
    }
    return r < 0 || !*ret_shown ? error_set(err, ENOMEM, "out of memory") : 0;
}

static int make_env(const json_t *body, struct sandbox *sb, char ***ret, struct error *err)
{
    json_t *env = json_object_get(body, "env"), *value;
    char *const *defaults = sandbox_get_spec(sb)->env;
    const char *key;
    int r = 0;

    if (!json_is_object(env)) {
        for (size_t i = 0; r >= 0 && defaults && defaults[i]; i++)
            r = strv_append(ret, defaults[i]);
        return r < 0 ? error_set(err, ENOMEM, "out of memory") : 0;
    }
    json_object_foreach(env, key, value)
    {
        _cleanup_free_ char *pair =
            json_is_string(value) ? string_printf("%s=%s", key, json_string_value(value)) : NULL;

        if (!json_is_string(value) || key[0] == '\0' || strchr(key, '='))
            return error_set(err, EINVAL, "env: '%.64s' is not a variable with a text", key);
        if (r >= 0)
            r = pair ? strv_append(ret, pair) : -ENOMEM;
    }
    return r < 0 ? error_set(err, ENOMEM, "out of memory") : 0;
}

void handle_rex_execute(struct request *req)
{
    static const struct exec_callbacks callbacks = {
        .on_output = on_output,
        .on_exit = on_exit_,
        .on_closed = on_closed,
    };
    const json_t *body = request_json(req);
    const json_t *timeout = json_object_get(body, "timeout"), *cwd = json_object_get(body, "cwd");
    const char *message = json_string_value(json_object_get(body, "error_msg"));
    _cleanup_strv_ char **argv = NULL, **env = NULL;
    struct error err = {0};
    struct sandbox *sb;
    struct execute *x;
    int r;

    struct console *c = rex_console(req, &sb);
    if (!c)
        return;
    x = calloc(1, sizeof(*x));
    if (!x) {
        rex_raise(req, "builtins.MemoryError", "out of memory", NULL);
        return;
    }
    x->req = req;
    buf_init(&x->out, OUTPUT_MAX);
    buf_init(&x->err, OUTPUT_MAX);
    x->check = json_is_true(json_object_get(body, "check"));
    x->timeout_sec = json_is_number(timeout) ? json_number_value(timeout) : 0;
    request_own(req, x, on_over);
    r = make_argv(body, &argv, &x->shown, &err);
    if (r >= 0)
        r = make_env(body, sb, &env, &err);
    if (r >= 0 && message && message[0] && string_set(&x->error_msg, message) < 0)
        r = error_set(&err, ENOMEM, "out of memory");
    if (r >= 0 && (x->timeout_sec < 0 || x->timeout_sec > 1e6))
        r = error_set(&err, EINVAL, "timeout: not a number of seconds");
    if (r < 0) {
        request_answer(req, 422, json_pack("{s:s}", "detail", err.text));
        return;
    }
    const struct exec_spec spec = {
        .argv = argv,
        .env = env,
        .cwd = json_is_string(cwd) ? json_string_value(cwd) : sandbox_get_spec(sb)->workdir,
        .user = sandbox_get_spec(sb)->user,
        .timeout_msec = (uint32_t)(x->timeout_sec * 1000.0),
        .close_stdin = true,
    };
    r = sandbox_watch_new(sb, on_gone, x, &x->watch);
    if (r < 0)
        error_fill(&err, r, "execute");
    else
        r = exec_start(c, &spec, &callbacks, x, &x->exec, &err);
    if (r < 0)
        rex_raise_error(req, &err);
}
