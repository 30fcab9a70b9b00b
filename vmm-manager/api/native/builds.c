#include <stdlib.h>
#include <string.h>

#include "api/native/handlers.h"
#include "api/native/native.h"
#include "base/strv.h"
#include "core/build.h"
#include "model/text.h"
#include "oci/reference.h"

/*
 * A build: the context is the body, what happens is told line by line. Output of commands waits for
 * its reader: the guest may send on only when it was taken, and no more than this can come of it.
 */
#define BUILD_STREAM_MAX (8u * 1024u * 1024u)

struct build_request {
    struct request *req; /* weak */
    struct build *build; /* owned */
    bool failed;         /* the answer says why */
    size_t unread[3];    /* bytes of output that the client has not taken */
};

/* ---- what is told ---- */

static void tell(struct build_request *r, const char *key, json_t *value_consume)
{
    (void)request_stream_line(r->req, json_pack("{s:o}", key, value_consume));
}

static void on_step(size_t index, size_t total, unsigned line, const char *text, void *userdata)
{
    tell(userdata, "step",
         json_pack("{s:I, s:I, s:I, s:o}", "index", (json_int_t)index, "total", (json_int_t)total,
                   "line", (json_int_t)line, "text", json_text(text)));
}

static void on_step_done(size_t index, bool cached, uint64_t duration_usec, void *userdata)
{
    tell(userdata, "step_done",
         json_pack("{s:I, s:b, s:I}", "index", (json_int_t)index, "cached", cached, "duration_ms",
                   (json_int_t)(duration_usec / 1000)));
}

static void on_progress(const char *what, int percent, void *userdata)
{
    struct build_request *r = userdata;
    json_t *o;

    /* A client that does not read misses progress, not the rest. */
    if (request_stream_room(r->req) < BUILD_STREAM_MAX / 2)
        return;
    o = json_pack("{s:o}", "step", json_text(what));
    if (o && percent >= 0)
        (void)json_object_set_new(o, "percent", json_integer(percent));
    tell(r, "progress", o);
}

static void on_warning(const char *text, void *userdata)
{
    tell(userdata, "warning", json_text(text));
}

static void on_output(int stream, const uint8_t *data, size_t size, void *userdata)
{
    struct build_request *r = userdata;

    r->unread[stream] += size;
    tell(r, stream == 1 ? "stdout" : "stderr", json_bytes(data, size));
}

/* All of it is with the client when the buffer is nearly empty. */
static void on_drained(void *state, size_t size)
{
    struct build_request *r = state;

    (void)size;
    if (!r->build || request_stream_room(r->req) < BUILD_STREAM_MAX - 65536u)
        return;
    for (int i = 1; i < 3; i++) {
        size_t unread = r->unread[i];

        r->unread[i] = 0;
        if (unread > 0)
            build_output_consumed(r->build, i, unread);
    }
}

static json_t *image_line(const struct image *image)
{
    return json_pack("{s:s, s:s, s:I, s:I}", "name", image->name, "sha256", image->sha256,
                     "size_bytes", (json_int_t)image->size_bytes, "layers",
                     (json_int_t)image->n_layers);
}

static void on_done(const struct image *image, const struct error *err, void *userdata)
{
    struct build_request *r = userdata;
    json_t *last = err ? json_pack("{s:o}", "error", error_to_json(err))
                       : json_pack("{s:o}", "image", image_line(image));

    request_stream_end(r->req, request_stream_line(r->req, last) >= 0);
}

/* ---- the context ---- */

static void refuse(struct build_request *r, const struct error *err)
{
    r->failed = true;
    r->build = build_free(r->build);
    request_answer_error(r->req, err);
}

static size_t on_body(void *state, const uint8_t *data, size_t size)
{
    struct build_request *r = state;
    struct error err = {0};

    if (!r->failed && build_context_write(r->build, data, size, &err) < 0)
        refuse(r, &err);
    return size;
}

static void on_body_end(void *state)
{
    struct build_request *r = state;
    struct error err = {0};

    if (r->failed)
        return;
    if (build_context_end(r->build, &err) < 0)
        refuse(r, &err);
    else
        request_stream_begin(r->req, "application/x-ndjson", BUILD_STREAM_MAX, on_drained);
}

