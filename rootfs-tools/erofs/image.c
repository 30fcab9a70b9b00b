#include "erofs/image.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/paths.h"
#include "base/strv.h"
#include "erofs/digest.h"
#include "erofs/format.h"
#include "erofs/packs.h"
#include "erofs/store.h"

#define IMAGES_MAX 10000
/* Changes whenever the same layers would become other bytes. */
#define WHOLE_FORMAT "hearth erofs 1\n"
#define PACKS_FORMAT "hearth erofs 2\n"

int store_path(char *path, const char *sub, struct error *err)
{
    int n = snprintf(path, 256, "%s/images/%s", paths_cache_dir(), sub);

    if (n < 0 || n >= 256)
        return error_set(err, ENAMETOOLONG, "cache directory '%s': name too long",
                         paths_cache_dir());
    return 0;
}

int store_lock(int *ret_fd, struct error *err)
{
    _cleanup_close_ int fd = -EBADF;
    char dir[256], path[256];
    int r = store_path(dir, "names", err);

    if (r == 0)
        r = dir_create(dir, 0755, err);
    if (r == 0)
        r = store_path(dir, "blobs", err);
    if (r == 0)
        r = dir_create(dir, 0755, err);
    if (r == 0)
        r = store_path(path, ".lock", err);
    if (r < 0)
        return r;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(err, errno, "open '%s': %s", path, errno_text(errno));
    do {
        r = flock(fd, LOCK_EX) < 0 ? -errno : 0;
    } while (r == -EINTR);
    if (r < 0)
        return error_set(err, -r, "lock '%s': %s", path, errno_text(-r));
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int store_hash_path(char *path, const char *dir, const char *sha256, const char *suffix,
                    struct error *err)
{
    char sub[128];

    (void)snprintf(sub, sizeof(sub), "%s/%.64s%s", dir, sha256, suffix);
    return store_path(path, sub, err);
}

int store_hold(int *ret_fd, struct error *err)
{
    _cleanup_close_ int fd = -EBADF;
    char path[256];
    int r = store_path(path, ".hold", err);

    if (r < 0)
        return r;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_SH) < 0)
        return error_set(err, errno, "lock '%s': %s", path, errno_text(errno));
    *ret_fd = TAKE_FD(fd);
    return 0;
}

bool store_is_whole(const char *path)
{
    _cleanup_strv_ char **packs = NULL;

    return erofs_is_whole(path) && image_packs_find(path, &packs, NULL) == 0;
}

static int fill_image(const struct record *record, struct image *ret, struct error *err)
{
    struct image image = {.size_bytes = record->size_bytes,
                          .created_wall_usec = record->created_wall_usec,
                          .used_wall_usec = record->created_wall_usec,
                          .n_layers = strv_length(record->layers)};
    struct stat st;
    char used[256];
    int r = store_hash_path(image.path, "blobs", record->sha256, ".erofs", err);

    if (r < 0)
        return r;
    memcpy(image.name, record->name, sizeof(image.name));
    memcpy(image.sha256, record->sha256, sizeof(image.sha256));
    memcpy(image.digest, record->digest, sizeof(image.digest));
    memcpy(image.architecture, record->config.architecture, sizeof(image.architecture));
    image.ready = stat(image.path, &st) == 0 && st.st_size > 0 &&
                  (!record->layers || store_is_whole(image.path));
    if (!image.ready && !record->layers)
        return error_set(err, EIO, "image '%s': its file is missing; remove it and get it again",
                         record->name);
    if (image.ready) {
        image.own_bytes = (uint64_t)st.st_blocks * 512;
        image.size_bytes = (uint64_t)st.st_size + (record->layers ? record->size_bytes : 0);
    }
    if (store_hash_path(used, "blobs", record->sha256, ".used", NULL) == 0 && stat(used, &st) == 0)
        image.used_wall_usec =
            MAX(image.used_wall_usec, (uint64_t)st.st_mtim.tv_sec * USEC_PER_SEC);
    *ret = image;
    return 0;
}

int image_find(const char *name, struct image *ret, struct error *err)
{
    _cleanup_record_ struct record record = {0};
    int r = record_find(name, &record, err);

    return r < 0 ? r : fill_image(&record, ret, err);
}

int image_get_config(const char *name, struct image_config *ret, struct error *err)
{
    _cleanup_record_ struct record record = {0};
    int r = record_find(name, &record, err);

    if (r < 0)
        return r;
    *ret = record.config;
    record.config = (struct image_config){0};
    return 0;
}

static int is_record(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name);

    return n > 5 && entry->d_name[0] != '.' && strcmp(entry->d_name + n - 5, ".json") == 0;
}

static int compare_images(const void *a, const void *b)
{
    return strcmp(((const struct image *)a)->name, ((const struct image *)b)->name);
}

int image_list(struct image **ret, size_t *ret_count, struct error *err)
{
    struct dirent **entries = NULL;
    struct image *images = NULL;
    size_t count = 0;
    char dir[256];
    int n, r = store_path(dir, "names", err);

    if (r < 0)
        return r;
    n = scandir(dir, &entries, is_record, NULL);
    if (n < 0 && errno != ENOENT)
        return error_set(err, errno, "read '%s': %s", dir, errno_text(errno));
    n = MAX(n, 0);
    images = calloc((size_t)n + 1, sizeof(*images));
    for (int i = 0; i < n; i++) {
        _cleanup_free_ char *path = string_printf("%s/%s", dir, entries[i]->d_name);
        _cleanup_record_ struct record record = {0};

        /* A damaged one is not listed; asking for it by name tells why. */
        if (images && path && count < IMAGES_MAX && record_read(path, &record, NULL) == 0 &&
            fill_image(&record, &images[count], NULL) == 0)
            count++;
        free(entries[i]);
    }
    free(entries);
    if (!images)
        return error_set(err, ENOMEM, "list images: out of memory");
    qsort(images, count, sizeof(*images), compare_images);
    *ret = images;
    *ret_count = count;
    return 0;
}

