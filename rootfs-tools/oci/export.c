#include "oci/export.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <jansson.h>
#include <locale.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "erofs/digest.h"
#include "erofs/store.h"
#include "layers/stack.h"
#include "layers/xattr.h"

#define BLOCK_BYTES ((size_t)256 * 1024)
#define OCI "application/vnd.oci.image."

struct exporter {
    const _Atomic bool *cancel;
    struct stack stack;
    struct archive *out; /* owned */
    char *block;         /* owned */
    char path[4200];     /* of the entry being written */
};

static void json_cleanup(json_t **json)
{
    json_decref(*json);
}

static void locale_cleanup(locale_t *l)
{
    if (*l == (locale_t)0)
        return;
    (void)uselocale(LC_GLOBAL_LOCALE);
    freelocale(*l);
}

static void exporter_done(struct exporter *x)
{
    (void)archive_write_free(x->out);
    stack_done(&x->stack);
    free(x->block);
}

static int write_failed(struct archive *a, struct error *err)
{
    int e = archive_errno(a);
    const char *text = archive_error_string(a);

    return error_set(err, e > 0 ? e : EIO, "write the archive: %s", text ? text : errno_text(EIO));
}

/* ---- the layer ---- */

static int put_data(struct exporter *x, const struct tree_inode *inode, struct error *err)
{
    uint64_t done = 0;

    while (done < inode->size) {
        size_t n = (size_t)MIN(inode->size - done, BLOCK_BYTES);
        ssize_t got = pread(x->stack.layers[inode->layer - 1].pack_fd, x->block, n,
                            (off_t)(inode->offset + done));

        if (x->cancel && atomic_load(x->cancel))
            return error_set(err, ECANCELED, "cancelled");
        if (got <= 0)
            return error_set(err, EIO, "read a layer: %s", got < 0 ? errno_text(errno) : "it ends");
        if (archive_write_data(x->out, x->block, (size_t)got) < 0)
            return write_failed(x->out, err);
        done += (uint64_t)got;
    }
    return 0;
}

/* Where the first name of an inode was written, for the others to be hard links to. */
static int put_node(struct exporter *x, struct tree_node *node, char **firsts, struct error *err)
{
    struct tree_inode *inode = node->inode;
    struct archive_entry *entry = archive_entry_new();
    bool link = inode->place > 0;
    int r = 0;

    if (!entry)
        return error_set(err, ENOMEM, "out of memory");
    archive_entry_copy_pathname(entry, x->path[0] ? x->path : ".");
    archive_entry_set_mode(entry, inode->mode);
    archive_entry_set_uid(entry, inode->uid);
    archive_entry_set_gid(entry, inode->gid);
    archive_entry_set_mtime(entry, inode->mtime, (long)inode->mtime_nsec);
    if (link) {
        archive_entry_copy_hardlink(entry, firsts[inode->place - 1]);
    } else {
        xattr_unpack(inode->xattrs, inode->xattrs_size, entry);
        if (S_ISREG(inode->mode))
            archive_entry_set_size(entry, (la_int64_t)inode->size);
        else if (S_ISLNK(inode->mode))
            archive_entry_copy_symlink(entry, inode->target);
        else if (S_ISCHR(inode->mode) || S_ISBLK(inode->mode))
            archive_entry_set_rdev(entry, makedev(inode->rdev_major, inode->rdev_minor));
    }
    if (archive_write_header(x->out, entry) < ARCHIVE_WARN)
        r = write_failed(x->out, err);
    archive_entry_free(entry);
    if (r == 0 && !link && S_ISREG(inode->mode))
        r = put_data(x, inode, err);
    return r;
}

static int put_tree(struct exporter *x, struct tree_node *node, char ***firsts, struct error *err)
{
    size_t used = strlen(x->path);
    int r = put_node(x, node, *firsts, err);

    if (r == 0 && node->inode->nlink > 1 && !S_ISDIR(node->inode->mode) &&
        node->inode->place == 0) {
        r = strv_append(firsts, x->path);
        node->inode->place = strv_length(*firsts);
    }
    if (r == 0 && S_ISDIR(node->inode->mode))
        r = tree_sort(node);
    for (struct tree_node *c = node->children; r == 0 && c; c = c->next) {
        if (used + c->name_size + 2 > sizeof(x->path))
            return error_set(err, ENAMETOOLONG, "'%.100s…': the path is too long", x->path);
        (void)snprintf(x->path + used, sizeof(x->path) - used, "%s%.*s", used ? "/" : "",
                       (int)c->name_size, c->name);
        r = put_tree(x, c, firsts, err);
        x->path[used] = '\0';
    }
    return r;
}

