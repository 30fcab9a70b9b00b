#include <archive.h>
#include <archive_entry.h>
#include <locale.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "dockerfile/copy.h"
#include "erofs/digest.h"
#include "layers/xattr.h"

/* Planned copies as bytes: a digest, or the tar of a layer. */
#define BLOCK_BYTES ((size_t)256 * 1024)

/* A file in a pack, as libarchive reads it. */
struct region {
    int fd; /* weak */
    uint64_t offset, left;
    char *block; /* owned */
};

static void region_init(struct region *g, const struct stack *stack, const struct tree_inode *inode)
{
    *g = (struct region){.fd = stack->layers[inode->layer - 1].pack_fd,
                         .offset = inode->offset,
                         .left = inode->size,
                         .block = malloc(BLOCK_BYTES)};
}

/* The next bytes: their number, 0 at the end, -1: they cannot be read. */
static ssize_t region_read(struct region *g)
{
    ssize_t n;

    if (!g->block)
        return -1;
    if (g->left == 0)
        return 0;
    n = pread(g->fd, g->block, (size_t)MIN(g->left, (uint64_t)BLOCK_BYTES), (off_t)g->offset);
    if (n <= 0)
        return -1;
    g->offset += (uint64_t)n;
    g->left -= (uint64_t)n;
    return n;
}

static la_ssize_t on_read(struct archive *a, void *userdata, const void **ret)
{
    struct region *g = userdata;
    ssize_t n = region_read(g);

    if (n < 0)
        archive_set_error(a, EIO, "the file cannot be read");
    *ret = g->block;
    return n;
}

static struct archive *open_archive(struct region *g)
{
    struct archive *a = archive_read_new();

    if (!a)
        return NULL;
    (void)archive_read_support_filter_bzip2(a);
    (void)archive_read_support_filter_gzip(a);
    (void)archive_read_support_filter_xz(a);
    (void)archive_read_support_filter_zstd(a);
    (void)archive_read_support_format_tar(a);
    if (archive_read_open(a, g, NULL, on_read, NULL) < ARCHIVE_WARN) {
        (void)archive_read_free(a);
        return NULL;
    }
    return a;
}

bool copy_is_archive(const struct stack *stack, const struct tree_inode *inode)
{
    struct archive_entry *entry;
    struct archive *a;
    struct region g;
    bool is;

    region_init(&g, stack, inode);
    a = inode->size > 0 ? open_archive(&g) : NULL;
    is = a && archive_read_next_header(a, &entry) >= ARCHIVE_WARN;
    (void)archive_read_free(a);
    free(g.block);
    return is;
}

/* ---- owners and modes ---- */

static void owner_of(const struct copy_spec *spec, const struct copy_item *item, uint32_t *uid,
                     uint32_t *gid)
{
    bool keep = spec->keep_owner && item->node && !spec->own;

    *uid = keep ? item->node->inode->uid : spec->own ? spec->uid : 0;
    *gid = keep ? item->node->inode->gid : spec->own ? spec->gid : 0;
}

static unsigned mode_of(const struct copy_spec *spec, const struct copy_item *item)
{
    unsigned mode = item->node && !item->unpack ? item->node->inode->mode
                    : item->text                ? S_IFREG | 0644u
                                                : S_IFDIR | 0755u;

    if (spec->mode >= 0 && (item->node || item->text) && !S_ISLNK(mode))
        mode = (mode & S_IFMT) | (unsigned)spec->mode;
    return mode;
}

/* ---- digest ---- */

static int digest_item(struct digest *d, const struct copy_spec *spec, const struct copy_item *item,
                       struct error *err)
{
    const struct tree_inode *inode = item->node ? item->node->inode : NULL;
    uint32_t uid, gid;
    struct region g;
    char head[160];
    ssize_t n = 0;

    owner_of(spec, item, &uid, &gid);
    (void)snprintf(head, sizeof(head), "%o %u %u %d %u %u %llu", mode_of(spec, item), uid, gid,
                   item->unpack, inode ? inode->rdev_major : 0, inode ? inode->rdev_minor : 0,
                   (unsigned long long)(inode ? inode->size : 0));
    digest_update(d, item->path, strlen(item->path) + 1);
    digest_update(d, head, strlen(head) + 1);
    if (item->text)
        digest_update(d, item->text, strlen(item->text) + 1);
    if (!inode)
        return 0;
    if (inode->xattrs_size)
        digest_update(d, inode->xattrs, inode->xattrs_size);
    if (S_ISLNK(inode->mode))
        digest_update(d, inode->target, strlen(inode->target) + 1);
    if (!S_ISREG(inode->mode))
        return 0;
    region_init(&g, spec->from, inode);
    while ((n = region_read(&g)) > 0)
        digest_update(d, g.block, (size_t)n);
    free(g.block);
    return n < 0 ? error_set(err, EIO, "'%.80s' cannot be read", item->path) : 0;
}

