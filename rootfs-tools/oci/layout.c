#include "oci/layout.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "erofs/digest.h"
#include "erofs/store.h"
#include "oci/http.h"
#include "oci/manifest.h"
#include "oci/unpackers.h"

/*
 * Theory of operation. Members of a tar are copied to files that are called by the hash of their
 * name, so no name in it can lead anywhere; a directory is read through openat2. From there on both
 * are the same: a function from a member's name to a file.
 */

#define MEMBERS_MAX 4096u
#define NAME_MAX_BYTES 256u
#define BLOCK_BYTES ((size_t)256 * 1024)
#define BUSY_USEC (200 * USEC_PER_MSEC)

struct layout {
    const char *source;     /* weak, for error texts */
    int dir_fd;             /* owned: of a directory; -EBADF for a tar */
    struct store_work work; /* of a tar: its members */
    struct record record;
    struct unpackers *unpackers; /* owned */
    struct oci_platform platform;
    char **members; /* owned strv: where the layers are, bottom first */
};

static void json_cleanup(json_t **json)
{
    json_decref(*json);
}

static void layout_done(struct layout *l)
{
    (void)unpackers_free(l->unpackers);
    l->dir_fd = fd_close(l->dir_fd);
    store_work_done(&l->work);
    record_done(&l->record);
    l->members = strv_free(l->members);
}

static int invalid(const struct layout *l, struct error *err, const char *why)
{
    return error_set_code(err, ERR_IMAGE_INVALID, "'%s': %s", l->source, why);
}

/* ---- members ---- */

static void member_path(const struct layout *l, const char *name, char path[352])
{
    char sha256[65];

    digest_bytes(name, strlen(name), sha256);
    (void)snprintf(path, 352, "%s/%s", l->work.dir, sha256);
}

static int open_member(const struct layout *l, const char *name)
{
    char path[352];
    int fd;

    if (l->dir_fd >= 0)
        return fd_open_beneath(l->dir_fd, name, O_RDONLY | O_NOFOLLOW, 0);
    member_path(l, name, path);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int read_member(const struct layout *l, const char *name, size_t max, struct buf *ret,
                       struct error *err)
{
    _cleanup_close_ int fd = open_member(l, name);
    uint8_t *room;
    struct stat st;
    ssize_t n;

    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return error_set_code(err, ERR_IMAGE_INVALID, "'%s' has no '%.100s'", l->source, name);
    if ((uint64_t)st.st_size > max)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "'%s': '%.100s' is too large", l->source,
                              name);
    buf_init(ret, max + 1);
    if (buf_reserve(ret, (size_t)st.st_size + 1, &room) < 0)
        return error_set(err, ENOMEM, "out of memory");
    n = fd_read_full(fd, room, (size_t)st.st_size);
    if (n < 0)
        return error_set(err, (int)-n, "read '%s': %s", l->source, errno_text((int)-n));
    buf_commit(ret, (size_t)n);
    return 0;
}

/* A blob by its digest, which must be right. */
static int read_blob(const struct layout *l, const char *digest, size_t max, struct buf *ret,
                     struct error *err)
{
    char name[96], sha256[65];
    int r;

    (void)snprintf(name, sizeof(name), "blobs/sha256/%s", digest + 7);
    r = read_member(l, name, max, ret, err);
    if (r < 0)
        return r;
    digest_bytes(buf_data(ret), ret->size, sha256);
    return strcmp(sha256, digest + 7) == 0
               ? 0
               : invalid(l, err, "a blob has another content than its name says");
}

/* ---- tar ---- */

static bool is_member(const char *name)
{
    static const char *const known[] = {"oci-layout",   "index.json", "manifest.json",
                                        "repositories", "blobs",      "blobs/sha256"};
    size_t hex = strspn(name, "0123456789abcdef"), n = strlen(name);

    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        if (strcmp(name, known[i]) == 0)
            return true;
    if (strncmp(name, "blobs/sha256/", 13) == 0)
        return strspn(name + 13, "0123456789abcdef") == 64 && n == 13 + 64;
    return hex == 64 && (name[64] == '\0' || name[64] == '/' || strcmp(name + 64, ".json") == 0 ||
                         strcmp(name + 64, ".tar") == 0);
}

static int copy_member(const struct layout *l, struct archive *a, const char *name, uint64_t *total,
                       struct error *err)
{
    _cleanup_close_ int fd = -EBADF;
    char path[352];

    member_path(l, name, path);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(err, errno, "create '%s': %s", path, errno_text(errno));
    for (;;) {
        const void *data;
        size_t size;
        la_int64_t offset;
        int r = archive_read_data_block(a, &data, &size, &offset);

        if (r == ARCHIVE_EOF)
            return 0;
        if (r < ARCHIVE_WARN)
            return invalid(l, err, "the archive is damaged");
        *total += size;
        if (*total > OCI_BLOB_BYTES_MAX)
            return error_set_code(err, ERR_LIMIT_EXCEEDED, "'%s': larger than 64 GiB", l->source);
        if (pwrite(fd, data, size, offset) != (ssize_t)size)
            return error_set(err, errno ? errno : ENOSPC, "write '%s': %s", path,
                             errno_text(errno ? errno : ENOSPC));
    }
}

