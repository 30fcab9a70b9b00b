#include "api/native/handlers.h"
#include "api/native/native.h"

/* As docs/API.md lists them; a test holds the two together. */
#define SANDBOX "/v1/sandboxes/ID"

const struct route native_routes[] = {
    {"GET", "/v1/version", handle_version, 0},
    {"GET", "/v1/openapi.yaml", handle_openapi, ROUTE_OPEN},
    {"GET", "/v1/doctor", handle_doctor, ROUTE_HOME},
    {"POST", "/v1/shutdown", handle_shutdown, ROUTE_BODY_OPTIONAL | ROUTE_HOST},

    {"GET", "/v1/sandboxes", handle_sandboxes, 0},
    {"POST", "/v1/sandboxes", handle_sandbox_create, ROUTE_BODY},
    {"GET", SANDBOX, handle_sandbox, 0},
    {"DELETE", SANDBOX, handle_sandbox_remove, 0},
    {"GET", SANDBOX "/logs", handle_sandbox_logs, ROUTE_CONTENT},
    {"GET", SANDBOX "/stats", handle_sandbox_stats, ROUTE_TOUCH},

    {"POST", SANDBOX "/hibernate", handle_hibernate, ROUTE_BODY_OPTIONAL},
    {"POST", SANDBOX "/pause", handle_hibernate, ROUTE_BODY_OPTIONAL},
    {"POST", SANDBOX "/resume", handle_resume, ROUTE_BODY_OPTIONAL},
    {"POST", SANDBOX "/fork", handle_fork, ROUTE_BODY_OPTIONAL},
    {"GET", SANDBOX "/checkpoints", handle_checkpoints, 0},
    {"POST", SANDBOX "/checkpoints", handle_checkpoint, ROUTE_BODY_OPTIONAL | ROUTE_TOUCH},
    {"POST", SANDBOX "/rollback", handle_rollback, ROUTE_BODY},

    {"POST", SANDBOX "/exec", handle_exec, ROUTE_BODY | ROUTE_UPGRADE | ROUTE_TOUCH},
    {"GET", SANDBOX "/processes", handle_processes, ROUTE_TOUCH},
    {"POST", SANDBOX "/processes/PID/attach", handle_process_attach,
     ROUTE_BODY_OPTIONAL | ROUTE_UPGRADE_ONLY | ROUTE_TOUCH},
    {"POST", SANDBOX "/processes/PID/signal", handle_process_signal, ROUTE_BODY | ROUTE_TOUCH},

    {"GET", SANDBOX "/sessions", handle_sessions, 0},
    {"POST", SANDBOX "/sessions", handle_session_new, ROUTE_BODY | ROUTE_TOUCH},
    {"DELETE", SANDBOX "/sessions/NAME", handle_session_remove, ROUTE_TOUCH},
    {"POST", SANDBOX "/sessions/NAME/run", handle_session_run,
     ROUTE_BODY | ROUTE_UPGRADE | ROUTE_TOUCH},
    {"POST", SANDBOX "/sessions/NAME/attach", handle_session_attach,
     ROUTE_BODY_OPTIONAL | ROUTE_UPGRADE_ONLY | ROUTE_TOUCH},

    {"GET", SANDBOX "/files/stat", handle_file_stat, ROUTE_TOUCH},
    {"GET", SANDBOX "/files/list", handle_file_list, ROUTE_TOUCH},
    {"GET", SANDBOX "/files", handle_file_read, ROUTE_CONTENT | ROUTE_TOUCH},
    {"PUT", SANDBOX "/files", handle_file_write, ROUTE_STREAM_IN | ROUTE_TOUCH},
    {"DELETE", SANDBOX "/files", handle_file_remove, ROUTE_TOUCH},
    {"POST", SANDBOX "/files/mkdir", handle_file_mkdir, ROUTE_BODY | ROUTE_TOUCH},
    {"POST", SANDBOX "/files/move", handle_file_move, ROUTE_BODY | ROUTE_TOUCH},
    {"POST", SANDBOX "/files/symlink", handle_file_symlink, ROUTE_BODY | ROUTE_TOUCH},
    {"POST", SANDBOX "/files/attr", handle_file_attr, ROUTE_BODY | ROUTE_TOUCH},
    {"GET", SANDBOX "/files/watch", handle_file_watch, ROUTE_CONTENT | ROUTE_TOUCH},
    {"GET", SANDBOX "/ports", handle_ports, ROUTE_TOUCH},
    {"GET", SANDBOX "/terminal", handle_terminal, ROUTE_CONTENT | ROUTE_TOUCH},
    {"POST", SANDBOX "/dial", handle_dial, ROUTE_BODY | ROUTE_UPGRADE_ONLY | ROUTE_TOUCH},

    {"POST", "/v1/code_run", handle_code_run, ROUTE_BODY},

    {"GET", "/v1/snapshots", handle_snapshots, 0},
    {"DELETE", "/v1/snapshots/ID", handle_snapshot_remove, 0},
    {"POST", "/v1/snapshots/ID/verify", handle_snapshot_verify, ROUTE_BODY_OPTIONAL},
    {"POST", "/v1/snapshots/ID/repair", handle_snapshot_repair, ROUTE_BODY_OPTIONAL},
    {"POST", "/v1/snapshots/ID/fork", handle_snapshot_fork, ROUTE_BODY_OPTIONAL},

    {"GET", "/v1/images", handle_images, 0},
    {"POST", "/v1/images/import", handle_image_import, ROUTE_BODY | ROUTE_HOST},
    {"POST", "/v1/images/pull", handle_image_pull, ROUTE_BODY | ROUTE_HOST},
    {"POST", "/v1/images/build", handle_image_build, ROUTE_STREAM_IN | ROUTE_HOST},
    {"POST", "/v1/images/export", handle_image_export, ROUTE_BODY | ROUTE_HOST},
    {"POST", "/v1/images/prune", handle_image_prune, ROUTE_BODY | ROUTE_HOST},
    {"GET", "/v1/images/**", handle_image, 0},
    {"DELETE", "/v1/images/**", handle_image_remove, ROUTE_HOST},
    {"POST", "/v1/registries/login", handle_registry_login, ROUTE_BODY | ROUTE_HOST},
    {"POST", "/v1/registries/logout", handle_registry_logout, ROUTE_BODY | ROUTE_HOST},
    {"GET", "/v1/kernels", handle_kernels, ROUTE_HOME},
    {"GET", "/v1/templates", handle_templates, ROUTE_HOME},
    {"GET", "/v1/events", handle_events, 0},
    {"GET", "/v1/usage", handle_usage, 0},
    {"GET", "/v1/keys", handle_keys, ROUTE_ADMIN},
    {"POST", "/v1/keys", handle_key_new, ROUTE_BODY | ROUTE_ADMIN},
    {"DELETE", "/v1/keys/ID", handle_key_remove, ROUTE_ADMIN},
    {"POST", "/v1/templates", handle_template_build, ROUTE_BODY | ROUTE_HOST},
    {"GET", "/v1/templates/ID", handle_template, ROUTE_HOME},
    {"DELETE", "/v1/templates/ID", handle_template_remove, ROUTE_HOST},
    {"GET", "/v1/pools", handle_pools, ROUTE_HOME},
    {"PUT", "/v1/pools/ID", handle_pool_set, ROUTE_BODY | ROUTE_HOST},
    {"DELETE", "/v1/pools/ID", handle_pool_unset, ROUTE_HOST},
};
const size_t native_routes_count = ARRAY_SIZE(native_routes);
