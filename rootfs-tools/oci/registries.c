#include "oci/registries.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/strv.h"
#include "oci/reference.h"

#define DEFAULT_PATH "/etc/hearth/registries.json"
#define FILE_MAX ((size_t)1024 * 1024)
#define HOSTS_MAX 1024u

static void json_cleanup(json_t **json)
{
    json_decref(*json);
}

void registries_done(struct registries *r)
{
    r->insecure = strv_free(r->insecure);
    r->mirrors = strv_free(r->mirrors);
}

static int add_host(char ***list, const char *prefix, const char *host, const char *where,
                    struct error *err)
{
    _cleanup_free_ char *text = NULL;

    if (!host || !host_is_valid(host))
        return error_set(err, EINVAL, "%s: '%.80s' is no HOST or HOST:PORT", where,
                         host ? host : "?");
    if (strv_length(*list) >= HOSTS_MAX)
        return error_set(err, EINVAL, "%s: more than %u hosts", where, HOSTS_MAX);
    text = prefix ? string_printf("%s=%s", prefix, host) : strdup(host);
    return !text || strv_append(list, text) < 0 ? error_set(err, ENOMEM, "out of memory") : 0;
}

static int load_file(struct registries *r, const char *path, struct error *err)
{
    _cleanup_(json_cleanup) json_t *json = NULL;
    _cleanup_free_ char *text = NULL;
    const char *host;
    json_t *value, *mirror;
    json_error_t why;
    size_t size, i;
    int e;

    e = file_read(path, FILE_MAX, &text, &size, err);
    if (e < 0)
        return e;
    json = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(json))
        return error_set(err, EINVAL, "'%s' is no JSON object: line %d: %s", path, why.line,
                         why.text);
    json_array_foreach(json_object_get(json, "insecure"), i, value)
    {
        e = add_host(&r->insecure, NULL, json_string_value(value), path, err);
        if (e < 0)
            return e;
    }
    json_object_foreach(json_object_get(json, "mirrors"), host, value)
    {
        json_array_foreach(value, i, mirror)
        {
            e = add_host(&r->mirrors, host, json_string_value(mirror), path, err);
            if (e < 0)
                return e;
        }
    }
    return 0;
}

static int load_environment(struct registries *r, struct error *err)
{
    const char *text = getenv("HEARTH_INSECURE_REGISTRIES");

    while (text && *text) {
        size_t n = strcspn(text, ", ");
        _cleanup_free_ char *host = strndup(text, n);
        int e = n > 0 ? add_host(&r->insecure, NULL, host, "HEARTH_INSECURE_REGISTRIES", err) : 0;

        if (e < 0)
            return e;
        text += n;
        text += strspn(text, ", ");
    }
    return 0;
}

int registries_load(struct registries *ret, struct error *err)
{
    const char *path = getenv("HEARTH_REGISTRIES");
    struct registries r = {0};
    int e = 0;

    if (path && *path)
        e = load_file(&r, path, err);
    else if (file_exists(DEFAULT_PATH))
        e = load_file(&r, DEFAULT_PATH, err);
    if (e == 0)
        e = load_environment(&r, err);
    if (e < 0) {
        registries_done(&r);
        return e;
    }
    *ret = r;
    return 0;
}

bool registries_is_insecure(const struct registries *r, const char *host)
{
    for (size_t i = 0; r->insecure && r->insecure[i]; i++)
        if (strcmp(r->insecure[i], host) == 0)
            return true;
    return false;
}