static int put_layer(struct exporter *x, const char *path, struct error *err)
{
    _cleanup_strv_ char **firsts = NULL;
    int r;

    x->out = archive_write_new();
    x->block = malloc(BLOCK_BYTES);
    if (!x->out || !x->block)
        return error_set(err, ENOMEM, "out of memory");
    (void)archive_write_set_format_pax_restricted(x->out);
    (void)archive_write_set_bytes_per_block(x->out, (int)BLOCK_BYTES);
    (void)archive_write_set_bytes_in_last_block(x->out, 1);
    if (archive_write_open_filename(x->out, path) < ARCHIVE_WARN)
        return write_failed(x->out, err);
    r = put_tree(x, tree_root(x->stack.tree), &firsts, err);
    if (r == -ENOMEM)
        return error_set(err, ENOMEM, "out of memory");
    if (r == 0 && archive_write_close(x->out) < ARCHIVE_WARN)
        r = write_failed(x->out, err);
    return r;
}

/* ---- the layout ---- */

static int put_file(struct archive *out, const char *name, const void *data, size_t size,
                    struct error *err)
{
    struct archive_entry *entry = archive_entry_new();
    int r = 0;

    if (!entry)
        return error_set(err, ENOMEM, "out of memory");
    archive_entry_copy_pathname(entry, name);
    archive_entry_set_mode(entry, S_IFREG | 0644);
    archive_entry_set_size(entry, (la_int64_t)size);
    if (archive_write_header(out, entry) < ARCHIVE_WARN ||
        (data && size && archive_write_data(out, data, size) < 0))
        r = write_failed(out, err);
    archive_entry_free(entry);
    return r;
}

/* A JSON document as a blob; its descriptor goes to *ret. */
static int put_json(struct archive *out, json_t *json, const char *media_type, json_t **ret,
                    struct error *err)
{
    _cleanup_free_ char *text = json ? json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    char name[96], sha256[65];
    int r;

    if (!text)
        return error_set(err, ENOMEM, "out of memory");
    digest_bytes(text, strlen(text), sha256);
    (void)snprintf(name, sizeof(name), "blobs/sha256/%s", sha256);
    r = put_file(out, name, text, strlen(text), err);
    if (r < 0)
        return r;
    (void)snprintf(name, sizeof(name), "sha256:%s", sha256);
    *ret = json_pack("{s:s, s:s, s:I}", "mediaType", media_type, "digest", name, "size",
                     (json_int_t)strlen(text));
    return *ret ? 0 : error_set(err, ENOMEM, "out of memory");
}

static int put_blob_file(struct archive *out, const char *path, const char *sha256, uint64_t size,
                         char *block, struct error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    char name[96];
    int r;

    (void)snprintf(name, sizeof(name), "blobs/sha256/%s", sha256);
    r = fd < 0 ? error_set(err, errno, "open '%s': %s", path, errno_text(errno))
               : put_file(out, name, NULL, size, err);
    while (r == 0) {
        ssize_t n = fd_read_full(fd, block, BLOCK_BYTES);

        if (n == 0)
            break;
        if (n < 0)
            r = error_set(err, (int)-n, "read '%s': %s", path, errno_text((int)-n));
        else if (archive_write_data(out, block, (size_t)n) < 0)
            r = write_failed(out, err);
    }
    return r;
}

