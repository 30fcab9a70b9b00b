#include "cli/bench.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <poll.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/strv.h"
#include "cli/client.h"
#include "cli/run-guard.h"
#include "cli/stream-frame.h"
#include "cli/verbs.h"

#define POOL_LOOK_USEC (50 * USEC_PER_MSEC)
#define POOL_WAIT_USEC (300 * USEC_PER_SEC)
#define OUTPUT_WAIT_USEC (120 * USEC_PER_SEC)

/* ---- rows and clock ---- */

struct bench_row *bench_add_row(struct bench_group *g, const char *unit, int against,
                                const char *format, ...)
{
    struct bench_row *row = &g->rows[g->n_rows];
    va_list args;

    if (g->n_rows >= BENCH_ROWS_MAX)
        return NULL;
    *row = (struct bench_row){.unit = unit, .against = against};
    va_start(args, format);
    (void)vsnprintf(row->name, sizeof(row->name), format, args);
    va_end(args);
    g->n_rows++;
    return row;
}

int bench_sample(struct bench_row *row, double value, struct error *err)
{
    int r = row ? samples_add(&row->samples, value) : -ENOBUFS;

    return r < 0 ? error_set(err, -r, "a value of '%s': %s", row ? row->name : "?", errno_text(-r))
                 : 0;
}

void bench_progress(struct bench *b, const char *what, uint64_t done, uint64_t total)
{
    progress_update(&b->cli->progress, what, total > 0 ? (int)(done * 100 / total) : -1);
    progress_tick(&b->cli->progress);
}

double bench_now_ms(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

/* ---- requests ---- */

int bench_ask(struct bench *b, const char *method, const char *path, const char *body,
              double *ret_ms, json_t **ret, struct error *err)
{
    _cleanup_buf_ struct buf answer = {0};
    struct http_request request = {.method = method,
                                   .target = path,
                                   .body = body,
                                   .body_size = body ? strlen(body) : 0,
                                   .silence_usec = CLIENT_WORK_SILENCE_USEC};
    double start;
    int r;

    if (!path)
        return error_set(err, ENOMEM, "out of memory");
    buf_init(&answer, CLIENT_BODY_MAX);
    start = bench_now_ms();
    r = client_open(b->cli, &request, err);
    if (r >= 0)
        r = http_read_all(&b->cli->http, &answer, err);
    if (r < 0)
        return r;
    if (ret_ms)
        *ret_ms = bench_now_ms() - start;
    if (!ret)
        return 0;
    *ret = json_loadb(buf_string(&answer), answer.size, 0, NULL);
    return *ret ? 0 : error_set(err, EPROTO, "the daemon's answer to '%s' is not JSON", path);
}

int bench_empty(struct bench *b, struct bench_row *row, struct error *err)
{
    double took;
    int r = bench_ask(b, "GET", "/v1/version", NULL, &took, NULL, err);

    return r < 0 ? r : bench_sample(row, took, err);
}

void bench_name(struct bench *b, char *name, size_t size)
{
    (void)snprintf(name, size, "%s%u", b->prefix, b->n_names++);
}

int bench_create(struct bench *b, double *ret_ms, json_t **ret, struct error *err)
{
    _cleanup_free_ char *text = NULL;
    json_auto_t *spec = NULL;
    char name[48];

    bench_name(b, name, sizeof(name));
    spec = verb_spec(b->cli, name, err);
    text = spec ? json_dumps(spec, JSON_COMPACT) : NULL;
    if (!text)
        return error_fill(err, -ENOMEM, "out of memory");
    return bench_ask(b, "POST", "/v1/sandboxes", text, ret_ms, ret, err);
}

static int remove_id(struct bench *b, const char *id, struct error *err)
{
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}", id);

    return client_call(b->cli, "DELETE", path, NULL, NULL, err);
}

int bench_remove(struct bench *b, const json_t *sandbox, struct error *err)
{
    return remove_id(b, client_string(sandbox, "id"), err);
}

int bench_remove_all(struct bench *b, const json_t *sandboxes, struct error *err)
{
    json_t *sandbox;
    size_t i;
    int r = 0;

    json_array_foreach(sandboxes, i, sandbox)
    {
        if (r >= 0)
            r = bench_remove(b, sandbox, err);
    }
    return r;
}

