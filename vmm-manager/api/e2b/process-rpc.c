#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/handlers.h"
#include "api/e2b/process-pick.h"
#include "api/e2b/stream-input.h"
#include "base/clock.h"
#include "base/strv.h"

/* The service process.Process. */
#define ARGS_MAX 65536u
#define TAG_MAX 120u
#define KILL_GRACE_MSEC 1000u

/* ---- Start ---- */

struct start_args {
    char **argv, **env; /* owned */
    const char *cwd;    /* weak */
};

static void start_args_done(struct start_args *a)
{
    (void)strv_free(a->argv);
    (void)strv_free(a->env);
}

static int env_add(char ***env, const char *key, const char *value)
{
    _cleanup_free_ char *entry = string_printf("%s=%s", key, value);

    return entry ? strv_append(env, entry) : -ENOMEM;
}

/* What the client gives comes last and wins: the guest takes the last of a name. */
static int start_env(struct start_args *a, struct sandbox *sb, json_t *envs, struct error *err)
{
    const struct sandbox_spec *spec = sandbox_get_spec(sb);
    char template[64];
    const char *key;
    json_t *value;
    int r;

    r = env_add(&a->env, "E2B_SANDBOX", "true");
    if (r >= 0)
        r = env_add(&a->env, "E2B_SANDBOX_ID", sandbox_id(sb));
    if (r >= 0)
        r = env_add(&a->env, "E2B_TEMPLATE_ID", e2b_template_of(sb, template));
    for (size_t i = 0; r >= 0 && spec->env && spec->env[i]; i++) {
        size_t name = strcspn(spec->env[i], "=");
        _cleanup_free_ char *own = strndup(spec->env[i], name);

        if (!own)
            r = -ENOMEM;
        else if (!json_object_get(envs, own))
            r = strv_append(&a->env, spec->env[i]);
    }
    json_object_foreach(envs, key, value)
    {
        if (!json_is_string(value) || key[0] == '\0' || strchr(key, '=') ||
            strlen(json_string_value(value)) != json_string_length(value))
            return error_set(err, EINVAL, "'envs': '%.64s' is not a variable with a text", key);
        if (r >= 0)
            r = env_add(&a->env, key, json_string_value(value));
    }
    return r < 0 ? error_set(err, -r, "envs: %s", errno_text(-r)) : 0;
}

static int start_decode(const json_t *message, struct sandbox *sb, struct start_args *a,
                        struct error *err)
{
    const json_t *process = pb_get(message, "process", "process");
    json_t *args = pb_get(process, "args", "args");
    const char *cmd = pb_string(process, "cmd", "cmd");
    json_t *envs = pb_get(process, "envs", "envs");
    json_t *arg;
    size_t i;

    if (!cmd || cmd[0] == '\0')
        return error_set(err, EINVAL, "'process.cmd': is missing");
    if ((args && !json_is_array(args)) || json_array_size(args) > ARGS_MAX)
        return error_set(err, EINVAL, "'process.args': not a list of at most %u texts", ARGS_MAX);
    if (envs && !json_is_object(envs))
        return error_set(err, EINVAL, "'process.envs': not an object");
    if (strv_append(&a->argv, cmd) < 0)
        return error_set(err, ENOMEM, "out of memory");
    json_array_foreach(args, i, arg)
    {
        const char *text = json_string_value(arg);

        if (!text || strlen(text) != json_string_length(arg))
            return error_set(err, EINVAL, "'process.args[%zu]': not a text without NUL", i);
        if (strv_append(&a->argv, text) < 0)
            return error_set(err, ENOMEM, "out of memory");
    }
    a->cwd = pb_string(process, "cwd", "cwd");
    return start_env(a, sb, envs, err);
}

static json_t *start_config(const json_t *message)
{
    const json_t *process = pb_get(message, "process", "process");

    return json_deep_copy(process);
}

struct start_call {
    struct api_e2b *e2b;
    struct start_args args;
    json_t *message; /* owned */
    char user[129];
};

