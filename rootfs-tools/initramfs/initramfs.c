#include "initramfs/initramfs.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/paths.h"
#include "base/strv.h"
#include "erofs/digest.h"
#include "initramfs/cpio.h"

#define MODULES_MAX 128
#define LIST_MAX_BYTES ((size_t)64 * 1024)
#define FILE_MAX_BYTES ((size_t)64 * 1024 * 1024)
#define ARCHIVE_MAX_BYTES ((size_t)256 * 1024 * 1024)

static int add_file(struct cpio *c, const char *name, mode_t mode, const char *path,
                    struct error *err)
{
    _cleanup_free_ char *data = NULL;
    size_t size;
    int r = file_read(path, FILE_MAX_BYTES, &data, &size, err);

    if (r < 0)
        return r;
    r = cpio_add_file(c, name, mode, data, size);
    return error_fill(err, r, "add '%s' to the initramfs", path);
}

static int add_module(struct cpio *c, const char *dir, const char *name, struct error *err)
{
    _cleanup_free_ char *path = string_printf("%s/%s", dir, name);
    _cleanup_free_ char *member = string_printf("modules/%s", name);

    if (!path || !member)
        return error_set(err, ENOMEM, "out of memory");
    if (strchr(name, '/'))
        return error_set(err, EINVAL, "'%s/modules.list' names '%s', which is no plain file name",
                         dir, name);
    return add_file(c, member, 0644, path, err);
}

/* The modules in load order, then the list that gives hearth-init the order. */
static int add_modules(struct cpio *c, const char *dir, struct error *err)
{
    _cleanup_free_ char *list_path = string_printf("%s/modules.list", dir);
    _cleanup_free_ char *list = NULL, *names = NULL;
    char *next, *name;
    unsigned count = 0;
    size_t size;
    int r;

    if (!list_path)
        return error_set(err, ENOMEM, "out of memory");
    if (!file_exists(list_path))
        return error_fill(err, cpio_add_file(c, "modules/modules.list", 0644, "", 0),
                          "add the list of modules");
    r = file_read(list_path, LIST_MAX_BYTES, &list, &size, err);
    if (r < 0)
        return r;
    names = strdup(list);
    if (!names)
        return error_set(err, ENOMEM, "out of memory");
    next = names;
    while ((name = strsep(&next, "\n"))) {
        if (!*name)
            continue;
        if (++count > MODULES_MAX)
            return error_set(err, E2BIG, "'%s' names more than %d modules", list_path, MODULES_MAX);
        r = add_module(c, dir, name, err);
        if (r < 0)
            return r;
    }
    r = cpio_add_file(c, "modules/modules.list", 0644, list, size);
    return error_fill(err, r, "add the list of modules");
}

static int build(const struct kernel *kernel, const char *init_path, struct buf *out,
                 struct error *err)
{
    static const char *const dirs[] = {"dev", "modules", "newroot", "proc", "sys"};
    struct cpio c;
    int r = 0;

    cpio_init(&c, out);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(dirs); i++)
        r = cpio_add_dir(&c, dirs[i], 0755);
    if (r == 0)
        r = cpio_add_char_device(&c, "dev/console", 0600, 5, 1);
    if (r < 0)
        return error_set(err, -r, "initramfs: %s", errno_text(-r));
    r = add_file(&c, "init", 0755, init_path, err);
    if (r == 0)
        r = add_modules(&c, kernel->modules_dir, err);
    if (r == 0)
        r = error_fill(err, cpio_finish(&c), "end of the initramfs");
    return r;
}

int initramfs_make(const struct kernel *kernel, const char *init_path, char ret_path[256],
                   char ret_sha256[65], struct error *err)
{
    _cleanup_buf_ struct buf archive = {.max = ARCHIVE_MAX_BYTES};
    _cleanup_free_ char *dir = string_printf("%s/initramfs", paths_cache_dir());
    _cleanup_free_ char *own_init = string_printf("%s/hearth-init", paths_program_dir());
    char path[256], sha256[65];
    int r;

    if (!dir || !own_init)
        return error_set(err, ENOMEM, "out of memory");
    r = build(kernel, init_path ? init_path : own_init, &archive, err);
    if (r < 0) {
        error_wrap(err, "initramfs for kernel '%s'", kernel->name);
        return r;
    }
    digest_bytes(buf_data(&archive), archive.size, sha256);
    if ((size_t)snprintf(path, sizeof(path), "%s/%s.cpio", dir, sha256) >= sizeof(path))
        return error_set(err, ENAMETOOLONG, "cache directory '%s': name too long", dir);
    r = dir_create(dir, 0755, err);
    /* Written whole and renamed, so one that is there is complete. */
    if (r == 0 && !file_exists(path))
        r = file_write_atomic(path, buf_data(&archive), archive.size, 0644, err);
    if (r < 0)
        return r;
    memcpy(ret_path, path, sizeof(path));
    memcpy(ret_sha256, sha256, sizeof(sha256));
    return 0;
}
