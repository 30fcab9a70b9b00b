#include "api/e2b/e2b.h"

#include <stdlib.h>
#include <string.h>

#include "api/e2b/handlers.h"
#include "api/e2b/process.h"
#include "api/e2b/template-build.h"
#include "api/front/touch.h"
#include "model/text.h"

struct api_e2b *e2b_of(const struct request *req)
{
    return request_context(req);
}

/* ---- envd: a sandbox that sleeps is woken by any call ---- */

#define TOUCHING(name)                                                                             \
    static void name##_touching(struct request *req)                                               \
    {                                                                                              \
        static const struct touch_ops ops = {.go = name, .failed = envd_answer_not_usable};        \
        struct sandbox *sb = envd_sandbox(req, /* signed_url= */ false);                           \
        if (sb)                                                                                    \
            touch_wait(req, sb, &ops);                                                             \
    }

TOUCHING(handle_process_start)
TOUCHING(handle_process_connect)
TOUCHING(handle_process_list)
TOUCHING(handle_process_send_input)
TOUCHING(handle_process_send_signal)
TOUCHING(handle_process_update)
TOUCHING(handle_process_close_stdin)
TOUCHING(handle_fs_stat)
TOUCHING(handle_fs_make_dir)
TOUCHING(handle_fs_move)
TOUCHING(handle_fs_list_dir)
TOUCHING(handle_fs_remove)
TOUCHING(handle_fs_watch_dir)
TOUCHING(handle_fs_create_watcher)
TOUCHING(handle_fs_watcher_events)
TOUCHING(handle_fs_remove_watcher)

#define RPC (ROUTE_RAW | ROUTE_OPEN)
#define PROCESS "/process.Process/"
#define FILESYSTEM "/filesystem.Filesystem/"

const struct route e2b_envd_routes[] = {
    {"POST", PROCESS "Start", handle_process_start_touching, RPC},
    {"POST", PROCESS "Connect", handle_process_connect_touching, RPC},
    {"POST", PROCESS "List", handle_process_list_touching, RPC},
    {"POST", PROCESS "SendInput", handle_process_send_input_touching, RPC},
    {"POST", PROCESS "StreamInput", handle_process_stream_input, ROUTE_OPEN | ROUTE_STREAM_IN},
    {"POST", PROCESS "SendSignal", handle_process_send_signal_touching, RPC},
    {"POST", PROCESS "Update", handle_process_update_touching, RPC},
    {"POST", PROCESS "CloseStdin", handle_process_close_stdin_touching, RPC},
    {"POST", FILESYSTEM "Stat", handle_fs_stat_touching, RPC},
    {"POST", FILESYSTEM "MakeDir", handle_fs_make_dir_touching, RPC},
    {"POST", FILESYSTEM "Move", handle_fs_move_touching, RPC},
    {"POST", FILESYSTEM "ListDir", handle_fs_list_dir_touching, RPC},
    {"POST", FILESYSTEM "Remove", handle_fs_remove_touching, RPC},
    {"POST", FILESYSTEM "WatchDir", handle_fs_watch_dir_touching, RPC},
    {"POST", FILESYSTEM "CreateWatcher", handle_fs_create_watcher_touching, RPC},
    {"POST", FILESYSTEM "GetWatcherEvents", handle_fs_watcher_events_touching, RPC},
    {"POST", FILESYSTEM "RemoveWatcher", handle_fs_remove_watcher_touching, RPC},
    {"GET", "/health", handle_envd_health, ROUTE_OPEN},
    {"GET", "/metrics", handle_envd_metrics, ROUTE_OPEN},
    {"GET", "/envs", handle_envd_envs, ROUTE_OPEN},
    {"GET", "/files", handle_files_read, ROUTE_OPEN},
    {"POST", "/files", handle_files_write, ROUTE_OPEN | ROUTE_STREAM_IN},
};
const size_t e2b_envd_routes_count = ARRAY_SIZE(e2b_envd_routes);

/* ---- control plane ---- */

#define SANDBOX "/sandboxes/ID"
#define TEMPLATE "/templates/ID"