bool image_has_other_name(const struct image *image)
{
    _cleanup_free_ struct image *images = NULL;
    size_t count = 0;

    if (image_list(&images, &count, NULL) < 0)
        return false;
    for (size_t i = 0; i < count; i++)
        if (strcmp(images[i].sha256, image->sha256) == 0 &&
            strcmp(images[i].name, image->name) != 0 && !image_name_is_hidden(images[i].name))
            return true;
    return false;
}

/* Removes a blob that no name points to and nobody uses. The lock is held. */
static int drop_blob(const char *sha256, char *const *in_use, struct error *err)
{
    _cleanup_free_ struct image *images = NULL;
    size_t count = 0;
    char path[256];
    int r = image_list(&images, &count, err);

    for (size_t i = 0; in_use && in_use[i]; i++)
        if (strcmp(in_use[i], sha256) == 0)
            return 0;
    for (size_t i = 0; r == 0 && i < count; i++)
        if (strcmp(images[i].sha256, sha256) == 0)
            return 0;
    if (r == 0)
        r = store_hash_path(path, "blobs", sha256, ".erofs", err);
    if (r == 0 && unlink(path) < 0 && errno != ENOENT)
        r = error_set(err, errno, "remove '%s': %s", path, errno_text(errno));
    if (r == 0 && store_hash_path(path, "blobs", sha256, ".used", NULL) == 0)
        (void)unlink(path);
    return r;
}

int image_remove(const char *name, char *const *in_use, struct error *err)
{
    _cleanup_close_ int lock = -EBADF;
    _cleanup_record_ struct record record = {0};
    char full[REFERENCE_SIZE], path[256];
    int r = record_name(name, full, err);

    if (r == 0)
        r = store_lock(&lock, err);
    if (r < 0)
        return r;
    r = record_find(name, &record, err);
    if (r == -ENOENT)
        return r;
    /* A damaged record goes too. */
    r = record_path(path, r == 0 ? record.name : full, err);
    if (r < 0)
        return r;
    if (unlink(path) < 0)
        return error_set(err, errno, "remove '%s': %s", path, errno_text(errno));
    error_clear(err);
    r = record.sha256[0] ? drop_blob(record.sha256, in_use, err) : 0;
    if (record.layers)
        store_collect();
    return r;
}

/* Puts the content on disk before its name can be seen. */
static int settle(const char *path, struct stat *st, struct error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fchmod(fd, 0444) < 0 || fsync(fd) < 0 || fstat(fd, st) < 0)
        return error_set(err, errno, "sync '%s': %s", path, errno_text(errno));
    return 0;
}

int store_publish(const char *name, const char *erofs_path, struct image *ret, struct error *err)
{
    _cleanup_close_ int lock = -EBADF;
    struct record record = {.created_wall_usec = clock_wall_usec()};
    char path[256];
    struct stat st;
    int r = digest_file(erofs_path, record.sha256, err);

    if (r == 0)
        r = settle(erofs_path, &st, err);
    if (r == 0)
        r = store_hash_path(path, "blobs", record.sha256, ".erofs", err);
    if (r == 0)
        r = store_lock(&lock, err);
    if (r < 0)
        return r;
    (void)snprintf(record.name, sizeof(record.name), "%s", name);
    record.size_bytes = (uint64_t)st.st_size;
    if (rename(erofs_path, path) < 0)
        return error_set(err, errno, "rename '%s' to '%s': %s", erofs_path, path,
                         errno_text(errno));
    (void)dir_sync_parent(path);
    r = record_write(&record, err);
    if (r < 0) {
        (void)drop_blob(record.sha256, NULL, NULL);
        return r;
    }
    return fill_image(&record, ret, err);
}

void store_layers_digest(char *const *layers, bool packs, char sha256[static 65])
{
    const char *format = packs ? PACKS_FORMAT : WHOLE_FORMAT;
    struct digest digest;

    digest_init(&digest);
    digest_update(&digest, format, strlen(format));
    for (size_t i = 0; layers && layers[i]; i++)
        digest_update(&digest, layers[i], strlen(layers[i]) + 1);
    digest_final(&digest, sha256);
}

int store_publish_layers(struct record *record, struct image *ret, struct error *err)
{
    _cleanup_close_ int lock = -EBADF;
    int r = store_lock(&lock, err);

    if (r < 0)
        return r;
    for (size_t i = 0; record->layers && record->layers[i]; i++)
        if (!store_has_layer(record->layers[i]))
            return error_set(err, EIO, "image '%s': layer %.20s… is not in the store", record->name,
                             record->layers[i]);
    store_layers_digest(record->layers, store_layers_in_blocks(record->layers), record->sha256);
    record->created_wall_usec = clock_wall_usec();
    r = fault_check("name-write", err);
    if (r == 0)
        r = record_write(record, err);
    if (r == 0)
        (void)fault_at("name-written");
    return r < 0 ? r : fill_image(record, ret, err);
}
