#include "layers/layer.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <locale.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fault.h"
#include "base/fd.h"
#include "erofs/digest.h"
#include "layers/index.h"
#include "layers/xattr.h"

/*
 * Theory of operation. Two readers in a row: the first takes the compression off and gives bytes,
 * which are hashed on their way to the second, which reads the tar. Names are only checked and
 * written down; what they mean is decided when layers are put together (tree.c).
 */

#define BLOCK_BYTES ((size_t)128 * 1024)
#define WHITEOUT ".wh."
#define OPAQUE ".wh..wh..opq"
#define SPACE_CHECK_BYTES (UINT64_C(64) * 1024 * 1024)
#define SPACE_MIN_BYTES (UINT64_C(128) * 1024 * 1024) /* that must stay free */

struct unpacker {
    struct layer_unpack *u; /* weak */
    struct archive *bytes;  /* owned */
    struct archive *tar;    /* owned */
    struct digest digest;   /* of the uncompressed bytes */
    bool drained;
    struct buf index;
    size_t n_entries;
    int pack_fd;                  /* owned */
    uint64_t pack_size;           /* a multiple of LAYER_ALIGN */
    uint64_t small_at, small_end; /* room in the last block of small files */
    uint64_t checked;             /* bytes at the last look at the free space */
    struct error err;             /* of the inner reader */
};

static void unpacker_done(struct unpacker *p)
{
    (void)archive_read_free(p->tar);
    (void)archive_read_free(p->bytes);
    digest_done(&p->digest);
    buf_done(&p->index);
    p->pack_fd = fd_close(p->pack_fd);
}

static int refuse(const struct unpacker *p, struct error *err, const char *entry, const char *why)
{
    return error_set_code(err, ERR_IMAGE_INVALID, "%s: entry '%.200s' %s", p->u->name, entry, why);
}

static int too_much(const struct unpacker *p, struct error *err, const char *what)
{
    return error_set_code(err, ERR_LIMIT_EXCEEDED, "%s: %s", p->u->name, what);
}

static int damaged(const struct unpacker *p, struct archive *a, struct error *err)
{
    const char *text = archive_error_string(a);

    return error_set_code(err, ERR_IMAGE_INVALID, "%s is damaged after %zu entries: %s", p->u->name,
                          p->n_entries, text ? text : "unknown reason");
}

/* ---- bytes ---- */

static int count_bytes(struct unpacker *p, uint64_t size)
{
    struct layer_budget *b = p->u->budget;
    uint64_t total = atomic_fetch_add(&b->bytes, size) + size;
    uint64_t packed = atomic_load(&b->packed);

    if (p->u->cancel && atomic_load(p->u->cancel))
        return error_set(&p->err, ECANCELED, "%s: cancelled", p->u->name);
    if (total > LAYER_BYTES_MAX)
        return too_much(p, &p->err, "the image is larger than 64 GiB");
    if (total > LAYER_RATIO_FREE && packed > 0 && total / LAYER_RATIO_MAX > packed)
        return too_much(p, &p->err, "it unpacks to more than a hundred times its size");
    return 0;
}

static la_ssize_t read_bytes(struct archive *a, void *userdata, const void **ret)
{
    struct unpacker *p = userdata;
    la_int64_t offset;
    size_t size = 0;
    int r;

    do {
        r = archive_read_data_block(p->bytes, ret, &size, &offset);
    } while (r == ARCHIVE_OK && size == 0);
    if (r == ARCHIVE_EOF) {
        p->drained = true;
        return 0;
    }
    if (r < ARCHIVE_WARN) {
        (void)damaged(p, p->bytes, &p->err);
    } else if (count_bytes(p, size) == 0) {
        digest_update(&p->digest, *ret, size);
        return (la_ssize_t)size;
    }
    archive_set_error(a, EIO, "%s", p->err.text);
    return -1;
}

