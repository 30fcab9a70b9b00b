#include <stdlib.h>
#include <string.h>

#include "api/e2b/create.h"
#include "api/e2b/handlers.h"
#include "api/e2b/object.h"
#include "api/front/access.h"
#include "base/strv.h"
#include "model/text.h"

/* Snapshots, and sandboxes made of one or of another sandbox. */

/* A call of the core that cannot be taken back: it outlives a request that goes away. */
struct call {
    struct request *req; /* weak; NULL: gone */
    void (*answer)(struct request *req, const json_t *result);
    struct fork *fork; /* weak; only of forks, which can be */
};

static void on_over(void *state, enum request_end why)
{
    struct call *call = state;

    (void)why;
    call->req = NULL;
    if (call->fork) {
        core_fork_cancel(call->fork);
        free(call);
    }
}

static void on_done(json_t *result, const struct error *err, void *userdata)
{
    struct call *call = userdata;
    struct request *req = call->req;

    if (req) {
        request_own(req, NULL, NULL);
        if (err)
            e2b_answer_error(req, err);
        else
            call->answer(req, result);
    }
    json_decref(result);
    free(call);
}

static struct call *call_new(struct request *req,
                             void (*answer)(struct request *req, const json_t *result),
                             struct core_call *ret)
{
    struct call *call = calloc(1, sizeof(*call));

    if (!call) {
        e2b_answer_status(req, 503, "out of memory");
        return NULL;
    }
    call->req = req;
    call->answer = answer;
    *ret = (struct core_call){.on_done = on_done, .userdata = call};
    request_own(req, call, on_over);
    return call;
}

static void call_check(struct call *call, int r, const struct error *err)
{
    struct request *req = call->req;

    if (r >= 0)
        return;
    request_own(req, NULL, NULL);
    free(call);
    e2b_answer_error(req, err);
}

static const char *tenant_of(struct request *req)
{
    return request_principal(req)->tenant;
}

/* ---- snapshots ---- */

static json_t *snapshot_json(const json_t *snapshot)
{
    const char *name = json_string_value(json_object_get(snapshot, "name"));
    json_t *names = json_array();

    if (name && name[0])
        (void)json_array_append_new(names, json_string(name));
    return json_pack("{s:O, s:o}", "snapshotID", json_object_get(snapshot, "id"), "names", names);
}

static void answer_snapshot(struct request *req, const json_t *result)
{
    request_answer(req, 201, snapshot_json(result));
}

void handle_e2b_snapshot(struct request *req)
{
    struct error err = {0};
    struct sandbox *sb = access_sandbox(req, e2b_of(req)->core, request_param(req, 0), &err);
    const json_t *name = json_object_get(request_json(req), "name");
    struct core_call core_call;
    struct call *call;

    if (!sb) {
        e2b_answer_error(req, &err);
        return;
    }
    if (name && !json_is_null(name) && !json_is_string(name)) {
        e2b_answer_status(req, 400, "'name': not a text");
        return;
    }
    call = call_new(req, answer_snapshot, &core_call);
    if (call)
        call_check(call, sandbox_checkpoint(sb, json_string_value(name), &core_call, &err), &err);
}

static void answer_snapshots(struct request *req, const json_t *result)
{
    const char *sandbox = NULL, *name = NULL;
    json_t *list, *snapshot;
    size_t i;

    if (!e2b_query(req, "sandboxID", &sandbox) || !e2b_query(req, "name", &name))
        return;
    list = json_array();
    json_array_foreach(json_object_get(result, "snapshots"), i, snapshot)
    {
        const char *of = json_string_value(json_object_get(snapshot, "sandbox"));
        const char *called = json_string_value(json_object_get(snapshot, "name"));
        const char *kind = json_string_value(json_object_get(snapshot, "kind"));

        if ((kind && strcmp(kind, "checkpoint") != 0) ||
            (sandbox && (!of || strcmp(of, sandbox) != 0)) ||
            (name && (!called || strcmp(called, name) != 0)))
            continue;
        (void)json_array_append_new(list, snapshot_json(snapshot));
    }
    request_answer(req, 200, list);
}

void handle_e2b_snapshots(struct request *req)
{
    struct core_call core_call;
    struct call *call = call_new(req, answer_snapshots, &core_call);
    struct error err = {0};

    if (call)
        call_check(call, core_snapshots(e2b_of(req)->core, tenant_of(req), &core_call, &err), &err);
}

