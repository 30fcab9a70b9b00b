#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/native/handlers.h"
#include "api/native/native.h"
#include "api/websocket.h"
#include "base/buf.h"
#include "base/strv.h"

/*
 * Theory of operation. A terminal is a view of what a tty session runs; when it runs nothing, an
 * interactive shell is started in it. Who comes later, or again, sees the same terminal: first what
 * the guest still keeps of its output (from an offset, if the client has one), then what comes. The
 * client's going changes nothing; the terminal lives in the session, across daemons.
 *
 * Binary messages are the terminal's bytes, text messages are JSON: from us `started` (with the
 * offset of the first byte), `exit`, `error`; from the client `resize` and `signal`.
 */
#define OUTPUT_MAX (512u * 1024u)
#define INPUT_MAX WEBSOCKET_MESSAGE_MAX
#define TERMINAL_DEFAULT "terminal"

/* The shell of the user at the keyboard; $0 of the session's own is not it. */
static const char shell[] = "for s in \"$SHELL\" bash sh; do"
                            " command -v \"$s\" >/dev/null 2>&1 && break; done; \"$s\" -i";

struct terminal {
    struct request *req;         /* weak; NULL after the upgrade */
    struct websocket *ws;        /* owned */
    struct session *session;     /* weak, valid while watch is there */
    struct session_view *view;   /* owned; NULL: over */
    struct sandbox_watch *watch; /* owned; NULL: the sandbox is gone */
    struct buf input;            /* that the terminal has not taken yet */
    char name[64];
    uint64_t from[3];
    size_t owed; /* bytes of the view that wait for the client */
};

static void terminal_free(struct terminal *t)
{
    t->view = session_view_free(t->view);
    t->watch = sandbox_watch_free(t->watch);
    t->ws = websocket_free(t->ws);
    buf_done(&t->input);
    free(t);
}

static void terminal_tell(struct terminal *t, json_t *json_consume)
{
    _cleanup_free_ char *text = json_consume ? json_dumps(json_consume, JSON_COMPACT) : NULL;

    json_decref(json_consume);
    if (text)
        (void)websocket_send(t->ws, /* text= */ true, text, strlen(text));
}

static void terminal_fail(struct terminal *t, const struct error *err)
{
    json_t *json = error_to_json(err);

    t->view = session_view_free(t->view);
    if (t->req) {
        request_answer_error(t->req, err);
        json_decref(json);
        return;
    }
    (void)json_object_set_new(json, "type", json_string("error"));
    terminal_tell(t, json);
    websocket_close(t->ws, 1011, error_code_name(err->code));
}

/* ---- what the session says ---- */

static void pump(struct terminal *t)
{
    while (t->view && t->input.size > 0) {
        size_t fits = MIN(t->input.size, session_view_writable(t->view));
        if (fits == 0 || session_view_write(t->view, buf_data(&t->input), fits) < 0)
            break;
        buf_consume(&t->input, fits);
    }
    if (!t->view)
        buf_clear(&t->input);
    if (t->input.size == 0)
        websocket_pause(t->ws, false);
}

static void on_started(struct session_view *v, uint64_t command, const uint64_t start[3],
                       void *userdata)
{
    struct terminal *t = userdata;

    (void)v;
    terminal_tell(t, json_pack("{s:s, s:s, s:I, s:I}", "type", "started", "session", t->name,
                               "command", (json_int_t)command, "offset",
                               (json_int_t)MAX(start[1], t->from[1])));
    pump(t); /* what was typed before */
}

static void on_output(struct session_view *v, int stream, uint64_t offset, const uint8_t *data,
                      size_t size, void *userdata)
{
    struct terminal *t = userdata;

    (void)offset;
    /* A client that does not read while a command is ended by force misses the rest. */
    if (stream != 1 || websocket_send(t->ws, /* text= */ false, data, size) < 0)
        session_view_consumed(v, stream, size);
    else
        t->owed += size;
}

