#include "erofs/unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <fts.h>
#include <limits.h>
#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/strv.h"

#define BLOCK_BYTES ((size_t)256 * 1024)

struct unpack {
    const char *source;  /* weak, for error texts */
    const char *root;    /* weak, absolute, no symlink in it */
    struct archive *in;  /* owned */
    struct archive *out; /* owned */
    uint64_t n_entries;
    uint64_t n_bytes;
    bool root_user;
    struct timespec root_mtime; /* zero unless the archive has the root itself */
};

static void archive_read_cleanup(struct archive **a)
{
    (void)archive_read_free(*a);
}

static void archive_write_cleanup(struct archive **a)
{
    (void)archive_write_free(*a);
}

static void locale_cleanup(locale_t *l)
{
    if (*l == (locale_t)0)
        return;
    (void)uselocale(LC_GLOBAL_LOCALE);
    freelocale(*l);
}

static int invalid(const struct unpack *u, struct error *err, const char *entry, const char *why)
{
    return error_set_code(err, ERR_IMAGE_INVALID, "archive '%s': entry '%.200s' %s", u->source,
                          entry, why);
}

static int read_failed(const struct unpack *u, struct error *err)
{
    const char *text = archive_error_string(u->in);

    if (u->n_entries == 0)
        return error_set_code(err, ERR_IMAGE_INVALID,
                              "'%s' is no tar archive (plain, gzip, bzip2, xz, zstd or lz4)",
                              u->source);
    return error_set_code(err, ERR_IMAGE_INVALID, "archive '%s' is damaged after %llu entries: %s",
                          u->source, (unsigned long long)u->n_entries, text ? text : "unknown");
}

static int write_failed(const struct unpack *u, const char *name, struct error *err)
{
    int errnum = archive_errno(u->out);
    const char *text = archive_error_string(u->out);

    if (errnum == ENOSPC || errnum == EDQUOT)
        return error_set(err, ENOSPC, "unpack '%s': no space left in '%s'", u->source, u->root);
    /* libarchive marks a refused symlink or `..` with an errno of its own, below zero. */
    return error_set_errno(err, ERR_IMAGE_INVALID, errnum > 0 ? errnum : EINVAL,
                           "archive '%s': cannot unpack '%.200s': %s", u->source, name,
                           text ? text : "unknown");
}

/*
 * Turns a name of the archive into an absolute one below root. Leading slashes and `.` components
 * mean nothing; any `..` is refused, even one that stays inside.
 */
static int place(const struct unpack *u, const char *name, char *path, size_t size,
                 struct error *err)
{
    size_t used = strlen(u->root);
    unsigned depth = 0;

    if (strlen(name) > UNPACK_PATH_MAX || used + strlen(name) + 2 > size)
        return invalid(u, err, name, "has too long a name");
    memcpy(path, u->root, used);
    while (*name) {
        size_t n = strcspn(name, "/");

        if (n == 2 && name[0] == '.' && name[1] == '.')
            return invalid(u, err, name, "leads out of the image");
        if (n > 0 && !(n == 1 && name[0] == '.')) {
            if (++depth > UNPACK_DEPTH_MAX)
                return invalid(u, err, name, "is nested too deep");
            path[used++] = '/';
            memcpy(path + used, name, n);
            used += n;
        }
        name += n;
        name += strspn(name, "/");
    }
    path[used] = '\0';
    return 0;
}

/* Sparse files come as blocks with offsets; the bytes that count are those up to the end of each.
 */
static int copy_data(struct unpack *u, const char *name, struct error *err)
{
    uint64_t end = 0;

    for (;;) {
        const void *data;
        size_t size;
        la_int64_t offset;
        int r = archive_read_data_block(u->in, &data, &size, &offset);

        if (r == ARCHIVE_EOF)
            return 0;
        if (r < ARCHIVE_WARN || offset < 0)
            return read_failed(u, err);
        if ((uint64_t)offset + size > end) {
            u->n_bytes += (uint64_t)offset + size - end;
            end = (uint64_t)offset + size;
        }
        if (u->n_bytes > UNPACK_BYTES_MAX)
            return error_set_code(err, ERR_LIMIT_EXCEEDED,
                                  "archive '%s' holds more than %llu GiB of data", u->source,
                                  (unsigned long long)(UNPACK_BYTES_MAX >> 30));
        if (archive_write_data_block(u->out, data, size, offset) < ARCHIVE_WARN)
            return write_failed(u, name, err);
    }
}