/* 1 when a member is no part of an image: then it is a root file system. */
static int take_members(struct layout *l, struct archive *a, struct error *err)
{
    struct archive_entry *entry;
    uint64_t total = 0;
    size_t n = 0;

    for (;;) {
        int r = archive_read_next_header(a, &entry);
        char clean[NAME_MAX_BYTES];
        const char *name;
        size_t size;

        if (r == ARCHIVE_EOF)
            return n > 0 ? 0 : 1;
        if (r < ARCHIVE_WARN)
            return n > 0 ? invalid(l, err, "the archive is damaged") : 1;
        name = archive_entry_pathname(entry);
        if (!name)
            return 1;
        name += strncmp(name, "./", 2) == 0 ? 2 : 0;
        size = strlen(name);
        if (size == 0)
            continue;
        if (size >= sizeof(clean))
            return 1;
        memcpy(clean, name, size + 1);
        if (clean[size - 1] == '/')
            clean[size - 1] = '\0';
        if (!is_member(clean))
            return n > 0 ? invalid(l, err, "it has members that no image has") : 1;
        if (++n > MEMBERS_MAX)
            return error_set_code(err, ERR_LIMIT_EXCEEDED, "'%s' has more than %u members",
                                  l->source, MEMBERS_MAX);
        if (archive_entry_filetype(entry) == AE_IFREG) {
            r = copy_member(l, a, clean, &total, err);
            if (r < 0)
                return r;
        }
    }
}

static int open_tar(struct layout *l, struct error *err)
{
    struct archive *a = archive_read_new();
    int r;

    if (!a)
        return error_set(err, ENOMEM, "out of memory");
    r = store_work_init(&l->work, err);
    (void)archive_read_support_format_tar(a);
    (void)archive_read_support_filter_gzip(a);
    (void)archive_read_support_filter_zstd(a);
    (void)archive_read_support_filter_xz(a);
    (void)archive_read_support_filter_bzip2(a);
    if (r == 0)
        r = archive_read_open_filename(a, l->source, BLOCK_BYTES) < ARCHIVE_WARN
                ? 1
                : take_members(l, a, err);
    (void)archive_read_free(a);
    return r;
}

/* ---- which image ---- */

static int use_config(struct layout *l, const struct buf *text, struct error *err)
{
    struct image_config *config = &l->record.config;
    int r = image_config_parse(buf_string(text), text->size, config, &l->record.layers, err);

    if (r < 0)
        return r;
    if (strv_length(l->record.layers) != strv_length(l->members) || !l->members)
        return invalid(l, err, "manifest and configuration have another number of layers");
    if (config->architecture[0] && strcmp(config->architecture, l->platform.architecture) != 0)
        return error_set_code(err, ERR_IMAGE_INVALID, "'%s' is for %s/%s, not for %s/%s", l->source,
                              config->os, config->architecture, l->platform.os,
                              l->platform.architecture);
    return 0;
}

static int use_manifest(struct layout *l, const struct oci_document *doc, struct error *err)
{
    _cleanup_buf_ struct buf text = {0};
    int r = read_blob(l, doc->config.digest, OCI_CONFIG_BYTES_MAX, &text, err);

    for (size_t i = 0; r == 0 && i < doc->n_entries; i++) {
        char name[96];

        (void)snprintf(name, sizeof(name), "blobs/sha256/%s", doc->entries[i].digest + 7);
        r = strv_append(&l->members, name) < 0 ? error_set(err, ENOMEM, "out of memory") : 0;
    }
    return r < 0 ? r : use_config(l, &text, err);
}

static int choose_oci(struct layout *l, struct error *err)
{
    _cleanup_buf_ struct buf text = {0};
    int r = read_member(l, "index.json", OCI_MANIFEST_BYTES_MAX, &text, err);

    for (unsigned depth = 0; r == 0 && depth <= OCI_INDEX_DEPTH_MAX; depth++) {
        _cleanup_oci_document_ struct oci_document doc = {0};
        const struct oci_descriptor *chosen;

        r = oci_document_parse(buf_string(&text), text.size, NULL, &doc, err);
        if (r < 0)
            return r;
        if (doc.kind == OCI_KIND_MANIFEST)
            return use_manifest(l, &doc, err);
        chosen = oci_index_choose(&doc, &l->platform, err);
        if (!chosen)
            return -ENOENT;
        buf_done(&text);
        r = read_blob(l, chosen->digest, OCI_MANIFEST_BYTES_MAX, &text, err);
    }
    return r < 0 ? r : invalid(l, err, "indexes are nested too deep");
}

