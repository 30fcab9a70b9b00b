#include "erofs/image.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/paths.h"
#include "base/spawn.h"
#include "base/strv.h"
#include "erofs/store.h"
#include "erofs/unpack.h"
#include "oci/layout.h"

#define MKFS_TIMEOUT_USEC (3600 * USEC_PER_SEC)

/* The same for all images: what tells them apart is their content. */
#define IMAGE_UUID "68656172-7468-4000-8000-000000000000"
/*
 * Time stamp of the superblock, and the latest time a file may have: mkfs.erofs keeps earlier ones.
 * With one of its own options for a fixed time it would set all of them, and Python would take each
 * of its compiled files for outdated.
 */
#define IMAGE_EPOCH "SOURCE_DATE_EPOCH=4294967295"

static int check_directory(const char *source, struct error *err)
{
    _cleanup_free_ char *real = realpath(source, NULL);
    _cleanup_free_ char *cache = realpath(paths_cache_dir(), NULL);
    struct dirent *entry;
    bool empty = true;
    DIR *dir;
    size_t n;

    dir = opendir(source);
    if (!real || !dir)
        return error_set(err, errno, "open '%s': %s", source, errno_text(errno));
    while (empty && (entry = readdir(dir)))
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    (void)closedir(dir);
    if (empty)
        return error_set_code(err, ERR_IMAGE_INVALID, "directory '%s' is empty", source);
    n = strcmp(real, "/") == 0 ? 0 : strlen(real);
    if (cache && strncmp(cache, real, n) == 0 && cache[n] == '/')
        return error_set_code(err, ERR_IMAGE_INVALID,
                              "directory '%s' holds the cache '%s', where the image would go",
                              source, cache);
    return 0;
}

/*
 * Without compression: a guest in software emulation reads a cold file 1.5 to 2 times faster than
 * with LZ4 (measured), for 60 % more space, and clones share the host's page cache either way.
 */
static int make_erofs(const char *tree, const char *erofs_path, struct error *err)
{
    const char *const argv[] = {"mkfs.erofs",
                                "--quiet",
                                "-U",
                                IMAGE_UUID,
                                erofs_path,
                                tree,
                                geteuid() == 0 ? NULL : "--all-root",
                                NULL};
    const char *const env[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                               "LC_ALL=C.UTF-8", IMAGE_EPOCH, NULL};
    const struct spawn_options options = {
        .argv = argv, .env = env, .stdin_fd = -EBADF, .stdout_fd = -EBADF, .stderr_fd = -EBADF};
    _cleanup_buf_ struct buf output = {.max = 16 * 1024};
    int r = spawn_run(&options, MKFS_TIMEOUT_USEC, &output, err);

    if (r < 0 && strstr(buf_string(&output), errno_text(ENOSPC)))
        return error_set(err, ENOSPC, "make '%s': %s", erofs_path, errno_text(ENOSPC));
    return r;
}

struct scaled {
    image_progress_fn fn;
    void *userdata;
};

/* Unpacking is the first half of the work on an archive. */
static void unpack_progress(int percent, const char *what, void *userdata)
{
    struct scaled *s = userdata;

    if (s->fn)
        s->fn(percent < 0 ? percent : percent / 2, what, s->userdata);
}

static int import_source(const char *source, const struct store_work *w, struct scaled *progress,
                         const char *erofs_path, struct error *err)
{
    _cleanup_free_ char *root = string_printf("%s/root", w->dir);
    struct stat st;
    int r;

    if (!root)
        return error_set(err, ENOMEM, "out of memory");
    if (stat(source, &st) < 0)
        return error_set_errno(err,
                               errno == ENOENT ? ERR_PATH_NOT_FOUND : error_code_from_errno(errno),
                               errno, "'%s': %s", source, errno_text(errno));
    if (S_ISDIR(st.st_mode)) {
        r = check_directory(source, err);
    } else if (S_ISREG(st.st_mode)) {
        r = mkdir(root, 0755) < 0
                ? error_set(err, errno, "create '%s': %s", root, errno_text(errno))
                : unpack_tar(source, root, unpack_progress, progress, err);
    } else {
        r = error_set_code(err, ERR_IMAGE_INVALID, "'%s' is neither a directory nor a file",
                           source);
    }
    if (r < 0)
        return r;
    if (progress->fn)
        progress->fn(50, "packing", progress->userdata);
    return make_erofs(S_ISDIR(st.st_mode) ? source : root, erofs_path, err);
}

int image_import(const char *name, const char *source, image_progress_fn progress, void *userdata,
                 struct image *ret, struct error *err)
{
    _cleanup_store_work_ struct store_work w = {.lock_fd = -EBADF};
    struct scaled scaled = {.fn = progress, .userdata = userdata};
    char erofs_path[272];
    int r;

    if (!name_is_valid(name))
        return error_set(
            err, EINVAL,
            "'%.80s' is no name of an image: up to 63 of a-z 0-9 . _ - and a letter or "
            "digit first",
            name);
    r = layout_import(name, source, progress, userdata, ret, err);
    if (r <= 0) {
        if (r < 0)
            error_wrap(err, "import image '%s'", name);
        else if (progress)
            progress(100, "done", userdata);
        return r;
    }
    r = store_work_init(&w, err);
    if (r == 0) {
        (void)snprintf(erofs_path, sizeof(erofs_path), "%s/image", w.dir);
        r = import_source(source, &w, &scaled, erofs_path, err);
    }
    if (r == 0) {
        if (progress)
            progress(80, "storing", userdata);
        r = store_publish(name, erofs_path, ret, err);
    }
    if (r < 0) {
        error_wrap(err, "import image '%s'", name);
        return r;
    }
    if (progress)
        progress(100, "done", userdata);
    return 0;
}
