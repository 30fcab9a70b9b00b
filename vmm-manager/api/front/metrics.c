#include "api/front/metrics.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/front/metrics-host.h"
#include "base/clock.h"
#include "core/core.h"

#define ROUTES_MAX 512u /* more are counted together */
#define STATUS_MAX 600u

static const double bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                0.5,   1,      2.5,   5,    10,    30,   60};
#define BOUND_COUNT ARRAY_SIZE(bounds)

/* One route of one API; the pointers are those of its table, which lives as long as the program. */
struct route_count {
    const char *api, *method, *pattern; /* weak */
    uint64_t buckets[BOUND_COUNT];      /* not cumulated */
    uint64_t count;
    double sum_sec;
    uint64_t upgraded, gone;
};

struct metrics {
    struct route_count *routes; /* owned */
    size_t n_routes;
    struct route_count others;
    uint64_t by_status[STATUS_MAX];
    uint64_t by_code[ERROR_CODE_COUNT];
    uint64_t bytes_in, bytes_out;
    uint64_t started_wall_usec;
};

int metrics_new(struct metrics **ret)
{
    struct metrics *m = calloc(1, sizeof(*m));

    if (!m)
        return -ENOMEM;
    m->others = (struct route_count){.api = "-", .method = "-", .pattern = "-"};
    m->started_wall_usec = clock_wall_usec();
    *ret = m;
    return 0;
}

struct metrics *metrics_free(struct metrics *m)
{
    if (m)
        free(m->routes);
    free(m);
    return NULL;
}

/* ---- counting ---- */

/* The method is the route's word for it only when it is one of the usual ones: it is foreign. */
static const char *method_word(const char *method)
{
    static const char *const known[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};

    for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
        if (strcmp(known[i], method) == 0)
            return known[i];
    }
    return "-";
}

static struct route_count *route_of(struct metrics *m, const struct http_seen *seen)
{
    const char *method = method_word(seen->method);
    struct route_count *routes;

    if (strcmp(seen->pattern, "-") == 0)
        return &m->others;
    for (size_t i = 0; i < m->n_routes; i++) {
        struct route_count *r = &m->routes[i];
        if (r->pattern == seen->pattern && r->method == method)
            return r;
    }
    if (m->n_routes >= ROUTES_MAX)
        return &m->others;
    routes = reallocarray(m->routes, m->n_routes + 1, sizeof(*routes));
    if (!routes)
        return &m->others;
    m->routes = routes;
    m->routes[m->n_routes] =
        (struct route_count){.api = seen->api, .method = method, .pattern = seen->pattern};
    return &m->routes[m->n_routes++];
}

void metrics_seen(struct metrics *m, const struct http_seen *seen)
{
    struct route_count *r = route_of(m, seen);
    double sec = (double)seen->duration_usec / (double)USEC_PER_SEC;

    m->bytes_in += seen->bytes_in;
    m->bytes_out += seen->bytes_out;
    if (seen->status < STATUS_MAX)
        m->by_status[seen->status]++;
    if (seen->code != ERR_NONE && (size_t)seen->code < ERROR_CODE_COUNT)
        m->by_code[seen->code]++;
    r->gone += seen->gone;
    r->upgraded += seen->upgraded;
    if (seen->upgraded) /* how long it lasts is its user's business */
        return;
    r->count++;
    r->sum_sec += sec;
    for (size_t i = 0; i < BOUND_COUNT; i++) {
        if (sec <= bounds[i]) {
            r->buckets[i]++;
            break;
        }
    }
}

/* ---- printing ---- */

