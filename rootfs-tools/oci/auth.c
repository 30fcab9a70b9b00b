#include "oci/auth.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base64.h"
#include "base/file.h"
#include "base/paths.h"
#include "base/strv.h"
#include "oci/reference.h"

#define FILE_MAX ((size_t)4 * 1024 * 1024)
#define TOKEN_MAX ((size_t)64 * 1024)

static void json_cleanup(json_t **json)
{
    json_decref(*json);
}

/* ---- files ---- */

static char *own_path(void)
{
    return string_printf("%s/credentials.json", paths_state_dir());
}

static char *docker_path(void)
{
    const char *dir = getenv("DOCKER_CONFIG"), *home = getenv("HOME");

    if (dir && *dir)
        return string_printf("%s/config.json", dir);
    return string_printf("%s/.docker/config.json", home && *home ? home : "/root");
}

/* Entries are kept under the host, or under its address. */
static const json_t *find_entry(const json_t *auths, const char *host)
{
    const char *other = reference_credential_key(host);
    const json_t *entry = json_object_get(auths, host);
    char url[REFERENCE_SIZE + 16];

    if (!entry && other)
        entry = json_object_get(auths, other);
    for (int i = 0; !entry && i < 4; i++) {
        (void)snprintf(url, sizeof(url), "%s://%s%s", i & 1 ? "http" : "https", host,
                       i & 2 ? "/" : "");
        entry = json_object_get(auths, url);
    }
    return entry;
}

static int copy_string(const char *from, char *to, size_t size)
{
    if (!from)
        return 0;
    if (strlen(from) >= size)
        return -E2BIG;
    memcpy(to, from, strlen(from) + 1);
    return 0;
}

static int take_entry(const json_t *entry, struct credentials *ret)
{
    const json_t *auth = json_object_get(entry, "auth");
    const char *token = json_string_value(json_object_get(entry, "identitytoken"));
    _cleanup_free_ char *plain = NULL;
    char *colon;
    size_t size;

    if (json_string_length(auth) > 0) {
        if (base64_decode(json_string_value(auth), json_string_length(auth), &plain, &size) < 0 ||
            strlen(plain) != size || !(colon = strchr(plain, ':')))
            return -EINVAL;
        *colon = '\0';
        if (copy_string(plain, ret->user, sizeof(ret->user)) < 0 ||
            copy_string(colon + 1, ret->password, sizeof(ret->password)) < 0)
            return -E2BIG;
    } else if (copy_string(json_string_value(json_object_get(entry, "username")), ret->user,
                           sizeof(ret->user)) < 0 ||
               copy_string(json_string_value(json_object_get(entry, "password")), ret->password,
                           sizeof(ret->password)) < 0) {
        return -E2BIG;
    }
    if (copy_string(token, ret->identity_token, sizeof(ret->identity_token)) < 0)
        return -E2BIG;
    return ret->user[0] || ret->identity_token[0] ? 0 : 1;
}

int credentials_parse(const char *text, size_t size, const char *host, struct credentials *ret,
                      struct error *err)
{
    _cleanup_(json_cleanup) json_t *json = json_loadb(text, size, 0, NULL);
    const json_t *entry;
    struct credentials found = {0};
    int r;

    if (!json_is_object(json))
        return error_set(err, EINVAL, "it is no JSON object");
    entry = find_entry(json_object_get(json, "auths"), host);
    if (!entry)
        return 1;
    r = take_entry(entry, &found);
    if (r < 0)
        return error_set(err, EINVAL, "its entry for '%s' is not valid", host);
    if (r == 0)
        *ret = found;
    return r;
}

int credentials_find(const char *host, struct credentials *ret, struct error *err)
{
    char *(*const paths[])(void) = {own_path, docker_path};

    for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
        _cleanup_free_ char *path = paths[i](), *text = NULL;
        size_t size;
        int r;

        if (!path)
            return error_set(err, ENOMEM, "out of memory");
        if (!file_exists(path))
            continue;
        r = file_read(path, FILE_MAX, &text, &size, err);
        if (r == 0)
            r = credentials_parse(text, size, host, ret, err);
        if (r < 0) {
            error_wrap(err, "credentials in '%s'", path);
            return r;
        }
        if (r == 0)
            return 0;
    }
    return 1;
}