int copy_digest(const struct copy_list *list, char ret[65], struct error *err)
{
    struct digest d;
    int r = 0;

    digest_init(&d);
    for (size_t i = 0; r == 0 && i < list->n; i++)
        r = digest_item(&d, list->spec, &list->items[i], err);
    digest_final(&d, ret);
    return r;
}

/* ---- tar ---- */

struct writer {
    const struct copy_spec *spec; /* weak */
    struct archive *out;          /* owned */
    const _Atomic bool *cancel;   /* weak; may be NULL */
};

static int write_failed(struct archive *a, struct error *err)
{
    int e = archive_errno(a);
    const char *text = archive_error_string(a);

    return error_set(err, e > 0 ? e : EIO, "write the layer: %s", text ? text : errno_text(EIO));
}

static int put_data(const struct writer *w, const void *data, size_t size, struct error *err)
{
    if (w->cancel && atomic_load(w->cancel))
        return error_set(err, ECANCELED, "cancelled");
    return archive_write_data(w->out, data, size) < 0 ? write_failed(w->out, err) : 0;
}

static void fill_entry(const struct writer *w, const struct copy_item *item,
                       struct archive_entry *entry)
{
    const struct tree_inode *inode = item->node ? item->node->inode : NULL;
    unsigned mode = mode_of(w->spec, item);
    uint32_t uid, gid;

    owner_of(w->spec, item, &uid, &gid);
    archive_entry_copy_pathname(entry, item->path);
    archive_entry_set_mode(entry, mode);
    archive_entry_set_uid(entry, uid);
    archive_entry_set_gid(entry, gid);
    archive_entry_set_mtime(entry, inode ? inode->mtime : 0, inode ? (long)inode->mtime_nsec : 0);
    if (item->text)
        archive_entry_set_size(entry, (la_int64_t)strlen(item->text));
    if (!inode)
        return;
    xattr_unpack(inode->xattrs, inode->xattrs_size, entry);
    if (S_ISREG(mode))
        archive_entry_set_size(entry, (la_int64_t)inode->size);
    else if (S_ISLNK(mode))
        archive_entry_copy_symlink(entry, inode->target);
    else if (S_ISCHR(mode) || S_ISBLK(mode))
        archive_entry_set_rdev(entry, makedev(inode->rdev_major, inode->rdev_minor));
}

static int put_item(const struct writer *w, const struct copy_item *item, struct error *err)
{
    struct archive_entry *entry = archive_entry_new();
    struct region g;
    ssize_t n = 0;
    int r = 0;

    if (!entry)
        return error_set(err, ENOMEM, "out of memory");
    fill_entry(w, item, entry);
    if (archive_write_header(w->out, entry) < ARCHIVE_WARN)
        r = write_failed(w->out, err);
    archive_entry_free(entry);
    if (r == 0 && item->text)
        return put_data(w, item->text, strlen(item->text), err);
    if (r < 0 || !item->node || !S_ISREG(item->node->inode->mode))
        return r;
    region_init(&g, w->spec->from, item->node->inode);
    while (r == 0 && (n = region_read(&g)) > 0)
        r = put_data(w, g.block, (size_t)n, err);
    free(g.block);
    return r == 0 && n < 0 ? error_set(err, EIO, "'%.80s' cannot be read", item->path) : r;
}

/* DEST/NAME without dots; false: it would lead out of DEST. */
static bool join(const char *dest, const char *name, char path[LAYER_PATH_MAX])
{
    size_t used = strlen(dest);

    if (used >= LAYER_PATH_MAX)
        return false;
    memcpy(path, dest, used);
    for (const char *s = name; *s; s += strspn(s, "/")) {
        size_t n = strcspn(s, "/");

        if ((n == 2 && memcmp(s, "..", 2) == 0) || used + n + 2 > LAYER_PATH_MAX)
            return false;
        if (n > 0 && !(n == 1 && *s == '.')) {
            if (used)
                path[used++] = '/';
            memcpy(path + used, s, n);
            used += n;
        }
        s += n;
    }
    path[used] = '\0';
    return true;
}

