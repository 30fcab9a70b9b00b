#include "api/front/access.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/strv.h"

/* On the daemon's own socket: whose things the request is about. */
#define TENANT_HEADER "Hearth-Tenant"
#define TENANT_ALL "*"

/* ---- who asks ---- */

int access_authorize_host(struct request *req, void *userdata, struct error *err)
{
    const char *tenant = request_header(req, TENANT_HEADER);
    struct principal principal = {.role = ROLE_ADMIN, .host = true};

    (void)userdata;
    if (!tenant)
        tenant = TENANT_DEFAULT;
    if (strcmp(tenant, TENANT_ALL) != 0 && !name_is_valid(tenant))
        return error_set(err, EINVAL, TENANT_HEADER ": '%.64s' is no name of a tenant", tenant);
    (void)snprintf(principal.tenant, sizeof(principal.tenant), "%s", tenant);
    request_set_principal(req, &principal);
    return 0;
}

/* A page that opens a WebSocket can set no header but this one. */
static const char *secret_of_websocket(struct request *req)
{
    static const char prefix[] = "hearth-key.";
    static char secret[KEY_SECRET_SIZE]; /* one thread, used at once */
    const char *list = request_header(req, "Sec-WebSocket-Protocol");
    const char *at = list ? strstr(list, prefix) : NULL;

    if (!at || (at > list && !strchr(", \t", at[-1])))
        return NULL;
    at += strlen(prefix);
    (void)snprintf(secret, sizeof(secret), "%.*s", (int)strcspn(at, ", \t"), at);
    return secret;
}

const char *access_secret(struct request *req)
{
    static const char bearer[] = "Bearer ";
    const char *key = request_header(req, "X-API-Key");

    if (key)
        return key;
    key = request_header(req, "Authorization");
    if (key)
        return strncasecmp(key, bearer, strlen(bearer)) == 0 ? key + strlen(bearer) : NULL;
    return secret_of_websocket(req);
}