static bool is_device(struct archive_entry *entry)
{
    mode_t type = archive_entry_filetype(entry);

    return type == AE_IFCHR || type == AE_IFBLK;
}

static int unpack_entry(struct unpack *u, struct archive_entry *entry, struct error *err)
{
    char path[PATH_MAX], target[PATH_MAX];
    const char *name = archive_entry_pathname(entry);
    const char *hardlink = archive_entry_hardlink(entry);
    _cleanup_free_ char *shown = NULL;
    int r;

    if (++u->n_entries > UNPACK_ENTRIES_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "archive '%s' has more than %u entries",
                              u->source, UNPACK_ENTRIES_MAX);
    if (!name)
        return invalid(u, err, "?", "has no name that can be read");
    shown = strdup(name);
    if (!shown)
        return error_set(err, ENOMEM, "unpack '%s': out of memory", u->source);
    if ((uint64_t)archive_entry_size(entry) > UNPACK_BYTES_MAX - u->n_bytes)
        return error_set_code(err, ERR_LIMIT_EXCEEDED,
                              "archive '%s' holds more than %llu GiB of data", u->source,
                              (unsigned long long)(UNPACK_BYTES_MAX >> 30));
    r = place(u, name, path, sizeof(path), err);
    if (r == 0 && hardlink)
        r = place(u, hardlink, target, sizeof(target), err);
    if (r < 0)
        return r;
    if (strcmp(path, u->root) == 0 && archive_entry_filetype(entry) != AE_IFDIR)
        return invalid(u, err, shown, "would replace the root directory");
    if (strcmp(path, u->root) == 0)
        u->root_mtime = (struct timespec){.tv_sec = archive_entry_mtime(entry),
                                          .tv_nsec = archive_entry_mtime_nsec(entry)};
    if (is_device(entry) && !u->root_user)
        return 0; /* the guest's own /dev has all that is needed */
    archive_entry_copy_pathname(entry, path);
    if (hardlink)
        archive_entry_copy_hardlink(entry, target);
    r = archive_write_header(u->out, entry);
    if (r < ARCHIVE_WARN && is_device(entry))
        return 0; /* root in a container may not make device nodes */
    if (r < ARCHIVE_WARN)
        return write_failed(u, shown, err);
    if (archive_entry_size(entry) > 0) {
        r = copy_data(u, shown, err);
        if (r < 0)
            return r;
    }
    if (archive_write_finish_entry(u->out) < ARCHIVE_WARN)
        return write_failed(u, shown, err);
    return 0;
}

/*
 * Directories that the archive implies but does not have got the time of now, which would make each
 * image of the same archive another one. They are the ones touched since we began. So is the root,
 * which was there before.
 */
static int settle_times(const struct unpack *u, time_t began, struct error *err)
{
    char copy[PATH_MAX];
    char *const roots[] = {copy, NULL};
    FTS *fts;
    FTSENT *e;
    int r = 0;

    (void)snprintf(copy, sizeof(copy), "%s", u->root);
    fts = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL);
    if (!fts)
        return error_set(err, errno, "read '%s': %s", u->root, errno_text(errno));
    while (r == 0 && (e = fts_read(fts))) {
        struct timespec times[2] = {{0}, {0}};

        if (e->fts_level == 0)
            times[1] = u->root_mtime;
        if (e->fts_info != FTS_DP || e->fts_statp->st_mtime < began)
            continue;
        if (utimensat(AT_FDCWD, e->fts_path, times, AT_SYMLINK_NOFOLLOW) < 0)
            r = error_set(err, errno, "set the time of '%s': %s", e->fts_path, errno_text(errno));
    }
    (void)fts_close(fts);
    return r;
}