/* Reads our own file, or begins one; a damaged one is begun again. */
static json_t *load_own(const char *path)
{
    _cleanup_free_ char *text = NULL;
    json_t *json = NULL;
    size_t size;

    if (file_exists(path) && file_read(path, FILE_MAX, &text, &size, NULL) == 0)
        json = json_loadb(text, size, 0, NULL);
    if (!json_is_object(json) || !json_is_object(json_object_get(json, "auths"))) {
        json_decref(json);
        json = json_pack("{s:{}}", "auths");
    }
    return json;
}

static int save_own(const json_t *json, const char *path, struct error *err)
{
    _cleanup_free_ char *text = json_dumps(json, JSON_INDENT(1) | JSON_SORT_KEYS);

    if (!text)
        return error_set(err, ENOMEM, "out of memory");
    return file_write_atomic(path, text, strlen(text), 0600, err);
}

int credentials_store(const char *host, const struct credentials *c, struct error *err)
{
    _cleanup_free_ char *path = own_path();
    _cleanup_free_ char *pair = string_printf("%s:%s", c->user, c->password);
    _cleanup_free_ char *auth = pair ? base64_encode(pair, strlen(pair)) : NULL;
    _cleanup_(json_cleanup) json_t *json = path ? load_own(path) : NULL;

    if (strchr(c->user, ':'))
        return error_set(err, EINVAL, "a user name has no ':'");
    if (!auth || !json ||
        json_object_set_new(json_object_get(json, "auths"), host,
                            json_pack("{s:s}", "auth", auth)) < 0)
        return error_set(err, ENOMEM, "out of memory");
    return save_own(json, path, err);
}

int credentials_remove(const char *host, struct error *err)
{
    _cleanup_free_ char *path = own_path();
    _cleanup_(json_cleanup) json_t *json = path ? load_own(path) : NULL;

    if (!json)
        return error_set(err, ENOMEM, "out of memory");
    if (json_object_del(json_object_get(json, "auths"), host) < 0)
        return error_set(err, ENOENT, "there is no login for '%s'", host);
    return save_own(json, path, err);
}

/* ---- challenges ---- */

/* name="value" or name=value, then a comma or the end. Returns what follows, NULL when broken. */
static const char *take_parameter(const char *s, char *name, size_t name_size, char *value,
                                  size_t value_size)
{
    size_t n = strcspn(s, "=, \t"), used = 0;

    if (n == 0 || n >= name_size || s[n] != '=')
        return NULL;
    memcpy(name, s, n);
    name[n] = '\0';
    s += n + 1;
    if (*s == '"') {
        for (s++; *s && *s != '"'; s++) {
            if (*s == '\\' && s[1])
                s++;
            if (used + 1 >= value_size)
                return NULL;
            value[used++] = *s;
        }
        if (*s++ != '"')
            return NULL;
    } else {
        for (; *s && !strchr(", \t", *s); s++) {
            if (used + 1 >= value_size)
                return NULL;
            value[used++] = *s;
        }
    }
    value[used] = '\0';
    return s + strspn(s, ", \t");
}

int challenge_parse(const char *header, struct challenge *ret)
{
    struct challenge c = {0};
    char name[32], value[1024];
    const char *s = header + strspn(header, " \t");

    if (strncasecmp(s, "basic", 5) == 0 && (s[5] == '\0' || s[5] == ' ')) {
        *ret = c;
        return 0;
    }
    if (strncasecmp(s, "bearer ", 7) != 0)
        return -EINVAL;
    c.bearer = true;
    s += 7;
    s += strspn(s, " \t");
    while (*s) {
        int r = 0;

        s = take_parameter(s, name, sizeof(name), value, sizeof(value));
        if (!s)
            return -EINVAL;
        if (strcasecmp(name, "realm") == 0)
            r = copy_string(value, c.realm, sizeof(c.realm));
        else if (strcasecmp(name, "service") == 0)
            r = copy_string(value, c.service, sizeof(c.service));
        else if (strcasecmp(name, "scope") == 0)
            r = copy_string(value, c.scope, sizeof(c.scope));
        if (r < 0)
            return -EINVAL;
    }
    if (c.realm[0] == '\0')
        return -EINVAL;
    *ret = c;
    return 0;
}

char *token_parse(const char *text, size_t size)
{
    _cleanup_(json_cleanup) json_t *json = json_loadb(text, size, 0, NULL);
    const char *token = json_string_value(json_object_get(json, "token"));

    if (!token)
        token = json_string_value(json_object_get(json, "access_token"));
    if (!token || !*token || strlen(token) > TOKEN_MAX)
        return NULL;
    for (const char *s = token; *s; s++) /* it becomes a header line */
        if (!isgraph((unsigned char)*s))
            return NULL;
    return strdup(token);
}
