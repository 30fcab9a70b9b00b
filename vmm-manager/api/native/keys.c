#include <stdlib.h>
#include <string.h>

#include "api/native/handlers.h"
#include "api/native/native.h"
#include "api/native/page.h"
#include "core/keys.h"

#define QUOTA_MAX (UINT64_C(1) << 30)

/* Whose keys: the tenant's own; the host may name another, or mean all. */
static bool whose(struct request *req, const char **ret)
{
    const struct principal *principal = request_principal(req);
    const char *asked = NULL;
    struct error err;

    if (!native_query_string(req, "tenant", &asked))
        return false;
    if (asked && !principal->host && strcmp(asked, principal->tenant) != 0) {
        error_set_code(&err, ERR_PERMISSION_DENIED, "'tenant': not your own");
        request_answer_error(req, &err);
        return false;
    }
    *ret = asked ? asked : principal->host ? NULL : principal->tenant;
    return true;
}

void handle_keys(struct request *req)
{
    static const char *const order[] = {"created", "id", NULL};
    const char *tenant;

    if (whose(req, &tenant))
        native_answer_list(req, "keys", core_keys_to_json(native_of(req)->core, tenant), order);
}

struct key_body {
    char *tenant, *name, *role;
    const json_t *quota;
};

static int decode_quota(const json_t *json, struct quota *ret, struct error *err)
{
    static const struct field fields[] = {
        {"sandboxes", FIELD_U32, offsetof(struct quota, sandboxes), 0, QUOTA_MAX, false},
        {"cpus", FIELD_U32, offsetof(struct quota, cpus), 0, QUOTA_MAX, false},
        {"memory_mib", FIELD_U32, offsetof(struct quota, memory_mib), 0, QUOTA_MAX, false},
        {"disk_mib", FIELD_U32, offsetof(struct quota, disk_mib), 0, QUOTA_MAX, false},
        {"rate", FIELD_U32, offsetof(struct quota, rate), 0, 1000000, false},
    };
    int r = json ? fields_decode(json, fields, ARRAY_SIZE(fields), ret, err) : 0;

    if (r < 0)
        error_wrap(err, "'quota'");
    return r;
}

static uint32_t tighter(uint32_t own, uint32_t asked)
{
    return own && (asked == 0 || asked > own) ? own : asked;
}

/* A key gives no more than it has. */
static void bound_quota(const struct principal *principal, struct quota *quota)
{
    const struct quota *own = &principal->quota;

    quota->sandboxes = tighter(own->sandboxes, quota->sandboxes);
    quota->cpus = tighter(own->cpus, quota->cpus);
    quota->memory_mib = tighter(own->memory_mib, quota->memory_mib);
    quota->disk_mib = tighter(own->disk_mib, quota->disk_mib);
    quota->rate = tighter(own->rate, quota->rate);
}

static int key_new(struct request *req, const struct key_body *body, json_t **ret,
                   struct error *err)
{
    const struct principal *principal = request_principal(req);
    struct key_options options = {
        .tenant = body->tenant ? body->tenant : principal->tenant,
        .name = body->name,
        .role = ROLE_USER,
    };
    char secret[KEY_SECRET_SIZE];
    const struct key *key;
    int r;

    if (!principal->host && strcmp(options.tenant, principal->tenant) != 0)
        return error_set_code(err, ERR_PERMISSION_DENIED, "'tenant': not your own");
    if (strcmp(options.tenant, "*") == 0)
        return error_set(err, EINVAL, "'tenant': give one");
    if (body->role) {
        r = role_from_string(body->role);
        if (r < 0)
            return error_set(err, EINVAL, "'role': '%s' is none of admin, user, viewer",
                             body->role);
        options.role = (enum role)r;
    }
    r = decode_quota(body->quota, &options.quota, err);
    if (r < 0)
        return r;
    bound_quota(principal, &options.quota);
    r = core_key_create(native_of(req)->core, &options, secret, &key, err);
    if (r < 0)
        return r;
    *ret = key_to_json(key);
    if (*ret)
        (void)json_object_set_new(*ret, "key", json_string(secret));
    return 0;
}

void handle_key_new(struct request *req)
{
    static const struct field fields[] = {
        {"tenant", FIELD_NAME, offsetof(struct key_body, tenant), 1, 63, false},
        {"name", FIELD_STRING, offsetof(struct key_body, name), 1, 63, false},
        {"role", FIELD_STRING, offsetof(struct key_body, role), 1, 16, false},
        {"quota", FIELD_JSON, offsetof(struct key_body, quota), 0, 0, false},
    };
    struct key_body body = {0};
    struct error err = {0};
    json_t *json = NULL;

    if (native_decode(req, fields, ARRAY_SIZE(fields), &body)) {
        if (key_new(req, &body, &json, &err) < 0)
            request_answer_error(req, &err);
        else
            request_answer(req, 201, json);
    }
    free(body.tenant);
    free(body.name);
    free(body.role);
}

void handle_key_remove(struct request *req)
{
    const char *tenant;
    struct error err = {0};

    if (!whose(req, &tenant))
        return;
    if (core_key_revoke(native_of(req)->core, tenant, request_param(req, 0), &err) < 0)
        request_answer_error(req, &err);
    else
        request_answer_empty(req, 204);
}