static void on_writable(struct session_view *v, void *userdata)
{
    (void)v;
    pump(userdata);
}

static void on_result(struct session_view *v, const struct session_result *result,
                      const struct error *err, void *userdata)
{
    struct terminal *t = userdata;

    (void)v;
    if (err) {
        /* The console knows only that it was closed; the watch follows and tells why. */
        if (err->code != ERR_GUEST_GONE || !t->watch)
            terminal_fail(t, err);
        return;
    }
    terminal_tell(t, json_pack("{s:s, s:i}", "type", "exit", "exit_code", result->exit_code));
    t->view = session_view_free(t->view);
    websocket_close(t->ws, 1000, "exit");
}

static const struct session_view_callbacks view_callbacks = {
    .on_started = on_started,
    .on_output = on_output,
    .on_writable = on_writable,
    .on_result = on_result,
};

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct terminal *t = userdata;

    (void)sb;
    t->watch = sandbox_watch_free(t->watch);
    if (t->view)
        terminal_fail(t, reason);
}

/* ---- what the client says ---- */

static void on_control(struct terminal *t, const uint8_t *data, size_t size)
{
    json_t *json = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
    const char *type = json_string_value(json_object_get(json, "type"));
    json_int_t rows = json_integer_value(json_object_get(json, "rows"));
    json_int_t cols = json_integer_value(json_object_get(json, "cols"));
    json_int_t signo = json_integer_value(json_object_get(json, "signal"));

    if (type && strcmp(type, "resize") == 0 && rows > 0 && rows <= UINT16_MAX && cols > 0 &&
        cols <= UINT16_MAX) {
        if (t->view)
            (void)session_resize(t->session, (uint16_t)rows, (uint16_t)cols);
    } else if (type && strcmp(type, "signal") == 0 && signo >= 1 && signo <= 64) {
        if (t->view)
            (void)session_view_signal(t->view, (int)signo);
    } else {
        websocket_close(t->ws, 1003, "text: expected resize or signal");
    }
    json_decref(json);
}

static void on_message(void *owner, bool text, const uint8_t *data, size_t size)
{
    struct terminal *t = owner;

    if (text) {
        on_control(t, data, size);
        return;
    }
    if (!t->view)
        return;
    /* Nothing is read while any of it waits, so one message always fits. */
    if (buf_append(&t->input, data, size) < 0) {
        websocket_close(t->ws, 1009, "input");
        return;
    }
    websocket_pause(t->ws, true);
    pump(t);
}

static void on_drained(void *owner, size_t size)
{
    struct terminal *t = owner;
    size_t consumed = MIN(size, t->owed);

    t->owed -= consumed;
    if (t->view && consumed > 0)
        session_view_consumed(t->view, 1, consumed);
}

static void on_websocket_over(void *owner)
{
    terminal_free(owner);
}

static const struct websocket_ops websocket_ops = {
    .message = on_message,
    .drained = on_drained,
    .over = on_websocket_over,
};

/* ---- beginning ---- */

static void on_over(void *state, enum request_end why)
{
    (void)why;
    terminal_free(state);
}

static void on_upgraded(struct upgrade *up, void *state)
{
    struct terminal *t = state;

    t->req = NULL;
    if (websocket_open(t->ws, up) < 0)
        terminal_free(t);
}

struct terminal_ask {
    const char *name, *user, *cwd;
    uint64_t rows, cols, from;
};

