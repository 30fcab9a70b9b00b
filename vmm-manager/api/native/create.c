#include <stdlib.h>
#include <string.h>

#include "api/native/handlers.h"
#include "api/native/native.h"
#include "api/native/once.h"
#include "base/macros.h"

/* A creation that a client waits for. */
struct creation_wait {
    struct request *req; /* weak */
    struct sandbox *sb;  /* weak, until on_done */
    struct once *once;   /* owned; NULL: the client did not ask for it */
    bool lines;          /* the answer is NDJSON */
    /* Without a request, while its client is away: owned by the list. */
    struct api_native *api;
    struct creation_wait *next;
};

static void wait_free(struct creation_wait *w)
{
    for (struct creation_wait **p = &w->api->creations; *p; p = &(*p)->next) {
        if (*p == w) {
            *p = w->next;
            break;
        }
    }
    (void)once_free(w->once);
    free(w);
}

static void on_progress(const char *step, int percent, void *userdata)
{
    struct creation_wait *w = userdata;

    if (!w->lines || !w->sb || !w->req)
        return;
    json_t *o = json_pack("{s:s, s:s}", "id", sandbox_id(w->sb), "step", step);
    if (o && percent >= 0)
        (void)json_object_set_new(o, "percent", json_integer(percent));
    /* A client that does not read misses progress, not the result. */
    if (request_stream_room(w->req) > NDJSON_MAX / 2)
        (void)request_stream_line(w->req, json_pack("{s:o}", "progress", o));
    else
        json_decref(o);
}

static void on_done(struct sandbox *sb, const struct error *err, void *userdata)
{
    struct creation_wait *w = userdata;

    json_t *json = err ? NULL : sandbox_to_json(sb);

    w->sb = NULL;
    if (json)
        native_once_done(TAKE_PTR(w->once), 201, json);
    if (!w->req) { /* it was made for a client that will ask again */
        json_decref(json);
        wait_free(w);
    } else if (w->lines) {
        json_t *last = err ? json_pack("{s:o}", "error", error_to_json(err))
                           : json_pack("{s:o}", "sandbox", json);
        int r = request_stream_line(w->req, last);
        request_stream_end(w->req, r >= 0);
    } else if (err) {
        request_answer_error(w->req, err);
    } else {
        request_answer(w->req, 201, json);
    }
}

static void on_over(void *state, enum request_end why)
{
    struct creation_wait *w = state;

    w->req = NULL;
    if (w->sb && w->once && why == REQUEST_GONE) {
        /* Goes on: the client said that it would ask again. */
        w->next = w->api->creations;
        w->api->creations = w;
        return;
    }
    if (w->sb) {
        sandbox_create_forget(w->sb, w);
        /* Nobody got its id: without this it would live on unknown. */
        if (why == REQUEST_GONE)
            (void)sandbox_remove(w->sb, NULL, NULL);
    }
    wait_free(w);
}

void creations_free(struct api_native *api)
{
    while (api->creations) {
        struct creation_wait *w = api->creations;

        if (w->sb)
            sandbox_create_forget(w->sb, w);
        wait_free(w);
    }
}

static bool accepts_lines(struct request *req)
{
    const char *accept = request_header(req, "Accept");

    return accept && strstr(accept, "application/x-ndjson");
}

void handle_sandbox_create(struct request *req)
{
    static const struct sandbox_create_callbacks callbacks = {on_progress, on_done};
    struct sandbox_spec spec;
    struct error err = {0};

    struct once *once;
    if (!native_once(req, &once))
        return;
    struct creation_wait *w = calloc(1, sizeof(*w));
    if (!w) {
        (void)once_free(once);
        error_set(&err, ENOMEM, "create: out of memory");
        request_answer_error(req, &err);
        return;
    }
    w->req = req;
    w->once = once;
    w->api = native_of(req);
    w->lines = accepts_lines(req);
    sandbox_spec_init(&spec);
    int r = sandbox_spec_from_json(request_json(req), &spec, &err);
    if (r >= 0)
        r = access_admit(req, native_of(req)->core, &spec, 1, &err);
    if (r >= 0)
        r = sandbox_claim_or_create(native_of(req)->core, &spec, &callbacks, w, &w->sb, &err);
    sandbox_spec_done(&spec);
    if (r < 0) {
        wait_free(w);
        request_answer_error(req, &err);
        return;
    }
    if (r == 0)
        request_own(req, w, on_over);
    if (w->lines)
        request_stream_begin(req, "application/x-ndjson", NDJSON_MAX, NULL);
    if (r > 0) {
        on_done(w->sb, NULL, w);
        wait_free(w);
    }
}
