#include "model/spec.h"

#include <limits.h>
#include <string.h>

#include "base/strv.h"
#include "model/access.h"
#include "model/fields.h"
#include "model/text.h"

#define IMAGE_NAME_MAX 255u
#define USER_MAX 128u
#define PIDS_MAX (4u * 1024u * 1024u) /* PID_MAX_LIMIT of Linux */
#define ARGV_MAX 65536u

#define SPEC(key, type, min, max)                                                                  \
    {                                                                                              \
#key, type, offsetof(struct sandbox_spec, key), min, max, false                            \
    }
static const struct field spec_fields[] = {
    SPEC(name, FIELD_NAME, 1, 63),
    SPEC(image, FIELD_STRING, 1, IMAGE_NAME_MAX),
    SPEC(template, FIELD_STRING, 1, IMAGE_NAME_MAX),
    SPEC(backend, FIELD_STRING, 1, 63),
    SPEC(user, FIELD_STRING, 1, USER_MAX),
    SPEC(workdir, FIELD_PATH, 1, PATH_MAX - 1),
    SPEC(env, FIELD_ENV, 0, 0),
    SPEC(entrypoint, FIELD_STRV, 0, ARGV_MAX),
    SPEC(cmd, FIELD_STRV, 0, ARGV_MAX),
    SPEC(cpus, FIELD_U32, 1, SPEC_CPUS_MAX),
    SPEC(memory_mib, FIELD_U32, SPEC_MEMORY_MIB_MIN, SPEC_MEMORY_MIB_MAX),
    SPEC(disk_mib, FIELD_U32, SPEC_DISK_MIB_MIN, SPEC_DISK_MIB_MAX),
    SPEC(timeout_sec, FIELD_U32, 0, SPEC_TIMEOUT_SEC_MAX),
    SPEC(idle_sec, FIELD_U32, 0, SPEC_TIMEOUT_SEC_MAX),
    SPEC(retention_sec, FIELD_U32, 0, SPEC_RETENTION_SEC_MAX),
    SPEC(on_timeout, FIELD_STRING, 1, 16),
    SPEC(metadata, FIELD_ENV, 0, 0),
    SPEC(private_ports, FIELD_BOOL, 0, 0),
};

void sandbox_spec_init(struct sandbox_spec *spec)
{
    *spec = (struct sandbox_spec){
        .image = strdup("base"),
        .cpus = 1,
        .memory_mib = 256,
        .disk_mib = 4096,
        .private_ports = true,
    };
}

void sandbox_spec_done(struct sandbox_spec *spec)
{
    free(spec->name);
    free(spec->image);
    free(spec->template);
    free(spec->backend);
    free(spec->user);
    free(spec->workdir);
    free(spec->tenant);
    free(spec->on_timeout);
    (void)strv_free(spec->env);
    (void)strv_free(spec->metadata);
    (void)strv_free(spec->entrypoint);
    (void)strv_free(spec->cmd);
    *spec = (struct sandbox_spec){0};
}

int sandbox_spec_copy(const struct sandbox_spec *from, struct sandbox_spec *to)
{
    struct sandbox_spec copy = {
        .cpus = from->cpus,
        .memory_mib = from->memory_mib,
        .disk_mib = from->disk_mib,
        .timeout_sec = from->timeout_sec,
        .idle_sec = from->idle_sec,
        .retention_sec = from->retention_sec,
        .private_ports = from->private_ports,
        .transient = from->transient,
        .build = from->build,
    };
    if (string_set(&copy.name, from->name) < 0 || string_set(&copy.image, from->image) < 0 ||
        string_set(&copy.template, from->template) < 0 ||
        string_set(&copy.backend, from->backend) < 0 || string_set(&copy.user, from->user) < 0 ||
        string_set(&copy.workdir, from->workdir) < 0 ||
        string_set(&copy.tenant, from->tenant) < 0 ||
        string_set(&copy.on_timeout, from->on_timeout) < 0 ||
        (from->env && strv_copy(from->env, &copy.env) < 0) ||
        (from->metadata && strv_copy(from->metadata, &copy.metadata) < 0) ||
        (from->entrypoint && strv_copy(from->entrypoint, &copy.entrypoint) < 0) ||
        (from->cmd && strv_copy(from->cmd, &copy.cmd) < 0)) {
        sandbox_spec_done(&copy);
        return -ENOMEM;
    }
    *to = copy;
    return 0;
}

bool sandbox_spec_hibernates(const struct sandbox_spec *spec)
{
    return spec->on_timeout && strcmp(spec->on_timeout, "hibernate") == 0;
}

int sandbox_spec_from_json(const json_t *json, struct sandbox_spec *spec, struct error *err)
{
    int r = fields_decode(json, spec_fields, ARRAY_SIZE(spec_fields), spec, err);
    if (r < 0)
        return r;
    if (spec->template) {
        const json_t *image = json_object_get(json, "image");
        if (image && !json_is_null(image))
            return error_set(err, EINVAL, "'image' and 'template': give one of them, not both");
        (void)string_set(&spec->image, NULL);
    }
    if (spec->on_timeout && strcmp(spec->on_timeout, "kill") != 0 &&
        strcmp(spec->on_timeout, "hibernate") != 0)
        return error_set(err, EINVAL, "'on_timeout': '%s' is neither 'kill' nor 'hibernate'",
                         spec->on_timeout);
    if (!spec->template && !spec->image)
        return error_set(err, ENOMEM, "'image': out of memory");
    return 0;
}

