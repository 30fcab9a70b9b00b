#include "api/front/ops.h"

#include "api/front/front-private.h"
#include "api/front/metrics.h"
#include "api/http.h"
#include "base/macros.h"
#include "core/core.h"

/* It answers: it lives. */
static void handle_healthz(struct request *req)
{
    request_answer(req, 200, json_pack("{s:s}", "status", "ok"));
}

/* New work would be taken. */
static void handle_readyz(struct request *req)
{
    struct api_front *front = request_context(req);
    struct error err = {0};

    if (front->drain) {
        error_set_code(&err, ERR_UNAVAILABLE, "the daemon is ending");
        request_answer_error(req, &err);
    } else if (!core_backend(front->core, NULL, &err)) {
        request_answer_error(req, &err);
    } else {
        request_answer(req, 200, json_pack("{s:s}", "status", "ready"));
    }
}

static void handle_metrics(struct request *req)
{
    struct api_front *front = request_context(req);
    unsigned connections = http_server_connections(front->host);
    struct error err = {0};
    _cleanup_buf_ struct buf text = {0};
    int r;

    if (front->tcp)
        connections += http_server_connections(front->tcp);
    buf_init(&text, METRICS_TEXT_MAX);
    r = metrics_print(front->metrics, front->core, connections, &text);
    if (r < 0) {
        error_fill(&err, r, "metrics");
        request_answer_error(req, &err);
        return;
    }
    request_answer_text(req, METRICS_CONTENT_TYPE, buf_data(&text), text.size);
}

const struct route ops_routes[] = {
    {"GET", "/healthz", handle_healthz, ROUTE_OPEN},
    {"GET", "/readyz", handle_readyz, ROUTE_OPEN},
    {"GET", "/metrics", handle_metrics, ROUTE_HOME},
};
const size_t ops_routes_count = ARRAY_SIZE(ops_routes);
