#include "api/swerex/rex.h"

#include <stdlib.h>
#include <string.h>

#include "api/front/access.h"
#include "api/front/touch.h"
#include "api/swerex/rex-private.h"
#include "model/text.h"

/* ---- answers ---- */

void rex_raise(struct request *req, const char *class_path, const char *message,
               json_t *extra_consume)
{
    request_answer(req, 511,
                   json_pack("{s:{s:o, s:s, s:s, s:o}}", "swerexception", "message",
                             json_text(message), "class_path", class_path, "traceback", "",
                             "extra_info", extra_consume ? extra_consume : json_object()));
}

static const char *class_of(const struct error *err)
{
    switch (err->code) {
    case ERR_PATH_NOT_FOUND:
    case ERR_CWD_NOT_FOUND:
    case ERR_COMMAND_NOT_FOUND:
        return "builtins.FileNotFoundError";
    case ERR_PATH_IS_DIRECTORY:
        return "builtins.IsADirectoryError";
    case ERR_PATH_NOT_DIRECTORY:
        return "builtins.NotADirectoryError";
    case ERR_PERMISSION_DENIED:
    case ERR_COMMAND_NOT_EXECUTABLE:
        return "builtins.PermissionError";
    case ERR_TIMEOUT:
    case ERR_GUEST_UNRESPONSIVE:
        return "builtins.TimeoutError";
    case ERR_NO_SPACE:
        return "builtins.OSError";
    default:
        return "swerex.exceptions.SwerexException";
    }
}

void rex_raise_error(struct request *req, const struct error *err)
{
    rex_raise(req, class_of(err), err->text, NULL);
}

struct console *rex_console(struct request *req, struct sandbox **ret_sb)
{
    struct error err = {0};
    struct sandbox *sb = access_sandbox(req, rex_of(req)->core, request_param(req, 0), &err);
    struct console *c = sb ? sandbox_console(sb, &err) : NULL;

    if (!c) {
        request_answer_error(req, &err);
        return NULL;
    }
    *ret_sb = sb;
    return c;
}

/* As FastAPI's: {"detail"}; a missing key is 403 there, a wrong one 401. */
static json_t *error_json(struct request *req, const struct error *err, unsigned *status)
{
    if (err->code == ERR_UNAUTHORIZED) {
        bool missing = !access_secret(req);

        *status = missing ? 403 : 401;
        return json_pack("{s:s}", "detail", missing ? "Not authenticated" : "Invalid API Key");
    }
    return json_pack("{s:o}", "detail", json_text(err->text));
}

/* ---- routes ---- */

static void handle_root(struct request *req)
{
    struct sandbox *sb;

    if (rex_console(req, &sb))
        request_answer(req, 200, json_pack("{s:s}", "message", "hello world"));
}

/* Asks nobody, so that it is quick; a sandbox that sleeps is alive too. */
static void handle_is_alive(struct request *req)
{
    struct error err = {0};
    struct sandbox *sb = access_sandbox(req, rex_of(req)->core, request_param(req, 0), &err);
    enum sandbox_state state;

    if (!sb) {
        request_answer_error(req, &err);
        return;
    }
    state = sandbox_get_state(sb);
    bool alive = state != SANDBOX_FAILED && state != SANDBOX_STOPPED && state != SANDBOX_STOPPING;
    request_answer(req, 200,
                   json_pack("{s:b, s:s}", "is_alive", alive, "message",
                             alive ? "" : sandbox_state_name(state)));
}

#define TOUCHING(name)                                                                             \
    static void name##_touching(struct request *req)                                               \
    {                                                                                              \
        struct error err = {0};                                                                    \
        struct sandbox *sb = access_sandbox(req, rex_of(req)->core, request_param(req, 0), &err);  \
        if (sb)                                                                                    \
            touch_then(req, sb, name);                                                             \
        else                                                                                       \
            request_answer_error(req, &err);                                                       \
    }

TOUCHING(handle_rex_create_session)
TOUCHING(handle_rex_run)
TOUCHING(handle_rex_close_session)
TOUCHING(handle_rex_close)
TOUCHING(handle_rex_execute)
TOUCHING(handle_rex_read_file)
TOUCHING(handle_rex_write_file)
TOUCHING(handle_rex_upload)

#define RUNTIME "/rex/ID"

const struct route swerex_routes[] = {
    {"GET", RUNTIME, handle_root, 0},
    {"GET", RUNTIME "/", handle_root, 0},
    {"GET", RUNTIME "/is_alive", handle_is_alive, 0},
    {"POST", RUNTIME "/create_session", handle_rex_create_session_touching, ROUTE_BODY},
    {"POST", RUNTIME "/run_in_session", handle_rex_run_touching, ROUTE_BODY},
    {"POST", RUNTIME "/close_session", handle_rex_close_session_touching, ROUTE_BODY},
    {"POST", RUNTIME "/execute", handle_rex_execute_touching, ROUTE_BODY},
    {"POST", RUNTIME "/read_file", handle_rex_read_file_touching, ROUTE_BODY},
    {"POST", RUNTIME "/write_file", handle_rex_write_file_touching, ROUTE_RAW},
    {"POST", RUNTIME "/upload", handle_rex_upload_touching, ROUTE_STREAM_IN},
    {"POST", RUNTIME "/close", handle_rex_close_touching, ROUTE_RAW},
};
const size_t swerex_routes_count = ARRAY_SIZE(swerex_routes);

struct http_api swerex_http(struct api_swerex *rex)
{
    return (struct http_api){
        .name = "swerex",
        .routes = swerex_routes,
        .n_routes = swerex_routes_count,
        .context = rex,
        .error_json = error_json,
    };
}

int swerex_new(struct core *core, struct api_swerex **ret, struct error *err)
{
    struct api_swerex *rex = calloc(1, sizeof(*rex));

    if (!rex)
        return error_set(err, ENOMEM, "out of memory");
    rex->core = core;
    rex->loop = core_loop(core);
    *ret = rex;
    return 0;
}

struct api_swerex *swerex_free(struct api_swerex *rex)
{
    if (!rex)
        return NULL;
    rex_shells_free(rex);
    free(rex);
    return NULL;
}