static void start_run(struct request *req, struct sandbox *sb, struct console *c,
                      struct start_call *call, const char *cwd)
{
    const json_t *pty = pb_get(call->message, "pty", "pty");
    const json_t *size = pb_get(pty, "size", "size");
    const json_t *stdin_flag = pb_get(call->message, "stdin", "stdin");
    const char *tag = pb_string(call->message, "tag", "tag");
    uint64_t rows = 24, cols = 80;
    uint32_t timeout = 0;
    struct error err = {0};
    char label[129];

    if (pb_u64(size, "rows", "rows", UINT16_MAX, &rows) < 0 ||
        pb_u64(size, "cols", "cols", UINT16_MAX, &cols) < 0 || (tag && strlen(tag) > TAG_MAX)) {
        connect_answer_code(req, CONNECT_INVALID_ARGUMENT,
                            tag && strlen(tag) > TAG_MAX ? "'tag': is too long"
                                                         : "'pty.size': out of range");
        return;
    }
    if (connect_timeout_msec(req, &timeout, &err) < 0) {
        connect_answer_error(req, &err);
        return;
    }
    (void)snprintf(label, sizeof(label), "%s%s", PROCESS_LABEL, tag ? tag : "");
    bool has_stdin = !stdin_flag || json_is_true(stdin_flag);
    const struct exec_spec spec = {
        .argv = call->args.argv,
        .env = call->args.env,
        .cwd = cwd,
        .user = call->user,
        .tty = pty != NULL,
        .rows = (uint16_t)rows,
        .cols = (uint16_t)cols,
        .timeout_msec = timeout,
        .kill_grace_msec = KILL_GRACE_MSEC,
        .close_stdin = !has_stdin && !pty,
        .drop_when_full = false,
        .label = label,
    };
    const struct process_start start = {
        .spec = &spec,
        .tag = tag,
        .config_consume = start_config(call->message),
        .has_stdin = has_stdin,
    };
    e2b_process_start(call->e2b, req, sb, c, &start);
}

static void on_start_cwd(struct request *req, struct sandbox *sb, struct console *c,
                         const char *path, const struct envd_account *account, void *state)
{
    (void)account;
    start_run(req, sb, c, state, path);
}

static void start_call_free(void *state)
{
    struct start_call *call = state;

    start_args_done(&call->args);
    json_decref(call->message);
    free(call);
}

void handle_process_start(struct request *req)
{
    struct sandbox *sb;
    json_t *message = NULL;
    struct console *c = envd_call(req, /* stream= */ true, &sb, &message);
    struct start_call *call;
    struct error err = {0};

    if (!c)
        return;
    call = calloc(1, sizeof(*call));
    if (!call) {
        json_decref(message);
        connect_answer_code(req, CONNECT_INTERNAL, "out of memory");
        return;
    }
    call->e2b = e2b_of(req);
    call->message = message;
    if (envd_user(req, sb, call->user, &err) < 0 ||
        start_decode(message, sb, &call->args, &err) < 0) {
        start_call_free(call);
        connect_answer_error(req, &err);
        return;
    }
    const char *cwd = call->args.cwd ? call->args.cwd : sandbox_get_spec(sb)->workdir;
    if (!cwd || cwd[0] == '\0' || cwd[0] == '/') {
        start_run(req, sb, c, call, cwd && cwd[0] ? cwd : NULL);
        start_call_free(call);
        return;
    }
    envd_resolve(req, sb, c, call->user, cwd, on_start_cwd, call, start_call_free);
}

/* ---- one of the processes ---- */

typedef void (*picked_fn)(struct request *req, struct sandbox *sb, struct console *c,
                          struct e2b_process *p, const json_t *message);

/* A call that waits for its process. */
struct picking {
    struct request *req;       /* weak */
    struct sandbox *sb;        /* weak, while there is a pick */
    struct process_pick *pick; /* owned */
    json_t *message;           /* owned */
    picked_fn fn;
};

