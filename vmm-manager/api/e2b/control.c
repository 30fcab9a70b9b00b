#include <stdlib.h>
#include <string.h>

#include "api/e2b/create.h"
#include "api/e2b/handlers.h"
#include "api/e2b/object.h"
#include "api/e2b/template-build.h"
#include "api/front/access.h"
#include "api/front/touch.h"
#include "base/clock.h"
#include "base/strv.h"
#include "model/text.h"

/* The control plane: one sandbox at a time. */
#define TIMEOUT_V1_SEC 15u
#define TIMEOUT_V2_SEC 300u
#define CONNECT_TIMEOUT_SEC 300u

static struct sandbox *control_sandbox(struct request *req)
{
    struct error err = {0};
    struct sandbox *sb = access_sandbox(req, e2b_of(req)->core, request_param(req, 0), &err);

    if (!sb)
        e2b_answer_error(req, &err);
    return sb;
}

bool e2b_body_seconds(struct request *req, const char *key, uint32_t fallback, uint32_t *ret)
{
    const json_t *value = json_object_get(request_json(req), key);
    json_int_t n = json_integer_value(value);

    *ret = fallback;
    if (!value || json_is_null(value))
        return true;
    if (!json_is_integer(value) || n < 0 || n > (json_int_t)SPEC_TIMEOUT_SEC_MAX) {
        e2b_answer_status(req, 400, "the time-out is not a number of seconds up to 30 days");
        return false;
    }
    *ret = (uint32_t)n;
    return true;
}

/* ---- create ---- */

struct create {
    struct request *req; /* weak */
    struct sandbox *sb;  /* weak, until it is done */
};

static void on_created(struct sandbox *sb, const struct error *err, void *userdata)
{
    struct create *c = userdata;

    c->sb = NULL;
    if (err)
        e2b_answer_error(c->req, err);
    else
        request_answer(c->req, 201, e2b_sandbox_json(e2b_of(c->req)->core, sb));
}

static void on_create_over(void *state, enum request_end why)
{
    struct create *c = state;

    if (c->sb) {
        sandbox_create_forget(c->sb, c);
        /* Nobody got its id: without this it would live on unknown. */
        if (why == REQUEST_GONE)
            (void)sandbox_remove(c->sb, NULL, NULL);
    }
    free(c);
}

/* An object of strings, as "K=V". */
static int take_pairs(const json_t *object, const char *key, char ***ret, struct error *err)
{
    json_t *map = json_object_get(object, key);
    const char *name;
    json_t *value;

    if (!map || json_is_null(map))
        return 0;
    if (!json_is_object(map))
        return error_set(err, EINVAL, "'%s': not an object of texts", key);
    json_object_foreach(map, name, value)
    {
        const char *text = json_string_value(value);
        _cleanup_free_ char *pair = text ? string_printf("%s=%s", name, text) : NULL;

        if (!text || name[0] == '\0' || strchr(name, '=') ||
            strlen(text) != json_string_length(value))
            return error_set(err, EINVAL, "'%s': '%.64s' is not a name with a text", key, name);
        if (json_object_size(map) > SPEC_ENV_MAX)
            return error_set(err, E2BIG, "'%s': more than %u", key, SPEC_ENV_MAX);
        if (!pair || strv_append(ret, pair) < 0)
            return error_set(err, ENOMEM, "out of memory");
    }
    return 0;
}

bool e2b_is_home(const struct request *req)
{
    const char *tenant = access_tenant(req);

    return !tenant || strcmp(tenant, TENANT_DEFAULT) == 0;
}

/* Of a template that was built: its size, its user, its place. */
static int take_built(struct api_e2b *e2b, const char *full, struct sandbox_spec *spec,
                      struct error *err)
{
    json_t *json = core_template_to_json(e2b->core, full, err);

