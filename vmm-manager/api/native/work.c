#include "api/native/work.h"

#include <stdlib.h>
#include <string.h>

static void on_over(void *state, enum request_end why)
{
    struct work *w = state;

    (void)why;
    w->req = NULL;
    if (w->fork) /* nobody got the ids: without this they would live on unknown */
        core_fork_cancel(w->fork);
    if (w->wait || w->fork) { /* no call comes any more */
        w->wait = sandbox_wait_free(w->wait);
        free(w);
    }
}

static bool accepts_lines(struct request *req)
{
    const char *accept = request_header(req, "Accept");

    return accept && strstr(accept, "application/x-ndjson");
}

struct work *work_new(struct request *req, const char *key, unsigned status)
{
    struct work *w = calloc(1, sizeof(*w));
    struct error err = {0};

    if (!w) {
        (void)error_set(&err, ENOMEM, "out of memory");
        request_answer_error(req, &err);
        return NULL;
    }
    w->req = req;
    w->key = key;
    w->status = status;
    w->lines = accepts_lines(req);
    request_own(req, w, on_over);
    if (w->lines)
        request_stream_begin(req, "application/x-ndjson", NDJSON_MAX, NULL);
    return w;
}

void work_progress(const char *step, int percent, void *userdata)
{
    struct work *w = userdata;
    json_t *o;

    /* A client that does not read misses progress, not the result. */
    if (!w->req || !w->lines || request_stream_room(w->req) < NDJSON_MAX / 2)
        return;
    o = json_pack("{s:s}", "step", step);
    if (o && percent >= 0)
        (void)json_object_set_new(o, "percent", json_integer(percent));
    (void)request_stream_line(w->req, json_pack("{s:o}", "progress", o));
}

void work_done(json_t *result_consume, const struct error *err, void *userdata)
{
    struct work *w = userdata;
    struct request *req = w->req;
    json_t *last = result_consume;
    int r;

    w->wait = sandbox_wait_free(w->wait);
    if (!req) {
        json_decref(result_consume);
        free(w);
        return;
    }
    request_own(req, NULL, NULL);
    if (w->lines) {
        if (err)
            last = json_pack("{s:o}", "error", error_to_json(err));
        else if (w->key)
            last = json_pack("{s:o}", w->key, result_consume);
        r = request_stream_line(req, last);
        request_stream_end(req, r >= 0);
    } else if (err) {
        json_decref(result_consume);
        request_answer_error(req, err);
    } else if (!result_consume) {
        request_answer_empty(req, 204);
    } else {
        request_answer(req, w->status, result_consume);
    }
    free(w);
}

void work_sandbox_done(struct sandbox *sb, const struct error *err, void *userdata)
{
    work_done(sb && !err ? sandbox_to_json(sb) : NULL, err, userdata);
}

void work_fail(struct work *w, const struct error *err)
{
    work_done(NULL, err, w);
}

struct core_call work_call(struct work *w)
{
    return (struct core_call){.on_progress = work_progress, .on_done = work_done, .userdata = w};
}