/* manifest.json of `docker save`: [{"Config": …, "Layers": […]}]. */
static int choose_docker(struct layout *l, struct error *err)
{
    _cleanup_buf_ struct buf text = {0};
    _cleanup_buf_ struct buf config = {0};
    _cleanup_(json_cleanup) json_t *json = NULL;
    const char *name;
    json_t *first, *layer;
    size_t i;
    int r = read_member(l, "manifest.json", OCI_MANIFEST_BYTES_MAX, &text, err);

    if (r < 0)
        return r;
    json = json_loadb(buf_string(&text), text.size, JSON_REJECT_DUPLICATES, NULL);
    if (json_array_size(json) != 1)
        return invalid(l, err, "manifest.json does not describe exactly one image");
    first = json_array_get(json, 0);
    json_array_foreach(json_object_get(first, "Layers"), i, layer)
    {
        name = json_string_value(layer);
        if (!name || !is_member(name) || i >= OCI_LAYERS_MAX)
            return invalid(l, err, "manifest.json names a layer that cannot be");
        if (strv_append(&l->members, name) < 0)
            return error_set(err, ENOMEM, "out of memory");
    }
    name = json_string_value(json_object_get(first, "Config"));
    if (!name || !is_member(name))
        return invalid(l, err, "manifest.json names no configuration");
    r = read_member(l, name, OCI_CONFIG_BYTES_MAX, &config, err);
    return r < 0 ? r : use_config(l, &config, err);
}

static bool has_member(const struct layout *l, const char *name)
{
    _cleanup_close_ int fd = open_member(l, name);

    return fd >= 0;
}

static int choose(struct layout *l, struct error *err)
{
    if (has_member(l, "index.json") && has_member(l, "oci-layout"))
        return choose_oci(l, err);
    if (has_member(l, "manifest.json"))
        return choose_docker(l, err);
    return 1;
}

/* ---- layers ---- */

static int claim(struct layout *l, size_t i, size_t *ret_claim, struct error *err)
{
    int r;

    do {
        r = unpackers_claim(l->unpackers, l->record.layers[i], ret_claim, err);
        /* Somebody else brings this layer, or a layer below is the same one. */
        if (r == -EAGAIN && unpackers_failed(l->unpackers))
            return unpackers_wait(l->unpackers, NULL, err);
    } while (r == -EAGAIN && http_pause(BUSY_USEC, NULL));
    return r;
}

static int take_layers(struct layout *l, image_progress_fn progress, void *userdata,
                       struct error *err)
{
    size_t n = strv_length(l->members);
    int r = unpackers_new(n, 0, &l->unpackers, err);

    for (size_t i = 0; r == 0 && i < n; i++) {
        char path[352];
        struct stat st;
        size_t number;
        int fd;

        r = claim(l, i, &number, err);
        if (r < 0 || r == 1) {
            r = MIN(r, 0);
            continue;
        }
        fd = open_member(l, l->members[i]);
        if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
            (void)fd_close(fd);
            return error_set_code(err, ERR_IMAGE_INVALID, "'%s' has no '%.100s'", l->source,
                                  l->members[i]);
        }
        unpackers_packed(l->unpackers, (uint64_t)st.st_size);
        /* The unpacker opens what we have opened, not a name that may have changed since. */
        (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        r = unpackers_add(l->unpackers, number, path, fd, err);
        if (progress)
            progress((int)(i * 80 / n), "unpacking", userdata);
    }
    return r < 0 ? r : unpackers_wait(l->unpackers, NULL, err);
}

int layout_import(const char *name, const char *source, image_progress_fn progress, void *userdata,
                  struct image *ret, struct error *err)
{
    _cleanup_(layout_done) struct layout l = {
        .source = source, .dir_fd = -EBADF, .work = {.lock_fd = -EBADF}};
    _cleanup_close_ int hold = -EBADF;
    struct stat st;
    int r, lock;

    if (stat(source, &st) < 0 || (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode)))
        return 1;
    r = store_lock(&lock, err); /* makes the directories */
    if (r < 0)
        return r;
    (void)fd_close(lock);
    r = store_hold(&hold, err);
    if (r == 0)
        r = oci_platform_parse(NULL, &l.platform, err);
    if (r == 0 && S_ISDIR(st.st_mode)) {
        l.dir_fd = open(source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        r = l.dir_fd < 0 ? error_set(err, errno, "open '%s': %s", source, errno_text(errno)) : 0;
        if (r == 0 && !(has_member(&l, "oci-layout") && has_member(&l, "index.json")))
            return 1;
    } else if (r == 0) {
        r = open_tar(&l, err);
    }
    if (r == 0)
        r = choose(&l, err);
    if (r != 0)
        return r;
    r = take_layers(&l, progress, userdata, err);
    if (r < 0)
        return r;
    (void)snprintf(l.record.name, sizeof(l.record.name), "%s", name);
    l.record.size_bytes = store_layers_bytes(l.record.layers);
    return store_publish_layers(&l.record, ret, err);
}