static bool is_reading(const struct request *req)
{
    const char *method = request_method(req);

    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

static int may(const struct request *req, const struct principal *principal, struct error *err)
{
    unsigned flags = request_route_flags(req);

    if (flags & ROUTE_HOST)
        return error_set_code(err, ERR_PERMISSION_DENIED,
                              "this is for the host itself, by its own socket");
    if ((flags & ROUTE_HOME) && strcmp(principal->tenant, TENANT_DEFAULT) != 0)
        return error_set_code(err, ERR_PERMISSION_DENIED,
                              "this is for keys of tenant '" TENANT_DEFAULT "'");
    if ((flags & ROUTE_ADMIN) && principal->role < ROLE_ADMIN)
        return error_set_code(err, ERR_PERMISSION_DENIED, "this is for keys of role 'admin'");
    if (principal->role < ROLE_USER && (!is_reading(req) || (flags & ROUTE_CONTENT)))
        return error_set_code(err, ERR_PERMISSION_DENIED, "this is not for keys of role 'viewer'");
    return 0;
}

int access_authorize_key(struct request *req, void *userdata, struct error *err)
{
    const char *secret = access_secret(req);
    struct key *key = secret ? core_key_check(userdata, secret) : NULL;
    struct principal principal;
    uint64_t wait_usec;

    if (!key)
        return error_set_code(err, ERR_UNAUTHORIZED,
                              secret ? "the API key is not valid"
                                     : "an API key is missing: X-API-Key or Authorization: Bearer");
    key_principal(key, &principal);
    request_set_principal(req, &principal);
    int r = may(req, &principal, err);
    if (r < 0)
        return r;
    if (key_take(key, clock_now_usec(), &wait_usec) < 0) {
        char seconds[24];

        (void)snprintf(seconds, sizeof(seconds), "%llu",
                       (unsigned long long)((wait_usec + USEC_PER_SEC - 1) / USEC_PER_SEC));
        (void)request_add_header(req, "Retry-After", seconds);
        return error_set_code(err, ERR_QUOTA_EXCEEDED, "more than %u requests a second",
                              principal.quota.rate);
    }
    return 0;
}

/* ---- whose things ---- */

static const char *scope(const struct request *req)
{
    const struct principal *principal = request_principal(req);

    return principal->host && strcmp(principal->tenant, TENANT_ALL) == 0 ? NULL : principal->tenant;
}

const char *access_tenant(const struct request *req)
{
    return scope(req);
}

bool access_sees(const struct request *req, const char *tenant)
{
    const char *mine = scope(req);

    return !mine || strcmp(mine, tenant) == 0;
}

struct sandbox *access_sandbox(struct request *req, struct core *core, const char *id_or_name,
                               struct error *err)
{
    return sandbox_find_in(core, scope(req), id_or_name, err);
}

struct sandbox *access_sandbox_by_token(struct core *core, const char *id, const char *purpose,
                                        const char *token, struct error *err)
{
    struct sandbox *sb = sandbox_find(core, id, err);

    if (!sb)
        return NULL;
    /* A name is not what the token was made for. */
    if (strcmp(sandbox_id(sb), id) == 0 && core_sandbox_token_ok(core, id, purpose, token))
        return sb;
    (void)error_set_code(err, ERR_SANDBOX_NOT_FOUND, "sandbox '%.64s': no such sandbox", id);
    return NULL;
}

struct each {
    struct request *req;
    sandbox_each_fn fn;
    void *userdata;
};

static void on_each(struct sandbox *sb, void *userdata)
{
    const struct each *each = userdata;

    if (access_sees(each->req, sandbox_tenant(sb)))
        each->fn(sb, each->userdata);
}

void access_sandbox_each(struct request *req, struct core *core, sandbox_each_fn fn, void *userdata)
{
    struct each each = {req, fn, userdata};

    sandbox_each(core, on_each, &each);
}

/* ---- quotas ---- */

static int within(const char *what, uint64_t used, uint64_t more, uint64_t limit, struct error *err)
{
    if (limit == 0 || used + more <= limit)
        return 0;
    return error_set_code(
        err, ERR_QUOTA_EXCEEDED, "quota of %s: %llu in use, %llu more asked for, %llu allowed",
        what, (unsigned long long)used, (unsigned long long)more, (unsigned long long)limit);
}

static bool is_built(const char *name)
{
    for (const char *at = name; (at = strstr(at, IMAGE_BUILT)); at++) {
        if (strspn(at + strlen(IMAGE_BUILT), "0123456789abcdef") >= 32)
            return true;
    }
    return false;
}

bool access_sees_image(const struct request *req, const char *name)
{
    return !is_built(name) || strcmp(request_principal(req)->tenant, TENANT_DEFAULT) == 0;
}

static bool sees_template(struct request *req, struct core *core, const char *template)
{
    json_t *json = core_template_to_json(core, template, NULL);
    const char *image = json_string_value(json_object_get(json, "image"));
    bool sees = !image || access_sees_image(req, image);

    json_decref(json);
    return sees && (!string_starts_with(template, IMAGE_BUILT) ||
                    strcmp(request_principal(req)->tenant, TENANT_DEFAULT) == 0);
}

/* By their names, whether they are there or not: nobody learns that. */
static int admit_image(struct request *req, struct core *core, const struct sandbox_spec *spec,
                       struct error *err)
{
    if (spec->template && !sees_template(req, core, spec->template))
        return error_set_code(err, ERR_TEMPLATE_NOT_FOUND, "template '%.64s': no such template",
                              spec->template);
    if (spec->image && !access_sees_image(req, spec->image))
        return error_set_code(err, ERR_IMAGE_NOT_FOUND, "image '%.128s': no such image",
                              spec->image);
    return 0;
}

int access_admit(struct request *req, struct core *core, struct sandbox_spec *spec, unsigned count,
                 struct error *err)
{
    const struct principal *principal = request_principal(req);
    const struct quota *quota = &principal->quota;
    struct tenant_usage usage;
    int r;

    if (!scope(req))
        return error_set(err, EINVAL,
                         TENANT_HEADER ": '" TENANT_ALL "' is no place for new things");
    if (string_set(&spec->tenant, principal->tenant) < 0)
        return error_set(err, ENOMEM, "out of memory");
    r = admit_image(req, core, spec, err);
    if (r < 0)
        return r;
    core_tenant_usage(core, principal->tenant, &usage);
    r = within("sandboxes", usage.sandboxes, count, quota->sandboxes, err);
    if (r >= 0)
        r = within("vCPUs", usage.cpus, (uint64_t)count * spec->cpus, quota->cpus, err);
    if (r >= 0)
        r = within("memory (MiB)", usage.memory_mib, (uint64_t)count * spec->memory_mib,
                   quota->memory_mib, err);
    if (r >= 0)
        r = within("disk (MiB)", usage.disk_mib, (uint64_t)count * spec->disk_mib, quota->disk_mib,
                   err);
    return r;
}