int sandbox_spec_from_stored(const json_t *json, struct sandbox_spec *spec, struct error *err)
{
    const char *tenant = json_string_value(json_object_get(json, "tenant"));
    json_t *rest = json_deep_copy(json);
    int r;

    if (!rest || string_set(&spec->tenant, tenant) < 0) {
        json_decref(rest);
        return error_set(err, ENOMEM, "out of memory");
    }
    spec->transient = json_is_true(json_object_get(json, "transient"));
    (void)json_object_del(rest, "tenant");
    (void)json_object_del(rest, "transient");
    spec->build = json_is_true(json_object_get(rest, "build"));
    (void)json_object_del(rest, "build");
    r = sandbox_spec_from_json(rest, spec, err);
    json_decref(rest);
    return r;
}

const char *sandbox_spec_tenant(const struct sandbox_spec *spec)
{
    return spec->tenant ? spec->tenant : TENANT_DEFAULT;
}

static int set_string(json_t *object, const char *key, const char *value)
{
    if (!value)
        return 0;
    return json_object_set_new(object, key, json_bytes(value, strlen(value)));
}

static json_t *env_to_json(char *const *env)
{
    json_t *object = json_object();

    for (size_t i = 0; object && env && env[i]; i++) {
        const char *value = strchr(env[i], '=');
        if (!value)
            continue;
        _cleanup_free_ char *key = strndup(env[i], (size_t)(value - env[i]));
        if (!key ||
            json_object_set_new(object, key, json_bytes(value + 1, strlen(value + 1))) < 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static int set_strv(json_t *object, const char *key, char *const *v)
{
    json_t *list;

    if (!v)
        return 0;
    list = json_array();
    for (size_t i = 0; list && v[i]; i++)
        if (json_array_append_new(list, json_bytes(v[i], strlen(v[i]))) < 0) {
            json_decref(list);
            return -ENOMEM;
        }
    return json_object_set_new(object, key, list);
}

json_t *sandbox_spec_to_json(const struct sandbox_spec *spec)
{
    json_t *o = json_pack("{s:i, s:i, s:i, s:i}", "cpus", (int)spec->cpus, "memory_mib",
                          (int)spec->memory_mib, "disk_mib", (int)spec->disk_mib, "timeout_sec",
                          (int)spec->timeout_sec);
    if (!o)
        return NULL;
    if (spec->idle_sec > 0)
        (void)json_object_set_new(o, "idle_sec", json_integer(spec->idle_sec));
    if (spec->transient)
        (void)json_object_set_new(o, "transient", json_true());
    if (spec->build)
        (void)json_object_set_new(o, "build", json_true());
    if (spec->retention_sec > 0)
        (void)json_object_set_new(o, "retention_sec", json_integer(spec->retention_sec));
    if (set_string(o, "on_timeout", spec->on_timeout) < 0 ||
        set_string(o, "name", spec->name) < 0 || set_string(o, "image", spec->image) < 0 ||
        set_string(o, "template", spec->template) < 0 ||
        set_string(o, "backend", spec->backend) < 0 || set_string(o, "user", spec->user) < 0 ||
        set_string(o, "workdir", spec->workdir) < 0 || set_string(o, "tenant", spec->tenant) < 0 ||
        set_strv(o, "entrypoint", spec->entrypoint) < 0 || set_strv(o, "cmd", spec->cmd) < 0 ||
        json_object_set_new(o, "env", env_to_json(spec->env)) < 0 ||
        (spec->metadata && json_object_set_new(o, "metadata", env_to_json(spec->metadata)) < 0) ||
        json_object_set_new(o, "private_ports", json_boolean(spec->private_ports)) < 0) {
        json_decref(o);
        return NULL;
    }
    return o;
}

#define EXEC(key, member, type, min, max, required)                                                \
    {                                                                                              \
        key, type, offsetof(struct exec_request, member), min, max, required                       \
    }
static const struct field exec_fields[] = {
    EXEC("argv", argv, FIELD_STRV, 1, ARGV_MAX, true),
    EXEC("env", env, FIELD_ENV, 0, 0, false),
    EXEC("cwd", cwd, FIELD_PATH, 1, PATH_MAX - 1, false),
    EXEC("user", user, FIELD_STRING, 1, USER_MAX, false),
    EXEC("tty", tty, FIELD_BOOL, 0, 0, false),
    EXEC("stdin", stdin_open, FIELD_BOOL, 0, 0, false),
    EXEC("detach", detach, FIELD_BOOL, 0, 0, false),
    EXEC("keep", keep, FIELD_BOOL, 0, 0, false),
    EXEC("rows", rows, FIELD_U16, 0, UINT16_MAX, false),
    EXEC("cols", cols, FIELD_U16, 0, UINT16_MAX, false),
    EXEC("timeout_ms", timeout_msec, FIELD_U32, 0, SPEC_TIMEOUT_SEC_MAX * 1000u, false),
    EXEC("memory_max_bytes", memory_max_bytes, FIELD_U64, 0, UINT64_C(1) << 52, false),
    EXEC("pids_max", pids_max, FIELD_U32, 0, PIDS_MAX, false),
};

void exec_request_done(struct exec_request *req)
{
    (void)strv_free(req->argv);
    (void)strv_free(req->env);
    free(req->cwd);
    free(req->user);
    *req = (struct exec_request){0};
}

int exec_request_from_json(const json_t *json, struct exec_request *req, struct error *err)
{
    int r = fields_decode(json, exec_fields, ARRAY_SIZE(exec_fields), req, err);
    if (r < 0)
        return r;
    if (req->argv[0][0] == '\0')
        return error_set(err, EINVAL, "'argv[0]': is empty");
    if (req->detach && req->stdin_open)
        return error_set(err, EINVAL, "'detach' and 'stdin': give one of them, not both");
    return 0;
}