static int open_archives(struct unpack *u, struct error *err)
{
    int flags = ARCHIVE_EXTRACT_PERM | ARCHIVE_EXTRACT_TIME | ARCHIVE_EXTRACT_SECURE_NODOTDOT |
                ARCHIVE_EXTRACT_SECURE_SYMLINKS;

    if (u->root_user)
        flags |= ARCHIVE_EXTRACT_OWNER | ARCHIVE_EXTRACT_XATTR | ARCHIVE_EXTRACT_ACL;
    if (!u->in || !u->out)
        return error_set(err, ENOMEM, "unpack '%s': out of memory", u->source);
    (void)archive_read_support_format_tar(u->in);
    (void)archive_read_support_filter_gzip(u->in);
    (void)archive_read_support_filter_bzip2(u->in);
    (void)archive_read_support_filter_xz(u->in);
    (void)archive_read_support_filter_zstd(u->in);
    (void)archive_read_support_filter_lz4(u->in);
    (void)archive_write_disk_set_options(u->out, flags);
    if (archive_read_open_filename(u->in, u->source, BLOCK_BYTES) < ARCHIVE_WARN) {
        int errnum = archive_errno(u->in);

        return errnum == ENOENT || errnum == EACCES
                   ? error_set(err, errnum, "open '%s': %s", u->source, errno_text(errnum))
                   : read_failed(u, err);
    }
    return 0;
}

static int unpack_all(struct unpack *u, uint64_t size, image_progress_fn progress, void *userdata,
                      struct error *err)
{
    int last = -1;

    for (;;) {
        struct archive_entry *entry;
        int r = archive_read_next_header(u->in, &entry);
        int percent;

        if (r == ARCHIVE_EOF)
            break;
        if (r < ARCHIVE_WARN)
            return read_failed(u, err);
        r = unpack_entry(u, entry, err);
        if (r < 0)
            return r;
        percent = size ? (int)((uint64_t)archive_filter_bytes(u->in, -1) * 100 / size) : -1;
        if (progress && percent != last) {
            last = percent;
            progress(MIN(percent, 100), "unpacking", userdata);
        }
    }
    if (u->n_entries == 0)
        return error_set_code(err, ERR_IMAGE_INVALID, "archive '%s' is empty", u->source);
    /* Modes and times of directories are set here, after their content. */
    if (archive_write_close(u->out) < ARCHIVE_WARN)
        return write_failed(u, "directories", err);
    return 0;
}

int unpack_tar(const char *tar_path, const char *dir, image_progress_fn progress, void *userdata,
               struct error *err)
{
    _cleanup_(archive_read_cleanup) struct archive *in = archive_read_new();
    _cleanup_(archive_write_cleanup) struct archive *out = archive_write_disk_new();
    _cleanup_(locale_cleanup) locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    _cleanup_free_ char *root = realpath(dir, NULL);
    struct unpack u = {
        .source = tar_path, .root = root, .in = in, .out = out, .root_user = geteuid() == 0};
    struct timespec began;
    struct stat st;
    int r;

    if (!root)
        return error_set(err, errno, "open '%s': %s", dir, errno_text(errno));
    if (stat(tar_path, &st) < 0)
        return error_set(err, errno, "open '%s': %s", tar_path, errno_text(errno));
    /* Names in the archive may be UTF-8 by definition; libarchive converts by the thread's locale.
     */
    if (utf8 != (locale_t)0)
        (void)uselocale(utf8);
    (void)clock_gettime(CLOCK_REALTIME_COARSE, &began);
    r = open_archives(&u, err);
    if (r == 0)
        r = unpack_all(&u, (uint64_t)st.st_size, progress, userdata, err);
    if (r == 0)
        r = settle_times(&u, began.tv_sec, err);
    return r;
}