static int open_readers(struct unpacker *p, struct error *err)
{
    struct archive_entry *entry;
    int r;

    p->bytes = archive_read_new();
    p->tar = archive_read_new();
    digest_init(&p->digest);
    if (!p->bytes || !p->tar || !p->digest.context)
        return error_set(err, ENOMEM, "%s: out of memory", p->u->name);
    (void)archive_read_support_filter_gzip(p->bytes);
    (void)archive_read_support_filter_zstd(p->bytes);
    (void)archive_read_support_format_raw(p->bytes);
    (void)archive_read_support_format_empty(p->bytes);
    (void)archive_read_support_format_tar(p->tar);
    (void)archive_read_support_format_empty(p->tar);
    r = archive_read_open_filename(p->bytes, p->u->blob, BLOCK_BYTES);
    if (r >= ARCHIVE_WARN) {
        r = archive_read_next_header(p->bytes, &entry);
        p->drained = r == ARCHIVE_EOF;
    }
    if (r < ARCHIVE_WARN)
        return damaged(p, p->bytes, err);
    r = archive_read_open(p->tar, p, NULL, read_bytes, NULL);
    if (r >= ARCHIVE_WARN)
        return 0;
    if (p->err.errnum) {
        error_copy(err, &p->err);
        return -err->errnum;
    }
    return error_set_code(err, ERR_IMAGE_INVALID, "%s is no tar archive", p->u->name);
}

static int tar_failed(struct unpacker *p, struct error *err)
{
    if (p->err.errnum) {
        error_copy(err, &p->err);
        return -err->errnum;
    }
    return damaged(p, p->tar, err);
}

/* ---- names ---- */

/*
 * Copies a name without leading slashes and `.` components. `..` is refused, even one that would
 * stay inside.
 */
static int clean_name(const struct unpacker *p, const char *name, char *path, struct error *err)
{
    size_t used = 0;
    unsigned depth = 0;

    for (const char *s = name; *s; s += strspn(s, "/")) {
        size_t n = strcspn(s, "/");

        if (n == 2 && memcmp(s, "..", 2) == 0)
            return refuse(p, err, name, "leads out of the image");
        if (n > LAYER_NAME_MAX || used + n + 2 > LAYER_PATH_MAX)
            return refuse(p, err, name, "has too long a name");
        if (n > 0 && !(n == 1 && *s == '.')) {
            if (++depth > LAYER_DEPTH_MAX)
                return refuse(p, err, name, "is nested too deep");
            if (used)
                path[used++] = '/';
            memcpy(path + used, s, n);
            used += n;
        }
        s += n;
    }
    path[used] = '\0';
    return 0;
}

/* Recognises whiteouts; takes their marks off the path. True: there is nothing to add. */
static int take_whiteout(const struct unpacker *p, char *path, struct layer_entry *e,
                         bool *ret_skip, struct error *err)
{
    char *slash = strrchr(path, '/');
    char *name = slash ? slash + 1 : path;

    *ret_skip = false;
    if (strncmp(name, WHITEOUT, strlen(WHITEOUT)) != 0)
        return 0;
    if (strcmp(name, OPAQUE) == 0) {
        e->type = LAYER_OPAQUE;
        *(slash ? slash : path) = '\0';
    } else if (strncmp(name, WHITEOUT WHITEOUT, 2 * strlen(WHITEOUT)) == 0) {
        *ret_skip = true; /* aufs kept its own affairs there */
    } else {
        const char *hidden = name + strlen(WHITEOUT);

        if (hidden[0] == '\0' || strcmp(hidden, ".") == 0 || strcmp(hidden, "..") == 0)
            return refuse(p, err, path, "removes nothing that has a name");
        e->type = LAYER_WHITEOUT;
        memmove(name, hidden, strlen(hidden) + 1);
    }
    e->size = 0;
    e->xattrs_size = 0;
    return 0;
}

/* ---- content ---- */

