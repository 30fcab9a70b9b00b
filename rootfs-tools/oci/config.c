#include "oci/config.h"

#include <string.h>

#include "base/strv.h"
#include "oci/manifest.h"

#define STRINGS_MAX 4096u
#define STRING_BYTES_MAX ((size_t)128 * 1024)

static void json_cleanup(json_t **json)
{
    json_decref(*json);
}

void image_config_done(struct image_config *config)
{
    config->env = strv_free(config->env);
    config->entrypoint = strv_free(config->entrypoint);
    config->cmd = strv_free(config->cmd);
    config->ports = strv_free(config->ports);
    config->labels = strv_free(config->labels);
    free(config->user);
    free(config->workdir);
    *config = (struct image_config){0};
}

int image_config_copy(const struct image_config *from, struct image_config *to)
{
    struct image_config copy = *from;

    copy.env = copy.entrypoint = copy.cmd = copy.ports = copy.labels = NULL;
    copy.user = copy.workdir = NULL;
    if ((from->env && strv_copy(from->env, &copy.env) < 0) ||
        (from->entrypoint && strv_copy(from->entrypoint, &copy.entrypoint) < 0) ||
        (from->cmd && strv_copy(from->cmd, &copy.cmd) < 0) ||
        (from->ports && strv_copy(from->ports, &copy.ports) < 0) ||
        (from->labels && strv_copy(from->labels, &copy.labels) < 0) ||
        string_set(&copy.user, from->user) < 0 || string_set(&copy.workdir, from->workdir) < 0) {
        image_config_done(&copy);
        return -ENOMEM;
    }
    *to = copy;
    return 0;
}

static int invalid(const char *key, struct error *err)
{
    return error_set_code(err, ERR_IMAGE_INVALID, "the image's configuration is not valid: %s",
                          key);
}

static const char *plain_string(const json_t *value)
{
    const char *s = json_string_value(value);

    return s && strlen(s) == json_string_length(value) && strlen(s) < STRING_BYTES_MAX ? s : NULL;
}

/* An array of strings; null counts as absent. */
static int take_strv(const json_t *object, const char *key, char ***ret, struct error *err)
{
    const json_t *list = json_object_get(object, key);
    _cleanup_strv_ char **v = NULL;

    if (!list || json_is_null(list) || json_array_size(list) == 0)
        return list && !json_is_null(list) && !json_is_array(list) ? invalid(key, err) : 0;
    if (json_array_size(list) > STRINGS_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED,
                              "the image's configuration: %s has more than "
                              "%u entries",
                              key, STRINGS_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = plain_string(json_array_get(list, i));

        if (!s)
            return invalid(key, err);
        if (strv_append(&v, s) < 0)
            return error_set(err, ENOMEM, "out of memory");
    }
    *ret = TAKE_PTR(v);
    return 0;
}

static int take_string(const json_t *object, const char *key, char **ret, struct error *err)
{
    const json_t *value = json_object_get(object, key);

    if (!value || json_is_null(value) || json_string_length(value) == 0)
        return value && !json_is_null(value) && !json_is_string(value) ? invalid(key, err) : 0;
    if (!plain_string(value))
        return invalid(key, err);
    return string_set(ret, json_string_value(value)) < 0 ? error_set(err, ENOMEM, "out of memory")
                                                         : 0;
}

/* An object whose keys (and with `pairs` values) count. */
static int take_keys(const json_t *object, const char *key, bool pairs, char ***ret,
                     struct error *err)
{
    json_t *map = json_object_get(object, key), *value;
    _cleanup_strv_ char **v = NULL;
    const char *name;

    if (map && !json_is_null(map) && !json_is_object(map))
        return invalid(key, err);
    if (json_object_size(map) > STRINGS_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED,
                              "the image's configuration: %s has more than "
                              "%u entries",
                              key, STRINGS_MAX);
    json_object_foreach(map, name, value)
    {
        const char *text = pairs ? plain_string(value) : "";
        _cleanup_free_ char *pair = NULL;

        if (!text)
            return invalid(key, err);
        pair = string_printf("%s%s%s", name, pairs ? "=" : "", text);
        if (!pair || strv_append(&v, pair) < 0)
            return error_set(err, ENOMEM, "out of memory");
    }
    *ret = TAKE_PTR(v);
    return 0;
}

static int check_env(char *const *env, struct error *err)
{
    for (size_t i = 0; env && env[i]; i++)
        if (env[i][0] == '=' || !strchr(env[i], '='))
            return invalid("Env has an entry that is not NAME=VALUE", err);
    return 0;
}

