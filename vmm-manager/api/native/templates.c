#include <stdlib.h>
#include <string.h>

#include "api/native/handlers.h"
#include "api/native/native.h"
#include "api/native/page.h"
#include "core/recipe.h"
#include "model/text.h"

void handle_templates(struct request *req)
{
    static const char *const order[] = {"created", "id", NULL};

    native_answer_list(req, "templates", core_templates_to_json(native_of(req)->core), order);
}

void handle_template(struct request *req)
{
    struct error err = {0};
    json_t *json = core_template_to_json(native_of(req)->core, request_param(req, 0), &err);

    if (json)
        request_answer(req, 200, json);
    else
        request_answer_error(req, &err);
}

void handle_template_remove(struct request *req)
{
    struct error err = {0};

    if (core_template_remove(native_of(req)->core, request_param(req, 0), &err) < 0)
        request_answer_error(req, &err);
    else
        request_answer_empty(req, 204);
}

/* ---- build ---- */

struct build_wait {
    struct request *req;        /* weak */
    struct template_make *make; /* owned */
};

static void tell(struct build_wait *w, const char *key, json_t *value_consume)
{
    /* A client that does not read misses progress, not the result. */
    if (request_stream_room(w->req) > NDJSON_MAX / 2)
        (void)request_stream_line(w->req, json_pack("{s:o}", key, value_consume));
    else
        json_decref(value_consume);
}

static void on_progress(const char *step, int percent, void *userdata)
{
    json_t *o = json_pack("{s:o}", "step", json_text(step));

    if (o && percent >= 0)
        (void)json_object_set_new(o, "percent", json_integer(percent));
    tell(userdata, "progress", o);
}

static void on_output(const char *text, size_t size, void *userdata)
{
    (void)size;
    tell(userdata, "output", json_text(text));
}

static void on_done(const json_t *template, const struct error *err, void *userdata)
{
    struct build_wait *w = userdata;
    json_t *last = err ? json_pack("{s:o}", "error", error_to_json(err))
                       : json_pack("{s:O}", "template", template);

    request_stream_end(w->req, request_stream_line(w->req, last) >= 0);
}

static void on_over(void *state, enum request_end why)
{
    struct build_wait *w = state;

    (void)why;
    w->make = template_make_free(w->make);
    free(w);
}

/* The part of the body that a sandbox would understand, and nothing that nobody does. */
static json_t *machine_of(const json_t *body, struct error *err)
{
    static const char *const machine[] = {"image", "backend", "cpus", "memory_mib", "disk_mib"};
    static const char *const others[] = {"name", "steps", "ready",   "ready_timeout_sec",
                                         "warm", "user",  "workdir", "env"};
    json_t *part = json_object(), *value;
    const char *key;

    json_object_foreach((json_t *)(uintptr_t)body, key, value)
    {
        bool known = false;

        for (size_t i = 0; i < ARRAY_SIZE(machine); i++) {
            if (strcmp(key, machine[i]) == 0)
                known = json_object_set(part, key, value) >= 0;
        }
        for (size_t i = 0; i < ARRAY_SIZE(others); i++)
            known = known || strcmp(key, others[i]) == 0;
        if (!known) {
            (void)error_set(err, EINVAL, "'%.64s': unknown key", key);
            json_decref(part);
            return NULL;
        }
    }
    return part;
}

static int start_build(struct build_wait *w, const json_t *body, struct error *err)
{
    static const struct template_make_callbacks callbacks = {on_progress, on_output, on_done};
    const char *name = json_string_value(json_object_get(body, "name"));
    json_t *machine = machine_of(body, err);
    struct recipe recipe = {0};
    struct sandbox_spec spec;
    int r = machine ? 0 : -EINVAL;

    sandbox_spec_init(&spec);
    if (r >= 0 && !name)
        r = error_set(err, EINVAL, "'name': expected a string");
    if (r >= 0)
        r = sandbox_spec_from_json(machine, &spec, err);
    if (r >= 0)
        r = recipe_from_json(body, &recipe, err);
    if (r >= 0)
        r = core_template_make(native_of(w->req)->core, name, &spec, &recipe, &callbacks, w,
                               &w->make, err);
    recipe_done(&recipe);
    sandbox_spec_done(&spec);
    json_decref(machine);
    return r;
}

void handle_template_build(struct request *req)
{
    struct build_wait *w = calloc(1, sizeof(*w));
    struct error err = {0};

    if (!w)
        (void)error_set(&err, ENOMEM, "template: out of memory");
    else
        w->req = req;
    if (!w || start_build(w, request_json(req), &err) < 0) {
        free(w);
        request_answer_error(req, &err);
        return;
    }
    request_own(req, w, on_over);
    request_stream_begin(req, "application/x-ndjson", NDJSON_MAX, NULL);
}
