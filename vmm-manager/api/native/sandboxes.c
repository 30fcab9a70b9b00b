#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/native/handlers.h"
#include "api/native/native.h"
#include "api/native/page.h"
#include "api/native/ticket.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/worker.h"
#include "core/host-stats.h"

#define LOG_TAIL_MAX (256u * 1024u)

static void add_sandbox(struct sandbox *sb, void *userdata)
{
    (void)json_array_append_new(userdata, sandbox_to_json(sb));
}

void handle_sandboxes(struct request *req)
{
    static const char *const order[] = {"created", "id", NULL};
    json_t *list = json_array();

    access_sandbox_each(req, native_of(req)->core, add_sandbox, list);
    native_answer_list(req, "sandboxes", list, order);
}

static void answer_sandbox(struct request *req, struct sandbox *sb)
{
    size_t size;
    const char *text = sandbox_to_text(sb, &size);

    if (text)
        request_answer_bytes(req, 200, "application/json", text, size);
    else
        request_answer(req, 200, NULL);
}

void handle_sandbox(struct request *req)
{
    struct sandbox *sb = native_sandbox(req);

    if (sb)
        answer_sandbox(req, sb);
}

static void on_removed(const struct error *err, void *userdata)
{
    ticket_answer_done(userdata, err);
}

void handle_sandbox_remove(struct request *req)
{
    struct sandbox *sb = native_sandbox(req);
    struct ticket *t = sb ? ticket_new(req, NULL) : NULL;

    if (!t)
        return;
    int r = sandbox_remove(sb, on_removed, t);
    if (r < 0) {
        struct error err = {0};
        error_fill(&err, r, "sandbox '%s': remove", request_param(req, 0));
        ticket_answer_done(t, &err);
    }
}

void handle_sandbox_logs(struct request *req)
{
    uint64_t tail = LOG_TAIL_MAX;
    struct sandbox *sb = native_sandbox(req);

    if (!sb || !native_query_u64(req, "tail", UINT64_MAX, &tail))
        return;
    tail = MIN(tail, (uint64_t)LOG_TAIL_MAX);
    _cleanup_free_ char *data = malloc(tail + 1);
    ssize_t size = data ? file_read_tail(sandbox_log_path(sb), data, tail) : -ENOMEM;
    if (size < 0) {
        struct error err = {0};
        error_fill(&err, (int)size, "sandbox '%s': read its log", sandbox_id(sb));
        request_answer_error(req, &err);
        return;
    }
    request_answer_text(req, "text/plain; charset=utf-8", data, (size_t)size);
}

/* ---- stats: the guest's own, then the host's, which the kernel takes time to count ---- */

struct stats_job {
    struct ticket *ticket; /* of the request */
    json_t *json;          /* owned */
    pid_t pid;
    struct host_memory memory;
};

static void stats_run(void *job)
{
    struct stats_job *s = job;

    (void)host_process_memory(s->pid, &s->memory);
}

static void stats_done(void *job, int cancelled)
{
    struct stats_job *s = job;
    struct request *req = ticket_take(s->ticket);

    (void)cancelled;
    if (req) {
        (void)json_object_set_new(s->json, "host",
                                  json_pack("{s:i, s:I, s:I}", "pid", (int)s->pid, "rss_bytes",
                                            (json_int_t)s->memory.rss_bytes, "pss_bytes",
                                            (json_int_t)s->memory.pss_bytes));
        request_answer(req, 200, json_incref(s->json));
    }
    json_decref(s->json);
    free(s);
}

static void on_stats(struct console *c, const struct console_stats *stats, const struct error *err,
                     void *userdata)
{
    struct request *req = ticket_take(userdata);
    struct error failure = {0};

    (void)c;
    if (!req)
        return;
    if (err) {
        request_answer_error(req, err);
        return;
    }
    /* By name again: it may be gone between the question and the answer. */
    struct sandbox *sb = native_sandbox(req);
    struct stats_job *s = sb ? calloc(1, sizeof(*s)) : NULL;
    if (!sb)
        return;
    if (s)
        s->ticket = ticket_new(req, NULL);
    if (!s || !s->ticket) {
        free(s);
        error_set(&failure, ENOMEM, "stats: out of memory");
        request_answer_error(req, &failure);
        return;
    }
    s->pid = sandbox_pid(sb);
    s->json = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:I}", "memory_total", (json_int_t)stats->memory_total,
        "memory_available", (json_int_t)stats->memory_available, "disk_total",
        (json_int_t)stats->disk_total, "disk_free", (json_int_t)stats->disk_free, "cpu_usec",
        (json_int_t)stats->cpu_usec, "cpus", (int)stats->cpus, "processes", (int)stats->processes,
        "uptime_usec", (json_int_t)stats->uptime_usec);
    int r = workers_submit(core_workers(native_of(req)->core), stats_run, stats_done, s);
    if (r < 0) {
        error_fill(&failure, r, "stats of the host");
        ticket_answer_done(s->ticket, &failure);
        json_decref(s->json);
        free(s);
    }
}

void handle_sandbox_stats(struct request *req)
{
    struct sandbox *sb;
    struct console *c = native_console(req, &sb);
    struct ticket *t = c ? ticket_new(req, sb) : NULL;

    if (!t)
        return;
    int r = console_stats(c, clock_now_usec() + CALL_TIMEOUT_USEC, on_stats, t);
    if (r < 0) {
        struct error err = {0};
        error_fill(&err, r, "sandbox '%s': ask for its figures", sandbox_id(sb));
        ticket_answer_done(t, &err);
    }
}
