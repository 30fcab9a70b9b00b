#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "api/native/exec-job.h"
#include "api/native/handlers.h"
#include "api/native/ticket.h"
#include "base/clock.h"
#include "base/strv.h"
#include "model/text.h"

/* Between SIGTERM and SIGKILL of a process that ran out of its time. */
#define TIMEOUT_GRACE_MSEC 1000u

/* ---- exec ---- */

static bool env_has(char *const *env, const char *entry)
{
    size_t length = strcspn(entry, "=") + 1; /* with the '=' */

    for (size_t i = 0; env && env[i]; i++) {
        if (strncmp(env[i], entry, length) == 0)
            return true;
    }
    return false;
}

/* The sandbox's variables under those of the request. */
static int env_merge(char *const *defaults, char *const *own, char ***ret)
{
    _cleanup_strv_ char **env = NULL;

    for (size_t i = 0; defaults && defaults[i]; i++) {
        if (!env_has(own, defaults[i]) && strv_append(&env, defaults[i]) < 0)
            return -ENOMEM;
    }
    for (size_t i = 0; own && own[i]; i++) {
        if (strv_append(&env, own[i]) < 0)
            return -ENOMEM;
    }
    *ret = TAKE_PTR(env);
    return 0;
}

static void exec_with(struct request *req, struct sandbox *sb, struct console *c,
                      const struct exec_request *body)
{
    const struct sandbox_spec *defaults = sandbox_get_spec(sb);
    _cleanup_strv_ char **env = NULL;
    struct error err;

    bool stream = request_wants_upgrade(req, "hearth-stream");
    if (body->stdin_open && !stream) {
        error_set(&err, EINVAL, "'stdin': input needs a stream (Upgrade: hearth-stream)");
        request_answer_error(req, &err);
        return;
    }
    if (env_merge(defaults->env, body->env, &env) < 0) {
        error_set(&err, ENOMEM, "exec: out of memory");
        request_answer_error(req, &err);
        return;
    }
    struct exec_spec spec = {
        .argv = body->argv,
        .env = env,
        .cwd = body->cwd ? body->cwd : defaults->workdir,
        .user = body->user ? body->user : defaults->user,
        .tty = body->tty,
        .rows = body->rows,
        .cols = body->cols,
        .memory_max_bytes = body->memory_max_bytes,
        .pids_max = body->pids_max,
        .drop_when_full = body->detach,
        .timeout_msec = body->timeout_msec,
        .kill_grace_msec = TIMEOUT_GRACE_MSEC,
        .close_stdin = !body->stdin_open && !body->tty,
    };
    struct exec_job_options options = {
        .kind = body->detach ? EXEC_JOB_DETACH
                : stream     ? EXEC_JOB_STREAM
                             : EXEC_JOB_CAPTURE,
        .keep = body->keep,
        .tty = body->tty,
    };
    exec_job_start(req, sb, c, &spec, &options);
}

void handle_exec(struct request *req)
{
    struct exec_request body = {0};
    struct error err = {0};
    struct sandbox *sb;

    struct console *c = native_console(req, &sb);
    if (!c)
        return;
    if (exec_request_from_json(request_json(req), &body, &err) < 0)
        request_answer_error(req, &err);
    else
        exec_with(req, sb, c, &body);
    exec_request_done(&body);
}

/* ---- processes ---- */

static json_t *process_to_json(const struct exec_info *info)
{
    static const bool whole[3] = {false};
    char started[32];

    clock_format_wall(info->started_wall_usec, started, sizeof(started));
    json_t *o =
        json_pack("{s:I, s:i, s:b, s:b, s:o, s:o, s:s}", "process_id", (json_int_t)info->process_id,
                  "pid", (int)info->pid, "running", info->running, "tty", info->tty, "label",
                  json_text(info->label), "command", json_text(info->command), "started", started);
    if (o && !info->running)
        (void)json_object_set_new(o, "exit",
                                  exec_result_to_json(&info->exit, info->process_id, whole));
    return o;
}