static int check_space(struct unpacker *p, struct error *err)
{
    struct statvfs fs;

    if (p->pack_size - p->checked < SPACE_CHECK_BYTES)
        return 0;
    p->checked = p->pack_size;
    if (fstatvfs(p->pack_fd, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < SPACE_MIN_BYTES)
        return error_set(err, ENOSPC, "%s: less than %llu MiB are left on the cache's file system",
                         p->u->name, (unsigned long long)(SPACE_MIN_BYTES >> 20));
    return 0;
}

static bool is_zero(const uint8_t *data, size_t size)
{
    return size > 0 && data[0] == 0 && memcmp(data, data + 1, size - 1) == 0;
}

static int write_at(const struct unpacker *p, const uint8_t *data, size_t size, uint64_t offset,
                    struct error *err)
{
    while (size > 0) {
        ssize_t n = pwrite(p->pack_fd, data, size, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_set(err, errno, "write '%s': %s", p->u->pack, errno_text(errno));
        data += n;
        offset += (uint64_t)n;
        size -= (size_t)n;
    }
    return 0;
}

static uint64_t find_room(struct unpacker *p, uint64_t size)
{
    uint64_t start = p->pack_size;

    if (size > LAYER_SMALL_MAX) {
        p->pack_size += (size + LAYER_ALIGN - 1) & ~(uint64_t)(LAYER_ALIGN - 1);
        return start;
    }
    if (p->small_end - p->small_at < size) {
        p->small_at = start;
        p->small_end = p->pack_size = start + LAYER_ALIGN;
    }
    start = p->small_at;
    p->small_at += size;
    return start;
}

/* Puts a file's bytes into the pack; what is zero stays a hole. */
static int copy_content(struct unpacker *p, struct layer_entry *e, struct error *err)
{
    uint64_t start = find_room(p, e->size);

    for (;;) {
        const void *data;
        size_t size;
        la_int64_t offset;
        int r = archive_read_data_block(p->tar, &data, &size, &offset);

        if (r == ARCHIVE_EOF)
            break;
        if (r < ARCHIVE_WARN)
            return tar_failed(p, err);
        if (offset < 0 || (uint64_t)offset > e->size || size > e->size - (uint64_t)offset)
            return refuse(p, err, e->path, "has more bytes than it says");
        if (size >= LAYER_ALIGN && is_zero(data, size))
            continue;
        r = write_at(p, data, size, start + (uint64_t)offset, err);
        if (r < 0)
            return r;
    }
    e->offset = start;
    return check_space(p, err);
}

/* ---- entries ---- */

static bool take_type(struct archive_entry *entry, struct layer_entry *e)
{
    if (archive_entry_hardlink(entry)) {
        e->type = LAYER_HARDLINK;
        return true;
    }
    switch (archive_entry_filetype(entry)) {
    case AE_IFREG:
        e->type = LAYER_FILE;
        return true;
    case AE_IFDIR:
        e->type = LAYER_DIR;
        return true;
    case AE_IFLNK:
        e->type = LAYER_SYMLINK;
        return true;
    case AE_IFCHR:
        e->type = LAYER_CHAR;
        return true;
    case AE_IFBLK:
        e->type = LAYER_BLOCK;
        return true;
    case AE_IFIFO:
        e->type = LAYER_FIFO;
        return true;
    default:
        return false; /* sockets, and what tar has no letter for */
    }
}

static int take_links(struct unpacker *p, struct archive_entry *entry, struct layer_entry *e,
                      char *target, struct error *err)
{
    const char *text;

    if (e->type == LAYER_HARDLINK) {
        e->target = target;
        return clean_name(p, archive_entry_hardlink(entry), target, err);
    }
    if (e->type != LAYER_SYMLINK)
        return 0;
    text = archive_entry_symlink(entry);
    if (!text || text[0] == '\0' || strlen(text) >= LAYER_PATH_MAX)
        return refuse(p, err, e->path, "is a symbolic link without a sensible target");
    memcpy(target, text, strlen(text) + 1);
    e->target = target;
    return 0;
}

static int add_entry(struct unpacker *p, struct archive_entry *entry, struct error *err)
{
    char path[LAYER_PATH_MAX], target[LAYER_PATH_MAX];
    _cleanup_free_ uint8_t *xattrs = NULL;
    struct layer_entry e = {.path = path};
    const char *name = archive_entry_pathname(entry);
    bool skip = false;
    int r;

    if (atomic_fetch_add(&p->u->budget->entries, 1) >= LAYER_ENTRIES_MAX)
        return too_much(p, err, "the image has more than a million entries");
    if (!name)
        return refuse(p, err, "?", "has no name that can be read");
    r = clean_name(p, name, path, err);
    if (r < 0)
        return r;
    if (!take_type(entry, &e))
        return refuse(p, err, path, "is of a type that is not known");
    r = take_links(p, entry, &e, target, err);
    if (r < 0)
        return r;
    if (path[0] == '\0' && e.type != LAYER_DIR)
        return refuse(p, err, name, "would replace the root directory");
    e.mode = (uint16_t)(archive_entry_perm(entry) & 07777);
    e.uid = (uint32_t)archive_entry_uid(entry);
    e.gid = (uint32_t)archive_entry_gid(entry);
    e.mtime = archive_entry_mtime(entry);
    e.mtime_nsec = (uint32_t)archive_entry_mtime_nsec(entry) % 1000000000u;
    e.major = (uint32_t)archive_entry_rdevmajor(entry);
    e.minor = (uint32_t)archive_entry_rdevminor(entry);
    if (e.type == LAYER_FILE)
        e.size = (uint64_t)archive_entry_size(entry);
    if (e.size > LAYER_BYTES_MAX)
        return too_much(p, err, "a file is larger than 64 GiB");
    r = xattr_pack(entry, &xattrs, &e.xattrs_size);
    if (r < 0)
        return r == -E2BIG ? refuse(p, err, path, "has too many extended attributes")
                           : error_set(err, -r, "%s: out of memory", p->u->name);
    e.xattrs = xattrs;
    r = take_whiteout(p, path, &e, &skip, err);
    if (r < 0 || skip)
        return r;
    if (e.type == LAYER_FILE && e.size > 0)
        r = copy_content(p, &e, err);
    if (r < 0)
        return r;
    r = index_add(&p->index, &e);
    if (r < 0)
        return error_set(err, -r, "%s: its index: %s", p->u->name, errno_text(-r));
    p->n_entries++;
    return 0;
}

static int read_tar(struct unpacker *p, struct error *err)
{
    struct archive_entry *entry;
    const void *rest;
    la_ssize_t n;

    for (;;) {
        int r = archive_read_next_header(p->tar, &entry);

        if (r == ARCHIVE_EOF)
            break;
        if (r < ARCHIVE_WARN)
            return tar_failed(p, err);
        r = add_entry(p, entry, err);
        if (r < 0)
            return r;
    }
    /* What follows the end of the tar counts for the digest. */
    while (!p->drained) {
        n = read_bytes(p->tar, p, &rest);
        if (n < 0)
            return tar_failed(p, err);
    }
    return 0;
}

static void locale_cleanup(locale_t *l)
{
    if (*l == (locale_t)0)
        return;
    (void)uselocale(LC_GLOBAL_LOCALE);
    freelocale(*l);
}

/*
 * The pack ends with a written byte, not with a hole: so its length is only what the index says
 * when the bytes before are on disk too, and one that a crash cut short is noticed.
 */
static int end_pack(const struct unpacker *p, struct error *err)
{
    struct stat st;

    if (fstat(p->pack_fd, &st) < 0)
        return error_set(err, errno, "write '%s': %s", p->u->pack, errno_text(errno));
    if ((uint64_t)st.st_size >= p->pack_size)
        return 0;
    return write_at(p, (const uint8_t *)"", 1, p->pack_size - 1, err);
}

static int unpack_into(struct unpacker *p, struct error *err)
{
    struct layer_unpack *u = p->u;
    char sha256[65];
    int r;

    p->pack_fd = open(u->pack, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (p->pack_fd < 0)
        return error_set(err, errno, "create '%s': %s", u->pack, errno_text(errno));
    r = index_begin(&p->index);
    if (r < 0)
        return error_set(err, -r, "%s: out of memory", u->name);
    r = fault_check("layer-unpack", err);
    if (r < 0)
        return r;
    r = open_readers(p, err);
    if (r == 0 && !p->drained)
        r = read_tar(p, err);
    if (r < 0)
        return r;
    digest_final(&p->digest, sha256);
    (void)snprintf(u->ret_diff_id, sizeof(u->ret_diff_id), "sha256:%s", sha256);
    if (u->diff_id && strcmp(u->diff_id, u->ret_diff_id) != 0)
        return error_set_code(err, ERR_IMAGE_INVALID,
                              "%s: its content is %.20s… and should be %.20s…", u->name,
                              u->ret_diff_id, u->diff_id);
    r = end_pack(p, err);
    if (r == 0)
        r = fault_check("layer-index", err);
    if (r < 0)
        return r;
    u->ret_bytes = p->pack_size + p->index.size;
    return index_write(&p->index, u->index, p->n_entries, p->pack_size, err);
}

int layer_unpack(struct layer_unpack *u, struct error *err)
{
    _cleanup_(unpacker_done) struct unpacker p = {
        .u = u, .pack_fd = -EBADF, .index = {.max = INDEX_BYTES_MAX}};
    /* Names are UTF-8 by the standard, or any bytes; libarchive converts by the thread's locale. */
    _cleanup_(locale_cleanup) locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    int r;

    if (utf8 != (locale_t)0)
        (void)uselocale(utf8);
    r = unpack_into(&p, err);
    if (r < 0) {
        (void)unlink(u->pack);
        (void)unlink(u->index);
    }
    return r;
}