    if (!json)
        return -err->errnum;
    spec->cpus = (uint32_t)json_integer_value(json_object_get(json, "cpus"));
    spec->memory_mib = (uint32_t)json_integer_value(json_object_get(json, "memory_mib"));
    spec->disk_mib = (uint32_t)json_integer_value(json_object_get(json, "disk_mib"));
    json_decref(json);
    if (string_set(&spec->template, full) < 0 || string_set(&spec->image, NULL) < 0)
        return error_set(err, ENOMEM, "out of memory");
    return 0;
}

static int take_template(struct request *req, const char *text, struct sandbox_spec *spec,
                         struct error *err)
{
    char full[E2B_NAME_SIZE];

    if (e2b_is_home(req) && e2b_template_find(e2b_of(req), text, full))
        return take_built(e2b_of(req), full, spec, err);
    if (string_set(&spec->image, text) < 0 || string_set(&spec->user, E2B_DEFAULT_USER) < 0)
        return error_set(err, ENOMEM, "out of memory");
    return 0;
}

static int create_spec(struct request *req, uint32_t timeout, struct sandbox_spec *spec,
                       struct error *err)
{
    const json_t *body = request_json(req);
    const json_t *template = json_object_get(body, "templateID");
    const json_t *network = json_object_get(body, "network");
    int r;

    if (!json_is_string(template) || json_string_length(template) == 0 ||
        json_string_length(template) > 255)
        return error_set(err, EINVAL, "'templateID': is missing");
    r = take_template(req, json_string_value(template), spec, err);
    if (r < 0)
        return r;
    spec->private_ports = json_is_false(json_object_get(network, "allowPublicTraffic"));
    spec->timeout_sec = timeout;
    if (json_is_true(json_object_get(body, "autoPause")) &&
        string_set(&spec->on_timeout, "hibernate") < 0)
        return error_set(err, ENOMEM, "out of memory");
    r = take_pairs(body, "envVars", &spec->env, err);
    return r < 0 ? r : take_pairs(body, "metadata", &spec->metadata, err);
}

static void create(struct request *req, uint32_t fallback)
{
    static const struct sandbox_create_callbacks callbacks = {.on_done = on_created};
    struct core *core = e2b_of(req)->core;
    struct create *c;
    struct sandbox_spec spec;
    struct error err = {0};
    uint32_t timeout;
    int r;

    if (!e2b_body_seconds(req, "timeout", fallback, &timeout))
        return;
    c = calloc(1, sizeof(*c));
    if (!c) {
        e2b_answer_status(req, 503, "out of memory");
        return;
    }
    c->req = req;
    sandbox_spec_init(&spec);
    r = create_spec(req, timeout, &spec, &err);
    if (r >= 0)
        r = access_admit(req, core, &spec, 1, &err);
    if (r >= 0)
        r = sandbox_create(core, &spec, &callbacks, c, &c->sb, &err);
    sandbox_spec_done(&spec);
    if (r < 0) {
        free(c);
        e2b_answer_error(req, &err);
        return;
    }
    request_own(req, c, on_create_over);
}

uint32_t e2b_default_timeout(struct request *req)
{
    return strncmp(request_target(req), "/v2/", 4) == 0 ? TIMEOUT_V2_SEC : TIMEOUT_V1_SEC;
}

/* 32 hex digits, as no image is called. */
static bool is_snapshot(const char *template)
{
    return strlen(template) == 32 && strspn(template, "0123456789abcdef") == 32;
}

void handle_e2b_create(struct request *req)
{
    const char *template = json_string_value(json_object_get(request_json(req), "templateID"));

    if (template && is_snapshot(template))
        e2b_create_from_snapshot(req, template);
    else
        create(req, e2b_default_timeout(req));
}

/* ---- look ---- */

void handle_e2b_get(struct request *req)
{
    struct sandbox *sb = control_sandbox(req);

    if (sb)
        request_answer(req, 200, e2b_detail_json(e2b_of(req)->core, sb));
}

/* ---- end ---- */

struct removal {
    struct request *req; /* weak; NULL: gone */
};

static void on_removal_over(void *state, enum request_end why)
{
    struct removal *r = state;

    (void)why;
    r->req = NULL;
}

