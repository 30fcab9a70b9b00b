#include <stdlib.h>

#include "api/front/touch.h"
#include "api/native/handlers.h"
#include "api/native/work.h"

/* ---- fork ---- */

struct fork_body {
    uint32_t count;
    char *name, *from;
};

static const struct field fork_fields[] = {
    {"count", FIELD_U32, offsetof(struct fork_body, count), 1, FORK_CHILDREN_MAX, false},
    {"name", FIELD_NAME, offsetof(struct fork_body, name), 1, 63, false},
    {"from", FIELD_STRING, offsetof(struct fork_body, from), 1, 64, false},
};

static int admit(struct sandbox_spec *spec, uint32_t count, void *userdata, struct error *err)
{
    const struct work *w = userdata;

    if (!w->req)
        return error_set_code(err, ERR_CANCELLED, "fork: nobody waits any more");
    return access_admit(w->req, native_of(w->req)->core, spec, count, err);
}

static void fork_with(struct request *req, struct fork_options *options)
{
    struct work *w = work_new(req, NULL, 201);
    struct error err = {0};
    struct core_call call;
    int r;

    if (!w)
        return;
    options->tenant = access_tenant(req);
    options->admit = admit;
    call = work_call(w);
    r = core_fork(native_of(req)->core, options, &call, &w->fork, &err);
    if (r < 0)
        work_fail(w, &err);
}

static void fork_of(struct request *req, struct sandbox *parent, const char *snapshot)
{
    struct fork_body body = {.count = 1};
    struct error err = {0};

    if (native_decode(req, fork_fields, ARRAY_SIZE(fork_fields), &body)) {
        struct fork_options options = {
            .parent = parent,
            .snapshot = snapshot ? snapshot : body.from,
            .count = body.count,
            .name = body.name,
        };
        if (snapshot && body.from) {
            (void)error_set(&err, EINVAL, "'from': the path names the snapshot");
            request_answer_error(req, &err);
        } else {
            fork_with(req, &options);
        }
    }
    free(body.name);
    free(body.from);
}

static void fork_now(struct request *req)
{
    struct sandbox *sb = native_sandbox(req);

    if (sb)
        fork_of(req, sb, NULL);
}

void handle_fork(struct request *req)
{
    struct sandbox *sb = native_sandbox(req);

    if (!sb)
        return;
    /* One that sleeps is forked asleep, and so is a snapshot. */
    if (sandbox_get_state(sb) == SANDBOX_PAUSED || json_object_get(request_json(req), "from"))
        fork_of(req, sb, NULL);
    else
        touch_then(req, sb, fork_now);
}

void handle_snapshot_fork(struct request *req)
{
    fork_of(req, NULL, request_param(req, 0));
}

/* ---- checkpoints ---- */

void handle_checkpoints(struct request *req)
{
    struct sandbox *sb = native_sandbox(req);
    struct work *w = sb ? work_new(req, NULL, 200) : NULL;
    struct error err = {0};

    if (!w)
        return;
    const struct core_call call = work_call(w);
    if (sandbox_checkpoints(sb, &call, &err) < 0)
        work_fail(w, &err);
}

void handle_checkpoint(struct request *req)
{
    struct body {
        char *name;
    } body = {0};
    static const struct field fields[] = {{"name", FIELD_NAME, 0, 1, 63, false}};
    struct sandbox *sb = native_sandbox(req);
    struct error err = {0};

    if (!sb)
        return;
    if (native_decode(req, fields, ARRAY_SIZE(fields), &body)) {
        struct work *w = work_new(req, "snapshot", 201);

        if (w) {
            const struct core_call call = work_call(w);
            if (sandbox_checkpoint(sb, body.name, &call, &err) < 0)
                work_fail(w, &err);
        }
    }
    free(body.name);
}

void handle_rollback(struct request *req)
{
    struct body {
        char *checkpoint;
    } body = {0};
    static const struct field fields[] = {{"checkpoint", FIELD_STRING, 0, 1, 64, true}};
    struct sandbox *sb = native_sandbox(req);
    struct error err = {0};

    if (!sb)
        return;
    if (native_decode(req, fields, ARRAY_SIZE(fields), &body)) {
        struct work *w = work_new(req, "sandbox", 200);

        if (w) {
            const struct core_call call = work_call(w);
            if (sandbox_rollback(sb, body.checkpoint, &call, &err) < 0)
                work_fail(w, &err);
        }
    }
    free(body.checkpoint);
}

/* ---- all of them ---- */

void handle_snapshots(struct request *req)
{
    struct work *w = work_new(req, NULL, 200);
    struct error err = {0};

    if (!w)
        return;
    const struct core_call call = work_call(w);
    if (core_snapshots(native_of(req)->core, access_tenant(req), &call, &err) < 0)
        work_fail(w, &err);
}

typedef int (*snapshot_call_fn)(struct core *core, const char *tenant, const char *id,
                                const struct core_call *call, struct error *err);

static void call_snapshot(struct request *req, snapshot_call_fn fn, const char *key,
                          unsigned status)
{
    struct work *w = work_new(req, key, status);
    struct error err = {0};

    if (!w)
        return;
    const struct core_call call = work_call(w);
    if (fn(native_of(req)->core, access_tenant(req), request_param(req, 0), &call, &err) < 0)
        work_fail(w, &err);
}

void handle_snapshot_remove(struct request *req)
{
    call_snapshot(req, core_snapshot_remove, NULL, 204);
}

void handle_snapshot_verify(struct request *req)
{
    call_snapshot(req, core_snapshot_verify, "snapshot", 200);
}

void handle_snapshot_repair(struct request *req)
{
    call_snapshot(req, core_snapshot_repair, "snapshot", 200);
}
