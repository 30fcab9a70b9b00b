#include "kernel/kernel.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/paths.h"
#include "base/strv.h"

#define INFO_MAX_BYTES ((size_t)64 * 1024)
#define LIST_MAX 64

static void json_cleanup(json_t **json)
{
    json_decref(*json);
}

/* A string of the object that fits the field; -EINVAL otherwise. */
static int copy_string(const json_t *object, const char *key, char *field, size_t size)
{
    const char *s = json_string_value(json_object_get(object, key));

    if (!s || strlen(s) >= size)
        return -EINVAL;
    memcpy(field, s, strlen(s) + 1);
    return 0;
}

static int format_path(char path[256], const char *name, const char *file)
{
    int n = snprintf(path, 256, "%s/kernels/%s/%s", paths_cache_dir(), name, file);

    return n < 0 || n >= 256 ? -ENAMETOOLONG : 0;
}

/* -ENOENT when there is no such kernel; another errno when what is there is broken. */
static int kernel_load(const char *name, struct kernel *ret, struct error *err)
{
    _cleanup_(json_cleanup) json_t *info = NULL;
    _cleanup_free_ char *text = NULL;
    struct kernel k = {0};
    char info_path[256];
    size_t size;
    int r;

    if (!name_is_valid(name) || strlen(name) >= sizeof(k.name))
        return error_set(err, EINVAL, "'%s' is no name of a kernel", name);
    memcpy(k.name, name, strlen(name) + 1);
    if (format_path(info_path, name, "info.json") < 0 || format_path(k.path, name, "kernel") < 0 ||
        format_path(k.modules_dir, name, "modules") < 0)
        return error_set(err, ENAMETOOLONG, "cache directory '%s': name too long",
                         paths_cache_dir());
    if (!file_exists(k.path) || !file_exists(info_path))
        return -ENOENT;
    r = file_read(info_path, INFO_MAX_BYTES, &text, &size, err);
    if (r < 0)
        return r;
    info = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    if (!info || copy_string(info, "version", k.version, sizeof(k.version)) < 0 ||
        copy_string(info, "sha256", k.sha256, sizeof(k.sha256)) < 0 || strlen(k.sha256) != 64)
        return error_set(err, EIO,
                         "kernel '%s': '%s' is damaged; remove its directory and fetch it again",
                         name, info_path);
    *ret = k;
    return 0;
}

static int not_found(const char *name, struct error *err)
{
    if (!name)
        return error_set_code(err, ERR_KERNEL_NOT_FOUND,
                              "no guest kernel in '%s/kernels'; get one with `hearth kernel fetch` "
                              "(seconds) or `hearth kernel build` (minutes, boots faster)",
                              paths_cache_dir());
    return error_set_code(err, ERR_KERNEL_NOT_FOUND,
                          "no guest kernel '%s' in '%s/kernels'; get it with `hearth kernel %s`",
                          name, paths_cache_dir(),
                          strcmp(name, "minimal") == 0 ? "build" : "fetch");
}

int kernel_find(const char *name, struct kernel *ret, struct error *err)
{
    static const char *const defaults[] = {"minimal", "distro"};
    const char *from_env = getenv("HEARTH_KERNEL");
    int r;

    if (!name && from_env && *from_env)
        name = from_env;
    if (name) {
        r = kernel_load(name, ret, err);
        return r == -ENOENT ? not_found(name, err) : r;
    }
    for (size_t i = 0; i < ARRAY_SIZE(defaults); i++) {
        r = kernel_load(defaults[i], ret, err);
        if (r != -ENOENT)
            return r;
    }
    return not_found(NULL, err);
}

static int compare_names(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_kernel_name(const struct dirent *entry)
{
    return name_is_valid(entry->d_name);
}

int kernel_list(struct kernel *ret, unsigned max, struct error *err)
{
    _cleanup_free_ char *dir = string_printf("%s/kernels", paths_cache_dir());
    struct dirent **entries = NULL;
    unsigned count = 0;
    int n;

    if (!dir)
        return error_set(err, ENOMEM, "out of memory");
    n = scandir(dir, &entries, is_kernel_name, compare_names);
    if (n < 0)
        return errno == ENOENT ? 0 : error_set(err, errno, "read '%s': %s", dir, errno_text(errno));
    for (int i = 0; i < n; i++) {
        /* A damaged one is not listed; asking for it by name tells why. */
        if (count < MIN(max, LIST_MAX) && kernel_load(entries[i]->d_name, &ret[count], NULL) == 0)
            count++;
        free(entries[i]);
    }
    free(entries);
    return (int)count;
}
