#include "erofs/image.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/paths.h"
#include "base/strv.h"
#include "erofs/digest.h"
#include "erofs/store.h"

#define RECORD_MAX_BYTES ((size_t)64 * 1024)
#define IMAGES_MAX 10000

static void json_cleanup(json_t **json)
{
    json_decref(*json);
}

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

static int record_path(char *path, const char *name, struct error *err)
{
    char sub[96];

    if (!name_is_valid(name))
        return error_set(
            err, EINVAL,
            "'%.80s' is no name of an image: up to 63 of a-z 0-9 . _ - and a letter or "
            "digit first",
            name);
    (void)snprintf(sub, sizeof(sub), "names/%s.json", name);
    return store_path(path, sub, err);
}

static int blob_path(char *path, const char *sha256, struct error *err)
{
    char sub[96];

    (void)snprintf(sub, sizeof(sub), "blobs/%s.erofs", sha256);
    return store_path(path, sub, err);
}

static bool is_sha256(const char *s)
{
    return s && strlen(s) == 64 && strspn(s, "0123456789abcdef") == 64;
}

static int damaged(const char *name, const char *what, struct error *err)
{
    return error_set(err, EIO, "image '%s': %s; remove it and import it again", name, what);
}

static int not_found(const char *name, struct error *err)
{
    if (strcmp(name, "base") == 0)
        return error_set_code(err, ERR_IMAGE_NOT_FOUND,
                              "image 'base': not in the cache; make it with `hearth image base`");
    return error_set_code(err, ERR_IMAGE_NOT_FOUND,
                          "image '%s': not in the cache; `hearth image ls` lists what is there, "
                          "`hearth image import --name %s PATH` adds one",
                          name, name);
}

int image_find(const char *name, struct image *ret, struct error *err)
{
    _cleanup_(json_cleanup) json_t *record = NULL;
    _cleanup_free_ char *text = NULL;
    struct image image = {0};
    const char *sha256;
    char path[256];
    struct stat st;
    size_t size;
    int r = record_path(path, name, err);

    if (r < 0)
        return r;
    if (!file_exists(path))
        return not_found(name, err);
    r = file_read(path, RECORD_MAX_BYTES, &text, &size, err);
    if (r < 0)
        return r;
    record = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    sha256 = json_string_value(json_object_get(record, "sha256"));
    if (!is_sha256(sha256))
        return damaged(name, "its record is damaged", err);
    (void)snprintf(image.name, sizeof(image.name), "%s", name);
    memcpy(image.sha256, sha256, sizeof(image.sha256));
    image.created_wall_usec =
        (uint64_t)json_integer_value(json_object_get(record, "created_wall_usec"));
    r = blob_path(image.path, sha256, err);
    if (r < 0)
        return r;
    if (stat(image.path, &st) < 0 || st.st_size == 0)
        return damaged(name, "its file is missing", err);
    image.size_bytes = (uint64_t)st.st_size;
    *ret = image;
    return 0;
}

static int is_record(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name);
    char name[64];

    if (n <= 5 || n - 5 >= sizeof(name) || strcmp(entry->d_name + n - 5, ".json") != 0)
        return 0;
    memcpy(name, entry->d_name, n - 5);
    name[n - 5] = '\0';
    return name_is_valid(name);
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
        char *name = entries[i]->d_name;

        name[strlen(name) - 5] = '\0';
        /* A damaged one is not listed; asking for it by name tells why. */
        if (images && count < IMAGES_MAX && image_find(name, &images[count], NULL) == 0)
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

/* Removes a blob that no name points to. The lock is held. */
static int drop_blob(const char *sha256, struct error *err)
{
    _cleanup_free_ struct image *images = NULL;
    size_t count = 0;
    char path[256];
    int r = image_list(&images, &count, err);

    for (size_t i = 0; r == 0 && i < count; i++)
        if (strcmp(images[i].sha256, sha256) == 0)
            return 0;
    if (r == 0)
        r = blob_path(path, sha256, err);
    if (r == 0 && unlink(path) < 0 && errno != ENOENT)
        r = error_set(err, errno, "remove '%s': %s", path, errno_text(errno));
    return r;
}

int image_remove(const char *name, struct error *err)
{
    _cleanup_close_ int lock = -EBADF;
    struct image image = {0};
    char path[256];
    int r = record_path(path, name, err);

    if (r == 0)
        r = store_lock(&lock, err);
    if (r < 0)
        return r;
    r = image_find(name, &image, err);
    if (r == -ENOENT)
        return r;
    /* A damaged record goes too. */
    if (unlink(path) < 0)
        return error_set(err, errno, "remove '%s': %s", path, errno_text(errno));
    error_clear(err);
    return image.sha256[0] ? drop_blob(image.sha256, err) : 0;
}

static int write_record(const struct image *image, struct error *err)
{
    _cleanup_(json_cleanup) json_t *record = json_pack(
        "{s:s, s:s, s:I, s:I}", "name", image->name, "sha256", image->sha256, "size_bytes",
        (json_int_t)image->size_bytes, "created_wall_usec", (json_int_t)image->created_wall_usec);
    _cleanup_free_ char *text = record ? json_dumps(record, JSON_INDENT(1)) : NULL;
    char path[256];
    int r = record_path(path, image->name, err);

    if (r < 0)
        return r;
    if (!text)
        return error_set(err, ENOMEM, "image '%s': out of memory", image->name);
    return file_write_atomic(path, text, strlen(text), 0644, err);
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
    struct image image = {.created_wall_usec = clock_wall_usec()};
    struct stat st;
    int r = digest_file(erofs_path, image.sha256, err);

    if (r == 0)
        r = settle(erofs_path, &st, err);
    if (r == 0)
        r = blob_path(image.path, image.sha256, err);
    if (r == 0)
        r = store_lock(&lock, err);
    if (r < 0)
        return r;
    (void)snprintf(image.name, sizeof(image.name), "%s", name);
    image.size_bytes = (uint64_t)st.st_size;
    if (rename(erofs_path, image.path) < 0)
        return error_set(err, errno, "rename '%s' to '%s': %s", erofs_path, image.path,
                         errno_text(errno));
    (void)dir_sync_parent(image.path);
    r = write_record(&image, err);
    if (r < 0) {
        (void)drop_blob(image.sha256, NULL);
        return r;
    }
    *ret = image;
    return 0;
}
