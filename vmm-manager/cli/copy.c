#include "cli/copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/client.h"
#include "cli/remote.h"
#include "cli/text.h"

void copy_info_done(struct copy_info *info)
{
    free(info->link_target);
    free(info->name);
    info->link_target = NULL;
    info->name = NULL;
}

static uint32_t read_mode(const json_t *mode)
{
    if (json_is_string(mode))
        return (uint32_t)strtoul(json_string_value(mode), NULL, 8) & 07777;
    return (uint32_t)json_integer_value(mode) & 07777;
}

int copy_info_read(const json_t *json, struct copy_info *ret, struct error *err)
{
    const char *type = client_string(json, "type"), *target = client_string(json, "link_target");
    json_int_t size = json_integer_value(json_object_get(json, "size"));
    struct copy_info info = {0};

    if (!json_is_object(json) || type[0] == '\0')
        return error_set(err, EPROTO, "the daemon's file information is malformed");
    info.is_file = strcmp(type, "file") == 0;
    info.is_directory = strcmp(type, "directory") == 0;
    info.is_link = strcmp(type, "symlink") == 0;
    info.mode = read_mode(json_object_get(json, "mode"));
    info.size = size > 0 ? (uint64_t)size : 0;
    info.name = strdup(client_string(json, "path"));
    info.link_target = strdup(target);
    if (!info.name || !info.link_target) {
        copy_info_done(&info);
        return error_set(err, ENOMEM, "out of memory");
    }
    *ret = info;
    return 0;
}

char *copy_path(const struct copy *c, const char *operation, const char *path)
{
    _cleanup_free_ char *head = client_path("/v1/sandboxes/{}/files", c->sandbox);
    _cleanup_free_ char *query =
        c->user ? client_path("?path={}&user={}", path, c->user) : client_path("?path={}", path);
    char *text = NULL;

    if (!head || !query || asprintf(&text, "%s%s%s", head, operation, query) < 0)
        return NULL;
    return text;
}

int copy_stat(struct copy *c, const char *path, struct copy_info *ret, struct error *err)
{
    _cleanup_free_ char *target = copy_path(c, "/stat", path), *with_follow = NULL;
    json_auto_t *json = NULL;
    int r;

    if (!target || asprintf(&with_follow, "%s&follow=true", target) < 0)
        return error_set(err, ENOMEM, "out of memory");
    r = client_call(c->cli, "GET", with_follow, NULL, &json, err);
    return r < 0 ? r : copy_info_read(json, ret, err);
}

int copy_call(struct copy *c, const char *operation, json_t *body, struct error *err)
{
    _cleanup_free_ char *head = client_path("/v1/sandboxes/{}/files", c->sandbox), *target = NULL;
    int r;

    if (!body)
        return error_set(err, EINVAL, "the name is not valid UTF-8");
    if (!head || asprintf(&target, "%s%s", head, operation) < 0)
        return error_set(err, ENOMEM, "out of memory");
    r = remote_add_string(body, "user", c->user, err);
    return r < 0 ? r : client_call(c->cli, "POST", target, body, NULL, err);
}

void copy_progress(struct copy *c, const char *name, uint64_t done, uint64_t total)
{
    const char *base = strrchr(name, '/');
    char size[24], step[96];

    text_size(c->bytes + done, size, sizeof(size));
    (void)snprintf(step, sizeof(step), "copying %.48s  %s", base ? base + 1 : name, size);
    progress_update(&c->cli->progress, step, total > 0 ? (int)(done * 100 / total) : -1);
    progress_tick(&c->cli->progress);
}
