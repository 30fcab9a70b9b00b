#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/handlers.h"
#include "api/front/access.h"
#include "base/clock.h"
#include "base/file.h"
#include "model/text.h"

/* Metrics and logs, as the control plane and as envd show them. */
#define LOG_MAX (256u * 1024u)
#define LOG_LINES_MAX 1000u

struct measure {
    struct request *req; /* weak; NULL: gone */
    struct sandbox_watch *watch;
    char sandbox_id[65];
    bool envd;
};

/* Busy share of all CPUs since the last question, or since boot. */
static double cpu_percent(struct api_e2b *e2b, const char *id, const struct console_stats *stats)
{
    struct e2b_sample *slot = &e2b->samples[0];
    uint64_t now = clock_now_usec(), busy = stats->cpu_usec, span = stats->uptime_usec;

    for (size_t i = 0; i < E2B_SAMPLES; i++) {
        struct e2b_sample *s = &e2b->samples[i];

        if (strcmp(s->sandbox_id, id) == 0) {
            slot = s;
            break;
        }
        if (s->at_usec < slot->at_usec)
            slot = s;
    }
    if (strcmp(slot->sandbox_id, id) == 0 && busy >= slot->cpu_usec && now > slot->at_usec) {
        busy -= slot->cpu_usec;
        span = now - slot->at_usec;
    }
    (void)snprintf(slot->sandbox_id, sizeof(slot->sandbox_id), "%s", id);
    slot->cpu_usec = stats->cpu_usec;
    slot->at_usec = now;
    if (span == 0 || stats->cpus == 0)
        return 0.0;
    double percent = 100.0 * (double)busy / (double)span / (double)stats->cpus;
    return percent > 100.0 ? 100.0 : percent;
}

static json_t *measure_json(const struct measure *m, const struct console_stats *s, double percent)
{
    uint64_t now = clock_wall_usec(), used = s->memory_total - s->memory_available;
    json_int_t sec = (json_int_t)(now / USEC_PER_SEC), mib = 1024 * 1024;
    char text[40];

    clock_format_wall(now, text, sizeof(text));
    if (m->envd)
        return json_pack(
            "{s:I, s:i, s:f, s:I, s:I, s:i, s:I, s:I, s:I, s:I}", "ts", sec, "cpu_count",
            (int)s->cpus, "cpu_used_pct", percent, "mem_total", (json_int_t)s->memory_total,
            "mem_used", (json_int_t)used, "mem_cache", 0, "mem_total_mib",
            (json_int_t)s->memory_total / mib, "mem_used_mib", (json_int_t)used / mib, "disk_used",
            (json_int_t)(s->disk_total - s->disk_free), "disk_total", (json_int_t)s->disk_total);
    return json_pack("[{s:s, s:I, s:i, s:f, s:I, s:I, s:i, s:I, s:I}]", "timestamp", text,
                     "timestampUnix", sec, "cpuCount", (int)s->cpus, "cpuUsedPct", percent,
                     "memUsed", (json_int_t)used, "memTotal", (json_int_t)s->memory_total,
                     "memCache", 0, "diskUsed", (json_int_t)(s->disk_total - s->disk_free),
                     "diskTotal", (json_int_t)s->disk_total);
}

static void measure_free(struct measure *m)
{
    m->watch = sandbox_watch_free(m->watch);
    free(m);
}

static void measure_answer(struct measure *m, const struct console_stats *stats,
                           const struct error *err)
{
    struct request *req = m->req;

    if (req) {
        request_own(req, NULL, NULL);
        if (err)
            e2b_answer_error(req, err);
        else
            request_answer(req, 200,
                           measure_json(m, stats, cpu_percent(e2b_of(req), m->sandbox_id, stats)));
    }
    measure_free(m);
}

static void on_stats(struct console *c, const struct console_stats *stats, const struct error *err,
                     void *userdata)
{
    (void)c;
    measure_answer(userdata, stats, err);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    (void)sb;
    measure_answer(userdata, NULL, reason);
}

static void on_over(void *state, enum request_end why)
{
    struct measure *m = state;

    (void)why;
    m->req = NULL; /* the callback frees it */
}

static void measure_start(struct request *req, struct sandbox *sb, struct console *c, bool envd)
{
    struct measure *m = calloc(1, sizeof(*m));
    struct error err = {0};
    int r = m ? sandbox_watch_new(sb, on_gone, m, &m->watch) : -ENOMEM;

    if (r >= 0) {
        m->req = req;
        m->envd = envd;
        (void)snprintf(m->sandbox_id, sizeof(m->sandbox_id), "%s", sandbox_id(sb));
        r = console_stats(c, clock_now_usec() + E2B_CALL_USEC, on_stats, m);
    }
    if (r < 0) {
        if (m)
            measure_free(m);
        error_fill(&err, r, "sandbox '%s': ask for its figures", sandbox_id(sb));
        e2b_answer_error(req, &err);
        return;
    }
    request_own(req, m, on_over);
}

void handle_envd_metrics(struct request *req)
{
    struct sandbox *sb;
    struct console *c = envd_console(req, &sb);

    if (c)
        measure_start(req, sb, c, /* envd= */ true);
}

void handle_e2b_metrics(struct request *req)
{
    struct error err = {0};
    struct sandbox *sb = access_sandbox(req, e2b_of(req)->core, request_param(req, 0), &err);
    struct console *c;

    if (!sb) {
        e2b_answer_error(req, &err);
        return;
    }
    /* One that sleeps has no figures, and is not woken for them. */
    c = sandbox_console(sb, NULL);
    if (c)
        measure_start(req, sb, c, /* envd= */ false);
    else
        request_answer(req, 200, json_array());
}

/* ---- logs: what the guest wrote to its serial console ---- */

static void answer_logs(struct request *req, bool v2)
{
    struct error err = {0};
    struct sandbox *sb = access_sandbox(req, e2b_of(req)->core, request_param(req, 0), &err);
    _cleanup_free_ char *data = sb ? malloc(LOG_MAX + 1) : NULL;
    json_t *lines = json_array(), *entries = json_array();
    char now[40];
    ssize_t size;

    if (!sb) {
        json_decref(lines);
        json_decref(entries);
        e2b_answer_error(req, &err);
        return;
    }
    clock_format_wall(clock_wall_usec(), now, sizeof(now));
    size = data ? file_read_tail(sandbox_log_path(sb), data, LOG_MAX) : 0;
    if (size > 0)
        data[size] = '\0';
    for (char *p = data; size > 0 && *p && json_array_size(lines) < LOG_LINES_MAX;) {
        size_t length = strcspn(p, "\r\n");
        char *next = p + length + strspn(p + length, "\r\n");

        p[length] = '\0';
        if (length > 0) {
            (void)json_array_append_new(
                lines, json_pack("{s:s, s:o}", "timestamp", now, "line", json_text(p)));
            (void)json_array_append_new(entries, json_pack("{s:s, s:s, s:o, s:{}}", "timestamp",
                                                           now, "level", "info", "message",
                                                           json_text(p), "fields"));
        }
        p = next;
    }
    if (v2) {
        json_decref(lines);
        request_answer(req, 200, json_pack("{s:o}", "logs", entries));
    } else {
        request_answer(req, 200, json_pack("{s:o, s:o}", "logs", lines, "logEntries", entries));
    }
}

void handle_e2b_logs(struct request *req)
{
    answer_logs(req, /* v2= */ false);
}

void handle_e2b_logs_v2(struct request *req)
{
    answer_logs(req, /* v2= */ true);
}