static void answer_deleted(struct request *req, const json_t *result)
{
    (void)result;
    request_answer_empty(req, 204);
}

/* A snapshot, or a template that was built. */
void handle_e2b_template_delete(struct request *req)
{
    struct core_call core_call;
    struct call *call;
    struct error err = {0};
    int r = e2b_is_home(req) ? e2b_template_delete(e2b_of(req), request_param(req, 0), &err) : 0;

    if (r < 0) {
        e2b_answer_error(req, &err);
        return;
    }
    if (r > 0) {
        request_answer_empty(req, 204);
        return;
    }
    call = call_new(req, answer_deleted, &core_call);
    if (call)
        call_check(call,
                   core_snapshot_remove(e2b_of(req)->core, tenant_of(req), request_param(req, 0),
                                        &core_call, &err),
                   &err);
}

/* ---- fork ---- */

static int on_admit(struct sandbox_spec *spec, uint32_t count, void *userdata, struct error *err)
{
    struct call *call = userdata;

    return access_admit(call->req, e2b_of(call->req)->core, spec, count, err);
}

static struct sandbox *child_of(struct request *req, const json_t *child)
{
    const char *id = json_string_value(json_object_get(child, "id"));

    return id ? sandbox_find(e2b_of(req)->core, id, NULL) : NULL;
}

static void answer_children(struct request *req, const json_t *result)
{
    json_t *list = json_array(), *child;
    uint32_t timeout = 0;
    size_t i;

    (void)e2b_body_seconds(req, "timeout", 0, &timeout);
    json_array_foreach(json_object_get(result, "sandboxes"), i, child)
    {
        struct sandbox *sb = child_of(req, child);

        if (sb && timeout > 0)
            (void)sandbox_set_timeout(sb, timeout, NULL);
        if (sb)
            (void)json_array_append_new(
                list, json_pack("{s:o}", "sandbox", e2b_sandbox_json(e2b_of(req)->core, sb)));
    }
    request_answer(req, 201, list);
}

static void fork_start(struct request *req, const struct fork_options *options,
                       void (*answer)(struct request *req, const json_t *result))
{
    struct fork_options with = *options;
    struct core_call core_call;
    struct call *call = call_new(req, answer, &core_call);
    struct error err = {0};

    if (!call)
        return;
    with.admit = on_admit;
    call_check(call, core_fork(e2b_of(req)->core, &with, &core_call, &call->fork, &err), &err);
}

void handle_e2b_fork(struct request *req)
{
    struct error err = {0};
    struct fork_options options = {.tenant = tenant_of(req), .count = 1};
    const json_t *count = json_object_get(request_json(req), "count");
    uint32_t timeout;

    options.parent = access_sandbox(req, e2b_of(req)->core, request_param(req, 0), &err);
    if (!options.parent) {
        e2b_answer_error(req, &err);
        return;
    }
    if (!e2b_body_seconds(req, "timeout", 0, &timeout))
        return;
    if (count && (!json_is_integer(count) || json_integer_value(count) < 1 ||
                  json_integer_value(count) > FORK_CHILDREN_MAX)) {
        e2b_answer_status(req, 400, "'count': not a number of 1 to 256");
        return;
    }
    if (count)
        options.count = (uint32_t)json_integer_value(count);
    fork_start(req, &options, answer_children);
}

/* ---- a new sandbox of a snapshot ---- */

static void answer_created(struct request *req, const json_t *result)
{
    struct sandbox *sb = child_of(req, json_array_get(json_object_get(result, "sandboxes"), 0));
    uint32_t timeout = 0;

    if (!sb) {
        e2b_answer_status(req, 500, "the sandbox is gone");
        return;
    }
    (void)e2b_body_seconds(req, "timeout", e2b_default_timeout(req), &timeout);
    (void)sandbox_set_timeout(sb, timeout, NULL);
    request_answer(req, 201, e2b_sandbox_json(e2b_of(req)->core, sb));
}

void e2b_create_from_snapshot(struct request *req, const char *snapshot)
{
    const struct fork_options options = {
        .snapshot = snapshot,
        .tenant = tenant_of(req),
        .count = 1,
    };

    fork_start(req, &options, answer_created);
}