static void on_over(void *state, enum request_end why)
{
    struct build_request *r = state;

    (void)why;
    r->build = build_free(r->build);
    free(r);
}

/* ---- what is asked for ---- */

struct build_body {
    char *name, *dockerfile, *target, *platform, *backend;
    char **args;
    bool no_cache;
    uint32_t cpus, memory_mib, disk_mib, run_timeout_ms;
};

static void body_done(struct build_body *body)
{
    free(body->name);
    free(body->dockerfile);
    free(body->target);
    free(body->platform);
    free(body->backend);
    (void)strv_free(body->args);
}

#define BODY(key, type, min, max)                                                                  \
    {                                                                                              \
#key, type, offsetof(struct build_body, key), min, max, false                              \
    }

static int decode(struct request *req, struct build_body *body, struct error *err)
{
    static const struct field fields[] = {
        BODY(name, FIELD_STRING, 1, REFERENCE_SIZE - 1),
        BODY(dockerfile, FIELD_STRING, 1, 4095),
        BODY(target, FIELD_STRING, 1, 255),
        BODY(platform, FIELD_STRING, 1, 63),
        BODY(backend, FIELD_NAME, 1, 63),
        BODY(args, FIELD_ENV, 0, 0),
        BODY(no_cache, FIELD_BOOL, 0, 0),
        BODY(cpus, FIELD_U32, 1, SPEC_CPUS_MAX),
        BODY(memory_mib, FIELD_U32, SPEC_MEMORY_MIB_MIN, SPEC_MEMORY_MIB_MAX),
        BODY(disk_mib, FIELD_U32, SPEC_DISK_MIB_MIN, SPEC_DISK_MIB_MAX),
        BODY(run_timeout_ms, FIELD_U32, 1, BUILD_RUN_MSEC_MAX),
    };
    const char *text = NULL;
    struct reference ref;
    json_t *json;
    int r = request_query(req, "options", &text, err);

    if (r < 0 || !text)
        return r;
    json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(json)) {
        json_decref(json);
        return error_set(err, EINVAL, "'options': expected a JSON object");
    }
    r = fields_decode(json, fields, ARRAY_SIZE(fields), body, err);
    json_decref(json);
    if (r >= 0 && body->name && !name_is_valid(body->name))
        r = reference_parse(body->name, &ref, err);
    return r;
}

static int start(struct build_request *r, const struct build_body *body, struct error *err)
{
    static const struct build_callbacks callbacks = {.on_step = on_step,
                                                     .on_step_done = on_step_done,
                                                     .on_progress = on_progress,
                                                     .on_warning = on_warning,
                                                     .on_output = on_output,
                                                     .on_done = on_done};
    struct build_options options = {.name = body->name,
                                    .dockerfile = body->dockerfile,
                                    .target = body->target,
                                    .platform = body->platform,
                                    .args = body->args,
                                    .no_cache = body->no_cache,
                                    .run_timeout_msec = body->run_timeout_ms};
    struct sandbox_spec machine;
    int result;

    sandbox_spec_init(&machine);
    machine.cpus = body->cpus ? body->cpus : machine.cpus;
    machine.memory_mib = body->memory_mib ? body->memory_mib : machine.memory_mib;
    machine.disk_mib = body->disk_mib ? body->disk_mib : machine.disk_mib;
    result = string_set(&machine.backend, body->backend);
    options.machine = &machine;
    if (result >= 0)
        result = core_build(native_of(r->req)->core, &options, &callbacks, r, &r->build, err);
    sandbox_spec_done(&machine);
    return error_fill(err, result, "build");
}

void handle_image_build(struct request *req)
{
    static const struct request_body_ops ops = {.data = on_body, .end = on_body_end};
    struct build_request *r = calloc(1, sizeof(*r));
    struct build_body body = {0};
    struct error err = {0};
    int result = r ? decode(req, &body, &err) : error_set(&err, ENOMEM, "build: out of memory");

    if (result >= 0) {
        r->req = req;
        result = start(r, &body, &err);
    }
    body_done(&body);
    if (result < 0) {
        free(r);
        request_answer_error(req, &err);
        return;
    }
    request_own(req, r, on_over);
    request_body_begin(req, &ops);
}
