#include "cli/verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/strv.h"
#include "cli/client.h"
#include "cli/remote.h"
#include "cli/text.h"

#define MIB (UINT64_C(1024) * 1024)
#define LIMIT_MAX (UINT64_C(1) << 30)

/* ---- making ---- */

static const struct {
    const char *word, *key;
    bool is_size; /* given as 512M, sent in MiB */
} limits[] = {
    {"sandboxes", "sandboxes", false}, {"cpus", "cpus", false}, {"memory", "memory_mib", true},
    {"disk", "disk_mib", true},        {"rate", "rate", false},
};

static int add_limit(json_t *quota, const char *word, const char *value, struct error *err)
{
    uint64_t number = 0;

    for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
        if (strcmp(limits[i].word, word) != 0)
            continue;
        int r = limits[i].is_size ? parse_size(value, MIB, &number)
                                  : parse_u64(value, 0, LIMIT_MAX, &number);
        if (limits[i].is_size)
            number /= MIB;
        if (r < 0 || number > LIMIT_MAX)
            return error_set(err, EINVAL, "--quota: '%s=%s': expected a %s", word, value,
                             limits[i].is_size ? "size such as 4G" : "number");
        return json_object_set_new(quota, limits[i].key, json_integer((json_int_t)number)) < 0
                   ? error_set(err, ENOMEM, "out of memory")
                   : 0;
    }
    return error_set(err, EINVAL, "--quota: '%s' is none of sandboxes, cpus, memory, disk, rate",
                     word);
}

static int add_quota(json_t *body, const char *text, struct error *err)
{
    json_t *quota = json_object();
    int r = json_object_set_new(body, "quota", quota) < 0 ? -ENOMEM : 0;

    while (r >= 0 && *text) {
        size_t length = strcspn(text, ",");
        _cleanup_free_ char *pair = strndup(text, length);
        char *equals = pair ? strchr(pair, '=') : NULL;

        if (!equals)
            return error_set(err, EINVAL, "--quota: '%s': expected K=V,...", text);
        *equals = '\0';
        r = add_limit(quota, pair, equals + 1, err);
        text += length + (text[length] == ',');
    }
    return error_fill(err, r, "out of memory");
}

int verb_key_create(struct cli *cli, char **args, uint32_t count)
{
    const struct options *o = &cli->options;
    json_auto_t *body = json_object(), *key = NULL;
    struct error err = {0};
    int r = 0;

    (void)args;
    (void)count;
    if (o->tenant)
        r = remote_add_string(body, "tenant", o->tenant, &err);
    if (r >= 0 && o->role)
        r = remote_add_string(body, "role", o->role, &err);
    if (r >= 0 && o->name)
        r = remote_add_string(body, "name", o->name, &err);
    if (r >= 0 && o->quota)
        r = add_quota(body, o->quota, &err);
    if (r >= 0)
        r = client_call(cli, "POST", "/v1/keys", body, &key, &err);
    if (r < 0)
        return cli_fail(cli, &err);
    if (o->json)
        return client_print_json(key) < 0 ? EXIT_FAILED : EXIT_DONE;
    return puts(client_string(key, "key")) == EOF ? EXIT_FAILED : EXIT_DONE;
}

/* ---- listing ---- */

static void quota_text(const json_t *key, char *text, size_t size)
{
    const json_t *quota = json_object_get(key, "quota");
    size_t used = 0;

    (void)snprintf(text, size, "-");
    for (size_t i = 0; i < ARRAY_SIZE(limits) && used < size; i++) {
        json_int_t value = json_integer_value(json_object_get(quota, limits[i].key));
        int n;

        if (value <= 0)
            continue;
        n = snprintf(text + used, size - used, "%s%s=%lld%s", used ? "," : "", limits[i].word,
                     (long long)value, limits[i].is_size ? "M" : "");
        used += n > 0 ? (size_t)n : 0;
    }
}

static int add_key(struct table *t, const json_t *key)
{
    char quota[160], age[24];

    quota_text(key, quota, sizeof(quota));
    text_age(client_string(key, "created"), clock_wall_usec(), age, sizeof(age));
    return table_add(t, (const char *const[]){
                            client_string(key, "id"), client_string(key, "tenant"),
                            client_string(key, "role"), client_string(key, "name"), quota, age});
}

int verb_key_ls(struct cli *cli, char **args, uint32_t count)
{
    static const char *const heads[] = {"ID", "TENANT", "ROLE", "NAME", "QUOTA", "AGE"};
    _cleanup_free_ char *path = cli->options.tenant
                                    ? client_path("/v1/keys?tenant={}", cli->options.tenant)
                                    : strdup("/v1/keys");
    static const struct list_verb list = {"keys", "id", heads, ARRAY_SIZE(heads), add_key};

    (void)args;
    (void)count;
    return verb_list(cli, path, &list);
}

int verb_key_revoke(struct cli *cli, char **args, uint32_t count)
{
    return verb_delete_each(cli, "/v1/keys/{}", args, count);
}