int bench_shell(struct bench *b, const char *script, struct error *err)
{
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/exec", b->id);
    json_auto_t *body =
        json_pack("{s:[s,s,s], s:i}", "argv", "sh", "-c", script, "timeout_ms", 300000);
    json_auto_t *result = NULL;
    int r = client_call_long(b->cli, "POST", path, body, CLIENT_WORK_SILENCE_USEC, &result, err);

    if (r < 0)
        return r;
    if (json_integer_value(json_object_get(result, "exit_code")) != 0)
        return error_set(err, EIO, "the guest cannot run '%s': %.200s", script,
                         client_string(result, "stderr"));
    return 0;
}

/* ---- a stream ---- */

/* The next frame, of which nothing but the kind is looked at; ERROR is one. */
static int next_frame(struct bench *b, int fd, struct buf *in, enum stream_type *ret,
                      struct error *err)
{
    struct stream_header header = {0};

    for (;;) {
        uint8_t *room;
        ssize_t n;
        int r;

        if (in->size >= STREAM_HEADER_SIZE) {
            r = stream_header_decode(buf_data(in), &header, err);
            if (r < 0)
                return r;
            if (in->size >= STREAM_HEADER_SIZE + header.size)
                break;
        }
        r = wait_fd(&b->cli->wait, fd, POLLIN, wait_deadline(OUTPUT_WAIT_USEC));
        if (r >= 0)
            r = buf_reserve(in, STREAM_PAYLOAD_MAX, &room);
        if (r < 0)
            return error_set(err, -r, "the output of a command: %s", errno_text(-r));
        n = read(fd, room, STREAM_PAYLOAD_MAX);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return error_set(err, ECONNRESET, "the stream of a command ended too early");
        if (n > 0)
            buf_commit(in, (size_t)n);
    }
    *ret = header.type;
    if (header.type == STREAM_ERROR) {
        json_auto_t *json =
            json_loadb((const char *)buf_data(in) + STREAM_HEADER_SIZE, header.size, 0, NULL);
        return client_error(json, err);
    }
    buf_consume(in, STREAM_HEADER_SIZE + header.size);
    return 0;
}

int bench_first_output(struct bench *b, const char *id, double *ret_ms, struct error *err)
{
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/exec", id);
    json_auto_t *body = json_pack("{s:[s,s]}", "argv", "echo", "x");
    _cleanup_buf_ struct buf rest = {0}, in = {0};
    _cleanup_close_ int fd = -EBADF;
    enum stream_type type = STREAM_STARTED;
    int r;

    if (!path || !body)
        return error_set(err, ENOMEM, "out of memory");
    r = client_upgrade(b->cli, path, body, &fd, &rest, err);
    if (r < 0)
        return r;
    buf_init(&in, 4 * (size_t)STREAM_PAYLOAD_MAX);
    r = buf_append(&in, buf_data(&rest), rest.size);
    if (r < 0)
        return error_set(err, -r, "%s", errno_text(-r));
    *ret_ms = -1.0;
    while (r >= 0 && type != STREAM_EXIT) {
        r = next_frame(b, fd, &in, &type, err);
        if (r >= 0 && type == STREAM_STDOUT && *ret_ms < 0.0)
            *ret_ms = bench_now_ms();
    }
    if (r >= 0 && *ret_ms < 0.0)
        return error_set(err, EIO, "'echo x' printed nothing");
    return r;
}

/* ---- the pool ---- */

static int find_pool(struct cli *cli, const char *template, json_t **ret, struct error *err)
{
    json_auto_t *answer = NULL;
    json_t *pool;
    size_t i;
    int r = client_call(cli, "GET", "/v1/pools", NULL, &answer, err);

    *ret = NULL;
    json_array_foreach(json_object_get(answer, "pools"), i, pool)
    {
        if (strcmp(client_string(pool, "template"), template) == 0)
            *ret = json_incref(pool);
    }
    return r;
}

int bench_pool_wait(struct bench *b, uint64_t size, struct error *err)
{
    uint64_t until = clock_now_usec() + POOL_WAIT_USEC;

    for (;;) {
        json_auto_t *pool = NULL;
        uint64_t ready, filling;
        int r = find_pool(b->cli, b->template_id, &pool, err);

        if (r < 0)
            return r;
        ready = (uint64_t)json_integer_value(json_object_get(pool, "ready"));
        filling = (uint64_t)json_integer_value(json_object_get(pool, "filling"));
        if (size > 0 ? ready >= size : ready + filling == 0)
            return 0;
        if (clock_now_usec() >= until)
            return error_set(err, ETIMEDOUT, "the pool has %llu ready, waited for %llu",
                             (unsigned long long)ready, (unsigned long long)size);
        r = wait_fd(&b->cli->wait, -1, 0, wait_deadline(POOL_LOOK_USEC));
        if (r < 0 && r != -ETIMEDOUT)
            return error_set(err, -r, "%s", errno_text(-r));
    }
}