static void on_picking_over(void *state, enum request_end why)
{
    struct picking *w = state;

    (void)why;
    w->pick = process_pick_free(w->pick);
    json_decref(w->message);
    free(w);
}

static void on_picked(struct e2b_process *p, struct console *c, const struct error *err,
                      void *userdata)
{
    struct picking *w = userdata;

    request_own(w->req, NULL, NULL);
    if (p)
        w->fn(w->req, w->sb, c, p, w->message);
    else
        connect_answer_error(w->req, err);
    on_picking_over(w, REQUEST_DONE);
}

static void with_process(struct request *req, bool stream, picked_fn fn)
{
    struct sandbox *sb;
    json_t *message = NULL;
    struct console *c = envd_call(req, stream, &sb, &message);
    struct picking *w = c ? calloc(1, sizeof(*w)) : NULL;
    struct error err = {0};
    struct e2b_process *p;
    int r;

    if (!c)
        return;
    if (!w) {
        json_decref(message);
        connect_answer_code(req, CONNECT_INTERNAL, "out of memory");
        return;
    }
    *w = (struct picking){.req = req, .sb = sb, .message = message, .fn = fn};
    r = process_pick(e2b_of(req), sb, c, message, on_picked, w, &p, &w->pick, &err);
    if (r == 0) {
        request_own(req, w, on_picking_over);
        return;
    }
    if (r > 0)
        fn(req, sb, c, p, message);
    else
        connect_answer_error(req, &err);
    on_picking_over(w, REQUEST_DONE);
}

static void picked_connect(struct request *req, struct sandbox *sb, struct console *c,
                           struct e2b_process *p, const json_t *message)
{
    struct error err = {0};

    (void)message;
    if (e2b_process_attach(p, c, sb, &err) < 0)
        connect_answer_error(req, &err);
    else
        e2b_process_connect(p, req);
}

void handle_process_connect(struct request *req)
{
    with_process(req, /* stream= */ true, picked_connect);
}

/* ---- input ---- */

/* A SendInput that waits for the process to read. */
struct sending {
    struct request *req;     /* weak */
    struct e2b_input *input; /* owned */
};

static void on_sending_over(void *state, enum request_end why)
{
    struct sending *w = state;

    (void)why;
    w->input = e2b_input_free(w->input);
    free(w);
}

static void on_sent(enum connect_code code, const char *message, void *userdata)
{
    struct sending *w = userdata;

    if (message)
        connect_answer_code(w->req, code, message);
    else
        connect_answer(w->req, json_object());
}

static void picked_input(struct request *req, struct sandbox *sb, struct console *c,
                         struct e2b_process *p, const json_t *message)
{
    struct sending *w = calloc(1, sizeof(*w));
    struct error err = {0};
    int r;

    if (!w) {
        connect_answer_code(req, CONNECT_INTERNAL, "out of memory");
        return;
    }
    w->req = req;
    r = process_input_message(p, c, sb, pb_get(message, "input", "input"), on_sent, w, &w->input,
                              &err);
    if (r == 0) {
        request_own(req, w, on_sending_over);
        return;
    }
    free(w);
    if (r > 0)
        connect_answer(req, json_object());
    else
        connect_answer_error(req, &err);
}

void handle_process_send_input(struct request *req)
{
    with_process(req, /* stream= */ false, picked_input);
}

static void picked_close(struct request *req, struct sandbox *sb, struct console *c,
                         struct e2b_process *p, const json_t *message)
{
    struct error err = {0};

    (void)message;
    if (p->tty) {
        connect_answer_code(req, CONNECT_FAILED_PRECONDITION,
                            "a terminal's input cannot be closed; send ^D");
        return;
    }
    if (!p->exited && e2b_process_attach(p, c, sb, &err) < 0) {
        connect_answer_error(req, &err);
        return;
    }
    if (p->exec)
        (void)exec_close_stream(p->exec, 0);
    connect_answer(req, json_object());
}

void handle_process_close_stdin(struct request *req)
{
    with_process(req, /* stream= */ false, picked_close);
}