static bool query(struct request *req, struct sandbox *sb, struct terminal_ask *ask)
{
    const struct sandbox_spec *spec = sandbox_get_spec(sb);
    struct error err;

    *ask = (struct terminal_ask){
        .name = TERMINAL_DEFAULT, .user = spec->user, .cwd = spec->workdir, .rows = 24, .cols = 80};
    if (!native_query_string(req, "session", &ask->name) ||
        !native_query_string(req, "user", &ask->user) ||
        !native_query_string(req, "cwd", &ask->cwd) ||
        !native_query_u64(req, "rows", UINT16_MAX, &ask->rows) ||
        !native_query_u64(req, "cols", UINT16_MAX, &ask->cols) ||
        !native_query_u64(req, "from", INT64_MAX, &ask->from))
        return false;
    if (name_is_valid(ask->name))
        return true;
    error_set(&err, EINVAL, "'session': '%.64s' is no name", ask->name);
    request_answer_error(req, &err);
    return false;
}

static bool has_session(struct sandbox *sb, const char *name, bool *ret_tty)
{
    json_t *list = sandbox_sessions_to_json(sb), *one;
    bool found = false;
    size_t i;

    json_array_foreach(list, i, one)
    {
        const char *its = json_string_value(json_object_get(one, "name"));
        const char *kind = json_string_value(json_object_get(one, "kind"));
        if (!its || !kind || strcmp(its, name) != 0)
            continue;
        found = true;
        *ret_tty = strcmp(kind, "tty") == 0;
    }
    json_decref(list);
    return found;
}

/* The session of this name, made when there is none. */
static struct session *find_or_make(struct sandbox *sb, const struct terminal_ask *ask,
                                    struct error *err)
{
    char term[] = "TERM=xterm-256color";
    char *env[] = {term, NULL};
    const struct session_spec spec = {
        .name = ask->name,
        .kind = SESSION_TTY,
        .user = ask->user,
        .cwd = ask->cwd,
        .env = env,
        .rows = (uint16_t)ask->rows,
        .cols = (uint16_t)ask->cols,
    };
    struct session *s = NULL;
    bool tty;

    if (has_session(sb, ask->name, &tty)) {
        if (tty)
            return sandbox_session(sb, ask->name, err);
        error_set_code(err, ERR_CONFLICT, "session '%s' is no terminal", ask->name);
        return NULL;
    }
    return sandbox_session_new(sb, &spec, &s, err) < 0 ? NULL : s;
}

static int terminal_begin(struct terminal *t, const struct terminal_ask *ask, struct error *err)
{
    const struct session_run_options options = {.text = shell, .with_stdin = true};

    t->from[1] = ask->from;
    if (session_get_state(t->session) == SESSION_RUNNING) {
        if (ask->rows && ask->cols)
            (void)session_resize(t->session, (uint16_t)ask->rows, (uint16_t)ask->cols);
        return session_attach(t->session, 0, t->from, &view_callbacks, t, &t->view, err);
    }
    return session_run(t->session, &options, &view_callbacks, t, &t->view, err);
}

void handle_terminal(struct request *req)
{
    struct terminal_ask ask;
    struct error err = {0};
    struct sandbox *sb;
    int r;

    if (!native_console(req, &sb) || !query(req, sb, &ask))
        return;
    struct terminal *t = calloc(1, sizeof(*t));
    r = t ? websocket_accept(req, "hearth", &err) : -ENOMEM;
    if (r >= 0) {
        t->req = req;
        buf_init(&t->input, INPUT_MAX);
        (void)snprintf(t->name, sizeof(t->name), "%s", ask.name);
        t->session = find_or_make(sb, &ask, &err);
        r = t->session ? 0 : -err.errnum;
    }
    if (r >= 0)
        r = websocket_new(native_of(req)->loop, &websocket_ops, t, OUTPUT_MAX, &t->ws);
    if (r >= 0)
        r = sandbox_watch_new(sb, on_gone, t, &t->watch);
    if (r >= 0)
        r = terminal_begin(t, &ask, &err);
    if (r < 0) {
        error_fill(&err, r, "terminal of sandbox '%s'", sandbox_id(sb));
        request_answer_error(req, &err);
        if (t)
            terminal_free(t);
        return;
    }
    request_own(req, t, on_over);
    request_upgrade(req, "websocket", on_upgraded);
}