static int print_histogram(const struct route_count *r, struct buf *text)
{
    uint64_t below = 0;
    int result = 0;

    if (r->count == 0)
        return 0;
    for (size_t i = 0; i < BOUND_COUNT && result >= 0; i++) {
        below += r->buckets[i];
        result = buf_printf(text,
                            "hearth_http_request_duration_seconds_bucket{api=\"%s\",method=\"%s\","
                            "route=\"%s\",le=\"%g\"} %llu\n",
                            r->api, r->method, r->pattern, bounds[i], (unsigned long long)below);
    }
    if (result >= 0)
        result = buf_printf(
            text,
            "hearth_http_request_duration_seconds_bucket{api=\"%1$s\",method=\"%2$s\","
            "route=\"%3$s\",le=\"+Inf\"} %4$llu\n"
            "hearth_http_request_duration_seconds_sum{api=\"%1$s\",method=\"%2$s\",route=\"%3$s\"}"
            " %5$.6f\n"
            "hearth_http_request_duration_seconds_count{api=\"%1$s\",method=\"%2$s\","
            "route=\"%3$s\"} %4$llu\n",
            r->api, r->method, r->pattern, (unsigned long long)r->count, r->sum_sec);
    return result;
}

static int print_each_route(const struct metrics *m, const char *name, const char *help,
                            size_t offset, struct buf *text)
{
    int r = metrics_head(text, name, "counter", help);

    for (size_t i = 0; i <= m->n_routes && r >= 0; i++) {
        const struct route_count *route = i < m->n_routes ? &m->routes[i] : &m->others;
        uint64_t value = *(const uint64_t *)(const void *)((const char *)route + offset);

        if (value > 0)
            r = buf_printf(text, "%s{api=\"%s\",method=\"%s\",route=\"%s\"} %llu\n", name,
                           route->api, route->method, route->pattern, (unsigned long long)value);
    }
    return r;
}

static int print_requests(const struct metrics *m, struct buf *text)
{
    int r = metrics_head(text, "hearth_http_request_duration_seconds", "histogram",
                         "Time from a request's head to the end of its answer.");

    for (size_t i = 0; i < m->n_routes && r >= 0; i++)
        r = print_histogram(&m->routes[i], text);
    if (r >= 0)
        r = print_histogram(&m->others, text);
    if (r >= 0)
        r = print_each_route(m, "hearth_http_upgrades_total", "Connections that became streams.",
                             offsetof(struct route_count, upgraded), text);
    if (r >= 0)
        r = print_each_route(m, "hearth_http_clients_gone_total",
                             "Requests whose client went away before the end.",
                             offsetof(struct route_count, gone), text);
    return r;
}

static int print_answers(const struct metrics *m, struct buf *text)
{
    int r = metrics_head(text, "hearth_http_responses_total", "counter", "Answers by status.");

    for (unsigned i = 100; i < STATUS_MAX && r >= 0; i++) {
        if (m->by_status[i] > 0)
            r = buf_printf(text, "hearth_http_responses_total{status=\"%u\"} %llu\n", i,
                           (unsigned long long)m->by_status[i]);
    }
    if (r >= 0)
        r = metrics_head(text, "hearth_errors_total", "counter",
                         "Errors that were answered, by their stable code.");
    for (unsigned i = 1; i < ERROR_CODE_COUNT && r >= 0; i++) {
        if (m->by_code[i] > 0)
            r = buf_printf(text, "hearth_errors_total{code=\"%s\"} %llu\n",
                           error_code_name((enum error_code)i), (unsigned long long)m->by_code[i]);
    }
    return r;
}

int metrics_print(const struct metrics *m, struct core *core, unsigned connections,
                  struct buf *text)
{
    int r = print_requests(m, text);

    if (r >= 0)
        r = print_answers(m, text);
    if (r >= 0)
        r = metrics_value(text, "hearth_http_received_bytes_total", "counter",
                          "Bytes of request bodies.", (double)m->bytes_in);
    if (r >= 0)
        r = metrics_value(text, "hearth_http_sent_bytes_total", "counter",
                          "Bytes of answers' bodies.", (double)m->bytes_out);
    if (r >= 0)
        r = metrics_value(text, "hearth_http_connections", "gauge", "Open connections.",
                          connections);
    if (r >= 0)
        r = metrics_print_core(core, text);
    if (r >= 0)
        r = metrics_print_process(core_loop(core), m->started_wall_usec, text);
    return r;
}
