#include "erofs/prune.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/strv.h"
#include "erofs/store.h"

#define GRACE_USEC (UINT64_C(300) * USEC_PER_SEC) /* a creation may be on its way to using it */
#define DOWNLOAD_AGE_USEC (UINT64_C(7) * 24 * 3600 * USEC_PER_SEC)

uint64_t image_cache_limit(void)
{
    const char *text = getenv("HEARTH_IMAGES_MAX");
    struct statvfs fs;
    uint64_t bytes;

    if (text && parse_size(text, 1, &bytes) == 0 && bytes > 0)
        return bytes;
    if (statvfs(paths_cache_dir(), &fs) < 0)
        return UINT64_MAX;
    return (uint64_t)fs.f_blocks * fs.f_frsize / 2;
}

static uint64_t usage_of(const char *sub)
{
    struct dirent *entry;
    uint64_t bytes = 0;
    char path[256];
    struct stat st;
    DIR *dir;

    if (store_path(path, sub, NULL) < 0 || !(dir = opendir(path)))
        return 0;
    while ((entry = readdir(dir)))
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_blocks * 512;
    (void)closedir(dir);
    return bytes;
}

uint64_t image_cache_usage(void)
{
    return usage_of("blobs") + usage_of("layers") + usage_of("download");
}

static bool is_used(const struct prune_options *o, const char *sha256)
{
    for (size_t i = 0; o->in_use && o->in_use[i]; i++)
        if (strncmp(o->in_use[i], sha256, 64) == 0)
            return true;
    return false;
}

/* ---- files that no name needs ---- */

struct sweep {
    const struct prune_options *options;
    const struct image *images;
    size_t n_images;
    struct prune_result *result;
};

static void remove_file(const struct sweep *s, int dir_fd, const char *name)
{
    struct stat st;

    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || unlinkat(dir_fd, name, 0) < 0)
        return;
    s->result->removed++;
    s->result->freed_bytes += (uint64_t)st.st_blocks * 512;
}

static bool blob_goes(const struct sweep *s, const char *file, uint64_t age_usec)
{
    bool named = false;

    if (is_used(s->options, file) || age_usec < GRACE_USEC)
        return false;
    for (size_t i = 0; i < s->n_images; i++)
        if (strncmp(s->images[i].sha256, file, 64) == 0) {
            named = true;
            if (s->images[i].n_layers == 0)
                return false; /* all there is of it */
        }
    return !named || s->options->all;
}

static void sweep_dir(const struct sweep *s, const char *sub)
{
    bool blobs = strcmp(sub, "blobs") == 0;
    uint64_t now = clock_wall_usec();
    struct dirent *entry;
    char path[256];
    struct stat st;
    DIR *dir;

    if (store_path(path, sub, NULL) < 0 || !(dir = opendir(path)))
        return;
    while ((entry = readdir(dir))) {
        uint64_t age;

        if (strlen(entry->d_name) < 64 ||
            fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        age = now - MIN(now, (uint64_t)st.st_mtim.tv_sec * USEC_PER_SEC);
        if (blobs ? blob_goes(s, entry->d_name, age) : s->options->all || age > DOWNLOAD_AGE_USEC)
            remove_file(s, dirfd(dir), entry->d_name);
    }
    (void)closedir(dir);
}

/* ---- images ---- */

static int by_last_use(const void *a, const void *b)
{
    const struct image *x = a, *y = b;

    return x->used_wall_usec < y->used_wall_usec   ? -1
           : x->used_wall_usec > y->used_wall_usec ? 1
                                                   : strcmp(x->name, y->name);
}

static bool may_go(const struct prune_options *o, const struct image *image)
{
    return image->n_layers > 0 && !is_used(o, image->sha256) &&
           clock_wall_usec() > image->used_wall_usec + GRACE_USEC;
}

/* Least recently used first, until there is room; with `names` the whole image. */
static void evict(const struct prune_options *o, struct image *images, size_t count, uint64_t limit,
                  bool names, struct prune_result *result)
{
    qsort(images, count, sizeof(images[0]), by_last_use);
    for (size_t i = 0; i < count && image_cache_usage() > limit; i++) {
        uint64_t before = image_cache_usage();

        if (!may_go(o, &images[i]))
            continue;
        if (names && (images[i].digest[0] || image_name_is_hidden(images[i].name)) &&
            image_remove(images[i].name, o->in_use, NULL) == 0)
            result->removed++;
        else if (!names && images[i].ready && unlink(images[i].path) == 0)
            result->removed++;
        result->freed_bytes += before - MIN(before, image_cache_usage());
    }
}

/* Files without a name, with `files`, and then the layers that neither name nor file needs. */
static int tidy(const struct prune_options *options, bool files, struct prune_result *ret,
                struct error *err)
{
    _cleanup_free_ struct image *images = NULL;
    _cleanup_close_ int lock = -EBADF;
    struct sweep s = {.options = options, .result = ret};
    uint64_t before;
    int r = store_lock(&lock, err);

    if (r == 0)
        r = image_list(&images, &s.n_images, err);
    if (r < 0)
        return r;
    s.images = images;
    if (files)
        sweep_dir(&s, "blobs");
    if (files && !options->trim)
        sweep_dir(&s, "download");
    before = usage_of("layers");
    store_collect();
    ret->freed_bytes += before - MIN(before, usage_of("layers"));
    return 0;
}

int image_prune(const struct prune_options *options, struct prune_result *ret, struct error *err)
{
    _cleanup_free_ struct image *images = NULL;
    uint64_t limit;
    size_t count = 0;
    int r;

    *ret = (struct prune_result){0};
    limit = options->all                                 ? 0
            : options->trim && options->limit_bytes == 0 ? image_cache_limit()
                                                         : options->limit_bytes;
    /* What has no name any more goes before anything that has. */
    r = options->trim && image_cache_usage() > limit ? tidy(options, /* files= */ true, ret, err)
                                                     : 0;
    if (r == 0)
        r = image_list(&images, &count, err);
    if (r < 0)
        return r;
    if (options->all || (options->trim && image_cache_usage() > limit)) {
        evict(options, images, count, limit, false, ret);
        evict(options, images, count, limit, true, ret);
    }
    return tidy(options, /* files= */ !options->trim, ret, err);
}