int bench_pool(struct bench *b, uint64_t size, struct error *err)
{
    _cleanup_free_ char *path = client_path("/v1/pools/{}", b->template_id);
    json_auto_t *body = json_pack("{s:I}", "size", (json_int_t)size);
    int r = client_call(b->cli, "PUT", path, body, NULL, err);

    return r < 0 ? r : bench_pool_wait(b, size, err);
}

/* Whether it was changed or not: the guard does not know. */
static int put_pool_back(struct bench *b, struct error *err)
{
    _cleanup_free_ char *path = client_path("/v1/pools/{}", b->template_id);
    json_auto_t *body = json_pack("{s:I}", "size", (json_int_t)b->pool_size);

    return b->pool_configured ? client_call(b->cli, "PUT", path, body, NULL, err)
                              : client_call(b->cli, "DELETE", path, NULL, NULL, err);
}

/* ---- begin and end ---- */

/* Those whose name begins with our prefix. */
static int remove_named(struct bench *b, const char *list, const char *key, const char *pattern,
                        struct error *err)
{
    json_auto_t *answer = NULL;
    json_t *item;
    size_t i;
    int r = client_call(b->cli, "GET", list, NULL, &answer, err), failed = 0;

    json_array_foreach(json_object_get(answer, key), i, item)
    {
        _cleanup_free_ char *path = NULL;

        if (!string_starts_with(client_string(item, "name"), b->prefix))
            continue;
        path = client_path(pattern, client_string(item, "id"));
        if (client_call(b->cli, "DELETE", path, NULL, NULL, err) < 0)
            failed = -1;
    }
    return r < 0 ? r : failed;
}

static int clean(struct bench *b, struct error *err)
{
    int r = remove_named(b, "/v1/sandboxes", "sandboxes", "/v1/sandboxes/{}", err);
    int s = remove_named(b, "/v1/snapshots", "snapshots", "/v1/snapshots/{}", err);
    int p = b->template_id[0] ? put_pool_back(b, err) : 0;

    return r < 0 ? r : s < 0 ? s : p;
}

static void clean_after_death(struct cli *cli, void *userdata)
{
    struct bench *b = userdata;
    struct error ignored = {0};

    b->cli = cli;
    (void)clean(b, &ignored);
}

int bench_begin(struct bench *b, struct cli *cli, struct error *err)
{
    json_auto_t *pool = NULL;
    char name[48];
    int r;

    *b = (struct bench){.cli = cli, .guard = -EBADF, .prefix = "bench-"};
    b->rounds = cli->options.rounds ? cli->options.rounds : BENCH_ROUNDS_DEFAULT;
    r = random_id(b->prefix + strlen(b->prefix), 8);
    if (r < 0)
        return error_set(err, -r, "no random numbers");
    (void)snprintf(b->prefix + strlen(b->prefix), 2, "-");
    bench_name(b, name, sizeof(name));
    r = verb_make_sandbox(cli, name, &b->sandbox, err);
    if (r < 0)
        return r;
    b->id = client_string(b->sandbox, "id");
    (void)snprintf(b->template_id, sizeof(b->template_id), "%s",
                   client_string(b->sandbox, "template"));
    b->touch_mib = MIN((uint64_t)json_integer_value(json_object_get(b->sandbox, "memory_mib")) / 4,
                       UINT64_C(100));
    r = find_pool(cli, b->template_id, &pool, err);
    b->pool_configured = json_is_true(json_object_get(pool, "configured"));
    b->pool_size = (uint64_t)json_integer_value(json_object_get(pool, "size"));
    if (r >= 0)
        b->guard = run_guard_start(cli, clean_after_death, b);
    if (r < 0)
        bench_end(b);
    return r;
}

void bench_end(struct bench *b)
{
    struct error err = {0};

    if (b->sandbox && clean(b, &err) < 0)
        cli_note(b->cli, "not all of '%s...' was removed: %s", b->prefix, err.text);
    run_guard_release(b->guard);
    b->guard = -EBADF;
    json_decref(b->sandbox);
    b->sandbox = NULL;
}