static int put_documents(struct archive *out, const struct record *record, const char *sha256,
                         uint64_t size, struct error *err)
{
    static const char layout[] = "{\"imageLayoutVersion\":\"1.0.0\"}";
    char digest[DIGEST_SIZE], created[32];
    _cleanup_(json_cleanup) json_t *config = NULL, *manifest = NULL, *index = NULL;
    json_t *config_blob = NULL, *manifest_blob = NULL;
    _cleanup_free_ char *text = NULL;
    int r;

    (void)snprintf(digest, sizeof(digest), "sha256:%s", sha256);
    clock_format_wall(record->created_wall_usec, created, sizeof(created));
    config = json_pack("{s:s, s:s, s:s, s:o, s:{s:s, s:[s]}}", "created", created, "architecture",
                       record->config.architecture[0] ? record->config.architecture : "amd64", "os",
                       "linux", "config", image_config_to_json(&record->config), "rootfs", "type",
                       "layers", "diff_ids", digest);
    r = put_file(out, "oci-layout", layout, strlen(layout), err);
    if (r == 0)
        r = put_json(out, config, OCI "config.v1+json", &config_blob, err);
    if (r < 0)
        return r;
    manifest = json_pack("{s:i, s:s, s:o, s:[{s:s, s:s, s:I}]}", "schemaVersion", 2, "mediaType",
                         OCI "manifest.v1+json", "config", config_blob, "layers", "mediaType",
                         OCI "layer.v1.tar", "digest", digest, "size", (json_int_t)size);
    r = put_json(out, manifest, OCI "manifest.v1+json", &manifest_blob, err);
    if (r < 0)
        return r;
    (void)json_object_set_new(
        manifest_blob, "annotations",
        json_pack("{s:s}", "org.opencontainers.image.ref.name", record->name));
    index = json_pack("{s:i, s:s, s:[o]}", "schemaVersion", 2, "mediaType", OCI "index.v1+json",
                      "manifests", manifest_blob);
    text = index ? json_dumps(index, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    return text ? put_file(out, "index.json", text, strlen(text), err)
                : error_set(err, ENOMEM, "out of memory");
}

static int put_archive(struct exporter *x, const struct record *record, const char *layer,
                       const char *path, struct error *err)
{
    char sha256[65];
    struct stat st;
    int r = digest_file(layer, sha256, err);

    if (r == 0 && stat(layer, &st) < 0)
        r = error_set(err, errno, "'%s': %s", layer, errno_text(errno));
    if (r < 0)
        return r;
    (void)archive_write_free(x->out);
    x->out = archive_write_new();
    if (!x->out)
        return error_set(err, ENOMEM, "out of memory");
    (void)archive_write_set_format_pax_restricted(x->out);
    if (archive_write_open_filename(x->out, path) < ARCHIVE_WARN)
        return write_failed(x->out, err);
    r = put_documents(x->out, record, sha256, (uint64_t)st.st_size, err);
    if (r == 0)
        r = put_blob_file(x->out, layer, sha256, (uint64_t)st.st_size, x->block, err);
    if (r == 0 && archive_write_close(x->out) < ARCHIVE_WARN)
        r = write_failed(x->out, err);
    return r;
}

int image_export(const char *name, const char *path, const _Atomic bool *cancel, struct error *err)
{
    _cleanup_(exporter_done) struct exporter x = {.cancel = cancel};
    _cleanup_(locale_cleanup) locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    _cleanup_store_work_ struct store_work work = {.lock_fd = -EBADF};
    _cleanup_record_ struct record record = {0};
    _cleanup_free_ char *beside = string_printf("%s.part", path);
    _cleanup_close_ int hold = -EBADF;
    char layer[272];
    int r = record_find(name, &record, err);

    if (utf8 != (locale_t)0)
        (void)uselocale(utf8);
    if (r == 0 && !beside)
        r = error_set(err, ENOMEM, "out of memory");
    if (r == 0 && !record.layers)
        r = error_set_code(err, ERR_UNSUPPORTED,
                           "image '%s' was imported as one file system; only images of layers can "
                           "be exported",
                           name);
    if (r == 0)
        r = store_hold(&hold, err);
    if (r == 0)
        r = stack_open(record.layers, &x.stack, err);
    if (r == 0)
        r = store_work_init(&work, err);
    if (r < 0)
        return r;
    (void)snprintf(layer, sizeof(layer), "%s/layer", work.dir);
    r = put_layer(&x, layer, err);
    if (r == 0)
        r = put_archive(&x, &record, layer, beside, err);
    if (r == 0 && rename(beside, path) < 0)
        r = error_set(err, errno, "rename '%s': %s", beside, errno_text(errno));
    if (r < 0)
        (void)unlink(beside);
    error_wrap(err, "export image '%s'", name);
    return r;
}