static void on_list(struct console *c, const struct exec_info *infos, size_t count,
                    const struct error *err, void *userdata)
{
    struct request *req = ticket_take(userdata);

    (void)c;
    if (!req)
        return;
    if (err) {
        request_answer_error(req, err);
        return;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        (void)json_array_append_new(list, process_to_json(&infos[i]));
    request_answer(req, 200, json_pack("{s:o}", "processes", list));
}

void handle_processes(struct request *req)
{
    struct sandbox *sb;
    struct console *c = native_console(req, &sb);
    struct ticket *t = c ? ticket_new(req, sb) : NULL;

    if (!t)
        return;
    int r = exec_list(c, clock_now_usec() + CALL_TIMEOUT_USEC, on_list, t);
    if (r < 0) {
        struct error err = {0};
        error_fill(&err, r, "sandbox '%s': list its processes", sandbox_id(sb));
        ticket_answer_done(t, &err);
    }
}

static bool process_param(struct request *req, uint64_t *ret)
{
    struct error err;

    if (parse_u64(request_param(req, 1), 1, INT64_MAX, ret) >= 0)
        return true;
    error_set_code(&err, ERR_PROCESS_NOT_FOUND, "process '%.64s': not a process id",
                   request_param(req, 1));
    request_answer_error(req, &err);
    return false;
}

void handle_process_attach(struct request *req)
{
    struct {
        const json_t *from;
    } body = {0};
    static const struct field fields[] = {{"from", FIELD_JSON, 0, 0, 0, false}};
    struct error err = {0};
    struct sandbox *sb;
    uint64_t id, from[3];
    bool given;

    struct console *c = native_console(req, &sb);
    if (!c || !process_param(req, &id) || !native_decode(req, fields, ARRAY_SIZE(fields), &body))
        return;
    if (native_decode_from(body.from, from, &given, &err) < 0) {
        request_answer_error(req, &err);
        return;
    }
    exec_job_attach(req, sb, c, id, given ? from : NULL);
}

/* "TERM", "SIGTERM" or 15. */
static int parse_signal(const json_t *json, struct error *err)
{
    json_int_t number = json_integer_value(json);
    const char *name = json_string_value(json);

    if (json_is_integer(json) && number >= 1 && number <= 64)
        return (int)number;
    if (name && string_starts_with(name, "SIG"))
        name += 3;
    for (int i = 1; name && i <= 64; i++) {
        const char *known = sigabbrev_np(i);
        if (known && strcmp(known, name) == 0)
            return i;
    }
    return error_set(err, EINVAL, "'signal': is neither a signal's name nor a number of 1 to 64");
}

static void on_signalled(struct console *c, const struct error *err, void *userdata)
{
    (void)c;
    ticket_answer_done(userdata, err);
}

void handle_process_signal(struct request *req)
{
    struct body {
        const json_t *signal;
        bool tree;
    } body = {0};
    static const struct field fields[] = {
        {"signal", FIELD_JSON, offsetof(struct body, signal), 0, 0, true},
        {"tree", FIELD_BOOL, offsetof(struct body, tree), 0, 0, false},
    };
    struct error err = {0};
    struct sandbox *sb;
    uint64_t id;

    struct console *c = native_console(req, &sb);
    if (!c || !process_param(req, &id) || !native_decode(req, fields, ARRAY_SIZE(fields), &body))
        return;
    int signo = parse_signal(body.signal, &err);
    if (signo < 0) {
        request_answer_error(req, &err);
        return;
    }
    struct ticket *t = ticket_new(req, sb);
    if (!t)
        return;
    int r = exec_signal_process(c, id, signo, body.tree ? EXEC_SIGNAL_TREE : EXEC_SIGNAL_PROCESS,
                                clock_now_usec() + CALL_TIMEOUT_USEC, on_signalled, t);
    if (r < 0) {
        error_fill(&err, r, "process %llu: send signal %d", (unsigned long long)id, signo);
        ticket_answer_done(t, &err);
    }
}