int image_config_from_json(const json_t *json, struct image_config *ret, struct error *err)
{
    _cleanup_image_config_ struct image_config c = {0};
    int r = take_strv(json, "Env", &c.env, err);

    if (r == 0)
        r = check_env(c.env, err);
    if (r == 0)
        r = take_strv(json, "Entrypoint", &c.entrypoint, err);
    if (r == 0)
        r = take_strv(json, "Cmd", &c.cmd, err);
    if (r == 0)
        r = take_string(json, "User", &c.user, err);
    if (r == 0)
        r = take_string(json, "WorkingDir", &c.workdir, err);
    if (r == 0)
        r = take_keys(json, "ExposedPorts", false, &c.ports, err);
    if (r == 0)
        r = take_keys(json, "Labels", true, &c.labels, err);
    if (r == 0 && c.workdir && c.workdir[0] != '/')
        r = invalid("WorkingDir is not absolute", err);
    if (r < 0)
        return r;
    *ret = c;
    c = (struct image_config){0};
    return 0;
}

static int take_diff_ids(const json_t *rootfs, char ***ret, struct error *err)
{
    _cleanup_strv_ char **ids = NULL;
    int r = take_strv(rootfs, "diff_ids", &ids, err);

    for (size_t i = 0; r == 0 && ids && ids[i]; i++)
        if (!digest_is_valid(ids[i]))
            r = invalid("rootfs.diff_ids has an entry that is no sha256 digest", err);
    if (r == 0 && strv_length(ids) > OCI_LAYERS_MAX)
        r = error_set_code(err, ERR_LIMIT_EXCEEDED, "the image has more than %u layers",
                           OCI_LAYERS_MAX);
    if (r == 0)
        *ret = TAKE_PTR(ids);
    return r;
}

static void take_short(const json_t *object, const char *key, char *to, size_t size)
{
    const char *s = plain_string(json_object_get(object, key));

    if (s && strlen(s) < size)
        memcpy(to, s, strlen(s) + 1);
}

int image_config_parse(const char *data, size_t size, struct image_config *ret,
                       char ***ret_diff_ids, struct error *err)
{
    _cleanup_(json_cleanup) json_t *json = NULL;
    _cleanup_image_config_ struct image_config c = {0};
    _cleanup_strv_ char **ids = NULL;
    json_error_t why;
    int r;

    if (size > OCI_CONFIG_BYTES_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "the image's configuration is too large");
    json = json_loadb(data, size, 0, &why);
    if (!json_is_object(json))
        return error_set_code(err, ERR_IMAGE_INVALID,
                              "the image's configuration is no JSON object: %s",
                              json ? "it is of another type" : why.text);
    r = take_diff_ids(json_object_get(json, "rootfs"), &ids, err);
    if (r == 0)
        r = image_config_from_json(json_object_get(json, "config"), &c, err);
    if (r < 0)
        return r;
    take_short(json, "os", c.os, sizeof(c.os));
    take_short(json, "architecture", c.architecture, sizeof(c.architecture));
    take_short(json, "variant", c.variant, sizeof(c.variant));
    *ret = c;
    c = (struct image_config){0};
    *ret_diff_ids = TAKE_PTR(ids);
    return 0;
}

static int put_strv(json_t *object, const char *key, char *const *v)
{
    json_t *list;

    if (!v)
        return 0;
    list = json_array();
    for (size_t i = 0; list && v[i]; i++)
        if (json_array_append_new(list, json_string(v[i])) < 0)
            return -ENOMEM;
    return json_object_set_new(object, key, list);
}

static int put_keys(json_t *object, const char *key, char *const *v, bool pairs)
{
    json_t *map;

    if (!v)
        return 0;
    map = json_object();
    for (size_t i = 0; map && v[i]; i++) {
        size_t n = pairs ? strcspn(v[i], "=") : strlen(v[i]);
        _cleanup_free_ char *name = strndup(v[i], n);
        json_t *value = pairs ? json_string(v[i] + n + 1) : json_object();

        if (!name || json_object_set_new(map, name, value) < 0)
            return -ENOMEM;
    }
    return json_object_set_new(object, key, map);
}

json_t *image_config_to_json(const struct image_config *c)
{
    json_t *o = json_object();

    if (!o)
        return NULL;
    if (put_strv(o, "Env", c->env) < 0 || put_strv(o, "Entrypoint", c->entrypoint) < 0 ||
        put_strv(o, "Cmd", c->cmd) < 0 || put_keys(o, "ExposedPorts", c->ports, false) < 0 ||
        put_keys(o, "Labels", c->labels, true) < 0 ||
        (c->user && json_object_set_new(o, "User", json_string(c->user)) < 0) ||
        (c->workdir && json_object_set_new(o, "WorkingDir", json_string(c->workdir)) < 0)) {
        json_decref(o);
        return NULL;
    }
    return o;
}