const struct route e2b_control_routes[] = {
    {"GET", "/v2/sandboxes", handle_e2b_list, 0},
    {"POST", "/v2/sandboxes", handle_e2b_create, ROUTE_BODY},
    {"POST", "/v2" SANDBOX "/connect", handle_e2b_connect, ROUTE_BODY_OPTIONAL},
    {"GET", "/v2" SANDBOX "/logs", handle_e2b_logs_v2, ROUTE_CONTENT},
    {"GET", "/sandboxes", handle_e2b_list_v1, 0},
    {"POST", "/sandboxes", handle_e2b_create, ROUTE_BODY},
    {"GET", SANDBOX, handle_e2b_get, ROUTE_CONTENT},
    {"DELETE", SANDBOX, handle_e2b_kill, 0},
    {"POST", SANDBOX "/connect", handle_e2b_connect, ROUTE_BODY_OPTIONAL},
    {"POST", SANDBOX "/resume", handle_e2b_resume, ROUTE_BODY_OPTIONAL},
    {"POST", SANDBOX "/pause", handle_e2b_pause, ROUTE_BODY_OPTIONAL},
    {"POST", SANDBOX "/timeout", handle_e2b_timeout, ROUTE_BODY},
    {"POST", SANDBOX "/refreshes", handle_e2b_refresh, ROUTE_BODY_OPTIONAL},
    {"PUT", SANDBOX "/network", handle_e2b_network, ROUTE_BODY_OPTIONAL},
    {"POST", SANDBOX "/fork", handle_e2b_fork, ROUTE_BODY_OPTIONAL},
    {"POST", SANDBOX "/snapshots", handle_e2b_snapshot, ROUTE_BODY_OPTIONAL},
    {"GET", "/snapshots", handle_e2b_snapshots, 0},
    {"POST", "/v3/templates", handle_e2b_template_request, ROUTE_BODY | ROUTE_HOME},
    {"POST", "/v2" TEMPLATE "/builds/BUILD", handle_e2b_template_build, ROUTE_BODY | ROUTE_HOME},
    {"GET", TEMPLATE "/builds/BUILD/status", handle_e2b_template_status,
     ROUTE_CONTENT | ROUTE_HOME},
    {"GET", TEMPLATE "/files/HASH", handle_e2b_template_files, ROUTE_CONTENT | ROUTE_HOME},
    {"PUT", TEMPLATE "/files/HASH", handle_e2b_template_put, ROUTE_OPEN | ROUTE_STREAM_IN},
    {"GET", "/templates/aliases/ID", handle_e2b_template_alias, ROUTE_HOME},
    {"GET", "/templates", handle_e2b_templates, ROUTE_HOME},
    {"GET", "/v2/templates", handle_e2b_templates, ROUTE_HOME},
    {"POST", "/templates/tags", handle_e2b_tags_assign, ROUTE_BODY | ROUTE_HOME},
    {"DELETE", "/templates/tags", handle_e2b_tags_remove, ROUTE_BODY | ROUTE_HOME},
    {"GET", TEMPLATE "/tags", handle_e2b_template_tags, ROUTE_HOME},
    {"PATCH", TEMPLATE, handle_e2b_template_patch, ROUTE_BODY | ROUTE_HOME},
    {"PATCH", "/v2" TEMPLATE, handle_e2b_template_patch, ROUTE_BODY | ROUTE_HOME},
    {"DELETE", TEMPLATE, handle_e2b_template_delete, 0},
    {"GET", SANDBOX "/metrics", handle_e2b_metrics, 0},
    {"GET", SANDBOX "/logs", handle_e2b_logs, ROUTE_CONTENT},
};
const size_t e2b_control_routes_count = ARRAY_SIZE(e2b_control_routes);

static const struct route port_routes[] = {
    {"*", "/**", handle_port, ROUTE_OPEN | ROUTE_STREAM_IN},
};

/* ---- whose request it is ---- */

static bool claims_port(struct request *req, void *context)
{
    char id[65];
    uint16_t port;

    (void)context;
    return envd_address(req, id, &port) == 1 && port != E2B_ENVD_PORT;
}

static bool claims_envd(struct request *req, void *context)
{
    char id[65];
    uint16_t port = 0;
    int r = envd_address(req, id, &port);

    (void)context;
    return r < 0 || (r == 1 && port == E2B_ENVD_PORT);
}

static json_t *control_error(struct request *req, const struct error *err, unsigned *status)
{
    (void)req;
    return json_pack("{s:i, s:o}", "code", (int)*status, "message", json_text(err->text));
}

/* Calls of Connect want their codes, the rest of envd the status. */
static json_t *envd_error(struct request *req, const struct error *err, unsigned *status)
{
    enum connect_code code = connect_code_of(err);

    if (!request_header(req, "Connect-Protocol-Version"))
        return control_error(req, err, status);
    *status = connect_code_status(code);
    return json_pack("{s:s, s:o}", "code", connect_code_name(code), "message",
                     json_text(err->text));
}

void e2b_apis(struct api_e2b *e2b, struct http_api ret[static E2B_APIS])
{
    ret[0] = (struct http_api){
        .name = "port",
        .routes = port_routes,
        .n_routes = ARRAY_SIZE(port_routes),
        .context = e2b,
        .claims = claims_port,
        .error_json = control_error,
    };
    ret[1] = (struct http_api){
        .name = "envd",
        .routes = e2b_envd_routes,
        .n_routes = e2b_envd_routes_count,
        .context = e2b,
        .claims = claims_envd,
        .error_json = envd_error,
    };
    ret[2] = (struct http_api){
        .name = "e2b",
        .routes = e2b_control_routes,
        .n_routes = e2b_control_routes_count,
        .context = e2b,
        .error_json = control_error,
    };
}

int e2b_new(struct core *core, struct api_e2b **ret, struct error *err)
{
    struct api_e2b *e2b = calloc(1, sizeof(*e2b));

    if (!e2b)
        return error_set(err, ENOMEM, "out of memory");
    e2b->core = core;
    e2b->loop = core_loop(core);
    *ret = e2b;
    return 0;
}

void e2b_set_https(struct api_e2b *e2b)
{
    e2b->https = true;
}

struct api_e2b *e2b_free(struct api_e2b *e2b)
{
    if (!e2b)
        return NULL;
    e2b_builds_free(e2b);
    e2b_files_free(e2b);
    e2b_processes_free(e2b);
    e2b_watchers_free(e2b);
    free(e2b);
    return NULL;
}