static void picked_update(struct request *req, struct sandbox *sb, struct console *c,
                          struct e2b_process *p, const json_t *message)
{
    const json_t *size = pb_get(pb_get(message, "pty", "pty"), "size", "size");
    struct error err = {0};
    uint64_t rows = 0, cols = 0;

    if (!size || pb_u64(size, "rows", "rows", UINT16_MAX, &rows) < 0 ||
        pb_u64(size, "cols", "cols", UINT16_MAX, &cols) < 0 || rows == 0 || cols == 0) {
        connect_answer_code(req, CONNECT_INVALID_ARGUMENT, "'pty.size': rows and cols are needed");
        return;
    }
    if (!p->tty) {
        connect_answer_code(req, CONNECT_FAILED_PRECONDITION, "the process has no terminal");
        return;
    }
    if (!p->exited && e2b_process_attach(p, c, sb, &err) < 0) {
        connect_answer_error(req, &err);
        return;
    }
    if (p->exec)
        (void)exec_resize(p->exec, (uint16_t)rows, (uint16_t)cols);
    connect_answer(req, json_object());
}

void handle_process_update(struct request *req)
{
    with_process(req, /* stream= */ false, picked_update);
}

/* ---- signal ---- */

static int signal_of(const json_t *message)
{
    const json_t *value = pb_get(message, "signal", "signal");
    const char *name = json_string_value(value);

    if (json_is_integer(value) && json_integer_value(value) > 0 && json_integer_value(value) <= 64)
        return (int)json_integer_value(value);
    if (name && string_starts_with(name, "SIGNAL_SIG")) {
        for (int i = 1; i <= 64; i++) {
            const char *known = sigabbrev_np(i);

            if (known && strcmp(known, name + strlen("SIGNAL_SIG")) == 0)
                return i;
        }
    }
    return -EINVAL;
}

/* The answer does not wait for the guest: as a kill() does not wait for the end. */
static void on_signalled(struct console *c, const struct error *err, void *userdata)
{
    (void)c;
    (void)err;
    (void)userdata;
}

static void picked_signal(struct request *req, struct sandbox *sb, struct console *c,
                          struct e2b_process *p, const json_t *message)
{
    int signo = signal_of(message), r;
    /* A killed shell must not leave what it ran behind. */
    enum exec_signal_scope scope = signo == SIGKILL ? EXEC_SIGNAL_TREE : EXEC_SIGNAL_PROCESS;
    struct error err = {0};

    (void)sb;
    if (signo < 0) {
        connect_answer_code(req, CONNECT_INVALID_ARGUMENT, "'signal': not a signal");
        return;
    }
    if (p->exited) {
        connect_answer_code(req, CONNECT_NOT_FOUND, "the process was not found");
        return;
    }
    r = exec_signal_process(c, p->process_id, signo, scope, clock_now_usec() + E2B_CALL_USEC,
                            on_signalled, NULL);
    if (r < 0) {
        error_fill(&err, r, "process %u: send signal %d", p->pid, signo);
        connect_answer_error(req, &err);
        return;
    }
    connect_answer(req, json_object());
}

void handle_process_send_signal(struct request *req)
{
    with_process(req, /* stream= */ false, picked_signal);
}

/* ---- List ---- */

void handle_process_list(struct request *req)
{
    struct sandbox *sb;
    json_t *message = NULL, *list;

    if (!envd_call(req, /* stream= */ false, &sb, &message))
        return;
    json_decref(message);
    list = json_array();
    for (struct e2b_process *p = e2b_of(req)->processes; p; p = p->next) {
        json_t *one;

        if (strcmp(p->sandbox_id, sandbox_id(sb)) != 0 || !p->started || p->exited)
            continue;
        one = json_pack("{s:O, s:I}", "config", p->config, "pid", (json_int_t)p->pid);
        if (one && p->tag)
            (void)json_object_set_new(one, "tag", json_string(p->tag));
        (void)json_array_append_new(list, one);
    }
    connect_answer(req, json_pack("{s:o}", "processes", list));
}
