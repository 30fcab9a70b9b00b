#include <stdlib.h>
#include <string.h>

#include "api/native/handlers.h"
#include "api/native/session-job.h"
#include "api/native/ticket.h"
#include "base/strv.h"

#define TIMEOUT_MS_MAX (UINT64_C(1000) * SPEC_TIMEOUT_SEC_MAX)

void handle_sessions(struct request *req)
{
    struct sandbox *sb = native_sandbox(req);

    if (sb)
        request_answer(req, 200, json_pack("{s:o}", "sessions", sandbox_sessions_to_json(sb)));
}

/* ---- a new one ---- */

struct session_body {
    char *name, *kind, *user, *cwd;
    char **env;
    uint16_t rows, cols;
};

static const struct field session_fields[] = {
    {"name", FIELD_NAME, offsetof(struct session_body, name), 1, 63, true},
    {"kind", FIELD_STRING, offsetof(struct session_body, kind), 1, 16, false},
    {"user", FIELD_STRING, offsetof(struct session_body, user), 1, 128, false},
    {"cwd", FIELD_PATH, offsetof(struct session_body, cwd), 1, 4095, false},
    {"env", FIELD_ENV, offsetof(struct session_body, env), 0, 0, false},
    {"rows", FIELD_U16, offsetof(struct session_body, rows), 0, UINT16_MAX, false},
    {"cols", FIELD_U16, offsetof(struct session_body, cols), 0, UINT16_MAX, false},
};

static void session_body_done(struct session_body *body)
{
    free(body->name);
    free(body->kind);
    free(body->user);
    free(body->cwd);
    (void)strv_free(body->env);
}

static int session_kind(const char *text, enum session_kind *ret, struct error *err)
{
    if (!text || strcmp(text, "pipe") == 0)
        *ret = SESSION_PIPE;
    else if (strcmp(text, "tty") == 0)
        *ret = SESSION_TTY;
    else
        return error_set(err, EINVAL, "'kind': '%s' is neither 'pipe' nor 'tty'", text);
    return 0;
}

/* The session as the list shows it. */
static json_t *session_json(struct sandbox *sb, const char *name)
{
    json_t *list = sandbox_sessions_to_json(sb), *found = NULL, *one;
    size_t i;

    json_array_foreach(list, i, one)
    {
        const char *its = json_string_value(json_object_get(one, "name"));
        if (its && strcmp(its, name) == 0)
            found = json_incref(one);
    }
    json_decref(list);
    return found;
}

static void session_new_with(struct request *req, struct sandbox *sb,
                             const struct session_body *body)
{
    struct session *session;
    struct error err = {0};
    struct session_spec spec = {
        .name = body->name,
        .user = body->user,
        .cwd = body->cwd,
        .env = body->env,
        .rows = body->rows,
        .cols = body->cols,
    };

    int r = session_kind(body->kind, &spec.kind, &err);
    if (r >= 0)
        r = sandbox_session_new(sb, &spec, &session, &err);
    if (r < 0)
        request_answer_error(req, &err);
    else
        request_answer(req, 201, session_json(sb, body->name));
}

void handle_session_new(struct request *req)
{
    struct session_body body = {0};
    struct sandbox *sb = native_sandbox(req);

    if (!sb)
        return;
    if (native_decode(req, session_fields, ARRAY_SIZE(session_fields), &body))
        session_new_with(req, sb, &body);
    session_body_done(&body);
}

static void on_removed(const struct error *err, void *userdata)
{
    ticket_answer_done(userdata, err);
}

void handle_session_remove(struct request *req)
{
    const char *name = request_param(req, 1);
    struct sandbox *sb = native_sandbox(req);
    struct ticket *t = sb ? ticket_new(req, NULL) : NULL;

    if (!t)
        return;
    int r = sandbox_session_remove(sb, name, on_removed, t);
    if (r < 0) {
        struct error err = {0};
        if (r == -ENOENT)
            error_set_code(&err, ERR_SESSION_NOT_FOUND, "session '%s': not in this sandbox", name);
        error_fill(&err, r, "session '%s': remove", name);
        ticket_answer_done(t, &err);
    }
}

/* ---- commands ---- */

static struct session *find_session(struct request *req, struct sandbox **ret_sb)
{
    struct error err = {0};
    struct sandbox *sb = native_sandbox(req);
    struct session *s = sb ? sandbox_session(sb, request_param(req, 1), &err) : NULL;

    if (sb && !s)
        request_answer_error(req, &err);
    *ret_sb = sb;
    return s;
}

void handle_session_run(struct request *req)
{
    struct body {
        char *text;
        uint64_t timeout_ms;
        bool with_stdin;
    } body = {0};
    static const struct field fields[] = {
        {"text", FIELD_STRING, offsetof(struct body, text), 0, SESSION_TEXT_MAX, true},
        {"timeout_ms", FIELD_U64, offsetof(struct body, timeout_ms), 0, TIMEOUT_MS_MAX, false},
        {"stdin", FIELD_BOOL, offsetof(struct body, with_stdin), 0, 0, false},
    };
    struct sandbox *sb;
    struct error err;

    if (native_decode(req, fields, ARRAY_SIZE(fields), &body)) {
        struct session_run_options options = {
            .text = body.text,
            .timeout_msec = body.timeout_ms,
            .with_stdin = body.with_stdin,
        };
        if (body.with_stdin && !request_wants_upgrade(req, "hearth-stream")) {
            error_set(&err, EINVAL, "'stdin': input needs a stream (Upgrade: hearth-stream)");
            request_answer_error(req, &err);
        } else {
            struct session *s = find_session(req, &sb);
            if (s)
                session_job_run(req, sb, s, &options);
        }
    }
    free(body.text);
}

void handle_session_attach(struct request *req)
{
    struct body {
        uint64_t command;
        const json_t *from;
    } body = {0};
    static const struct field fields[] = {
        {"command", FIELD_U64, offsetof(struct body, command), 0, INT64_MAX, false},
        {"from", FIELD_JSON, offsetof(struct body, from), 0, 0, false},
    };
    struct error err = {0};
    struct sandbox *sb;
    uint64_t from[3];
    bool given;

    if (!native_decode(req, fields, ARRAY_SIZE(fields), &body))
        return;
    if (native_decode_from(body.from, from, &given, &err) < 0) {
        request_answer_error(req, &err);
        return;
    }
    struct session *s = find_session(req, &sb);
    if (s)
        session_job_attach(req, sb, s, body.command, from);
}