/* The bytes of an entry of an archive, holes filled. */
static int put_content(const struct writer *w, struct archive *in, uint64_t size, struct error *err)
{
    static const char zeros[65536];
    uint64_t done = 0;
    int r = 0;

    while (r == 0 && done < size) {
        const void *data = NULL;
        la_int64_t offset = (la_int64_t)size;
        size_t n = 0;
        int got = archive_read_data_block(in, &data, &n, &offset);

        if (got < ARCHIVE_WARN)
            return error_set_code(err, ERR_IMAGE_INVALID, "the archive is damaged: %s",
                                  archive_error_string(in));
        if (got == ARCHIVE_EOF) {
            n = 0;
            offset = (la_int64_t)size;
        }
        while (r == 0 && done < (uint64_t)offset && done < size) {
            size_t gap = (size_t)MIN(MIN((uint64_t)offset, size) - done, sizeof(zeros));

            r = put_data(w, zeros, gap, err);
            done += gap;
        }
        n = (size_t)MIN((uint64_t)n, size - done);
        if (r == 0 && n > 0)
            r = put_data(w, data, n, err);
        done += n;
    }
    return r;
}

static int put_unpacked(const struct writer *w, const struct copy_item *item, struct archive *in,
                        struct archive_entry *entry, struct error *err)
{
    char path[LAYER_PATH_MAX], target[LAYER_PATH_MAX];
    const char *name = archive_entry_pathname(entry), *link = archive_entry_hardlink(entry);

    if (!name || !join(item->path, name, path) || (link && !join(item->path, link, target)))
        return error_set_code(err, ERR_IMAGE_INVALID,
                              "the archive's entry '%.200s' leads out of it", name ? name : "?");
    if (strcmp(path, item->path) == 0)
        return 0; /* the archive's own root */
    archive_entry_copy_pathname(entry, path);
    if (link)
        archive_entry_copy_hardlink(entry, target);
    if (w->spec->own) {
        archive_entry_set_uid(entry, w->spec->uid);
        archive_entry_set_gid(entry, w->spec->gid);
    }
    archive_entry_copy_uname(entry, NULL);
    archive_entry_copy_gname(entry, NULL);
    archive_entry_sparse_clear(entry);
    if (archive_write_header(w->out, entry) < ARCHIVE_WARN)
        return write_failed(w->out, err);
    return archive_entry_size(entry) > 0
               ? put_content(w, in, (uint64_t)archive_entry_size(entry), err)
               : 0;
}

static int unpack_item(const struct writer *w, const struct copy_item *item, struct error *err)
{
    struct archive_entry *entry;
    struct archive *in;
    struct region g;
    uint64_t count = 0;
    int r = 0;

    region_init(&g, w->spec->from, item->node->inode);
    in = open_archive(&g);
    while (r == 0 && in) {
        int next = archive_read_next_header(in, &entry);

        if (next == ARCHIVE_EOF)
            break;
        if (next < ARCHIVE_WARN)
            r = error_set_code(err, ERR_IMAGE_INVALID, "the archive is damaged: %s",
                               archive_error_string(in));
        else if (++count > LAYER_ENTRIES_MAX)
            r = error_set_code(err, ERR_LIMIT_EXCEEDED, "the archive has too many entries");
        else
            r = put_unpacked(w, item, in, entry, err);
    }
    (void)archive_read_free(in);
    free(g.block);
    return r;
}

static void locale_cleanup(locale_t *l)
{
    if (*l == (locale_t)0)
        return;
    (void)uselocale(LC_GLOBAL_LOCALE);
    freelocale(*l);
}

int copy_write(const struct copy_list *list, const char *tar_path, const _Atomic bool *cancel,
               struct error *err)
{
    /* libarchive converts names by the thread's locale. */
    _cleanup_(locale_cleanup) locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    struct writer w = {.spec = list->spec, .out = archive_write_new(), .cancel = cancel};
    int r = 0;

    if (!w.out)
        return error_set(err, ENOMEM, "out of memory");
    if (utf8 != (locale_t)0)
        (void)uselocale(utf8);
    (void)archive_write_set_format_pax_restricted(w.out);
    (void)archive_write_set_bytes_per_block(w.out, (int)BLOCK_BYTES);
    (void)archive_write_set_bytes_in_last_block(w.out, 1);
    if (archive_write_open_filename(w.out, tar_path) < ARCHIVE_WARN)
        r = write_failed(w.out, err);
    for (size_t i = 0; r == 0 && i < list->n; i++)
        r = list->items[i].unpack ? unpack_item(&w, &list->items[i], err)
                                  : put_item(&w, &list->items[i], err);
    if (r == 0 && archive_write_close(w.out) < ARCHIVE_WARN)
        r = write_failed(w.out, err);
    (void)archive_write_free(w.out);
    return r;
}