static void on_removed(const struct error *err, void *userdata)
{
    struct removal *removal = userdata;
    struct request *req = removal->req;

    if (req) {
        request_own(req, NULL, NULL);
        if (err)
            e2b_answer_error(req, err);
        else
            request_answer_empty(req, 204);
    }
    free(removal);
}

void handle_e2b_kill(struct request *req)
{
    struct sandbox *sb = control_sandbox(req);
    struct removal *removal = sb ? calloc(1, sizeof(*removal)) : NULL;
    int r;

    if (!sb)
        return;
    if (!removal) {
        e2b_answer_status(req, 503, "out of memory");
        return;
    }
    removal->req = req;
    request_own(req, removal, on_removal_over);
    r = sandbox_remove(sb, on_removed, removal);
    if (r < 0) {
        request_own(req, NULL, NULL);
        free(removal);
        e2b_answer_status(req, 500, "the sandbox cannot be removed");
    }
}

/* ---- time ---- */

static void set_timeout(struct request *req, const char *key)
{
    struct sandbox *sb = control_sandbox(req);
    struct error err = {0};
    uint32_t sec;

    if (!sb || !e2b_body_seconds(req, key, CONNECT_TIMEOUT_SEC, &sec))
        return;
    if (sandbox_set_timeout(sb, sec, &err) < 0)
        e2b_answer_error(req, &err);
    else
        request_answer_empty(req, 204);
}

void handle_e2b_timeout(struct request *req)
{
    set_timeout(req, "timeout");
}

void handle_e2b_refresh(struct request *req)
{
    set_timeout(req, "duration");
}

/* ---- sleep ---- */

static void connected(struct request *req, struct sandbox *sb, bool woken)
{
    uint64_t now = clock_wall_usec(), end = sandbox_expires_wall_usec(sb);
    struct error err = {0};
    uint32_t sec;

    if (!e2b_body_seconds(req, "timeout", CONNECT_TIMEOUT_SEC, &sec))
        return;
    /* Only ever longer, unless it has just been woken. */
    if ((woken || (end > 0 && end < now + sec * USEC_PER_SEC)) &&
        sandbox_set_timeout(sb, sec, &err) < 0) {
        e2b_answer_error(req, &err);
        return;
    }
    request_answer(req, woken ? 201 : 200, e2b_sandbox_json(e2b_of(req)->core, sb));
}

static const struct touch_ops connect_ops = {.ready = connected, .failed = e2b_answer_error};

void handle_e2b_connect(struct request *req)
{
    struct sandbox *sb = control_sandbox(req);

    if (sb)
        touch_wait(req, sb, &connect_ops);
}

void handle_e2b_resume(struct request *req)
{
    struct sandbox *sb = control_sandbox(req);

    if (!sb)
        return;
    if (sandbox_get_state(sb) == SANDBOX_RUNNING)
        e2b_answer_status(req, 409, "the sandbox is running already");
    else
        touch_wait(req, sb, &connect_ops);
}

static void paused(struct request *req, struct sandbox *sb, bool woken)
{
    (void)sb;
    (void)woken;
    request_answer_empty(req, 204);
}

void handle_e2b_pause(struct request *req)
{
    static const struct touch_ops ops = {.ready = paused, .failed = e2b_answer_error};
    struct sandbox *sb = control_sandbox(req);

    if (!sb)
        return;
    if (e2b_is_paused(sb))
        e2b_answer_status(req, 409, "the sandbox is paused already");
    else
        sleep_wait(req, sb, &ops);
}

/* ---- network: guests have none; whoever wants less of it has it already ---- */

void handle_e2b_network(struct request *req)
{
    const json_t *body = request_json(req), *allow = json_object_get(body, "allowOut");
    struct sandbox *sb = control_sandbox(req);

    if (!sb)
        return;
    if (json_is_true(json_object_get(body, "allow_internet_access")) || json_array_size(allow) > 0)
        e2b_answer_status(req, 501, "sandboxes have no network: nothing can be allowed");
    else
        request_answer_empty(req, 204);
}
