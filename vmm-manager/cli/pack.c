#include "cli/pack.h"

#include <fcntl.h>
#include <fts.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/strv.h"
#include "base/tar.h"

#define BLOCK_BYTES ((size_t)256 * 1024)
#define HEADS_MAX ((size_t)4 * 1024 * 1024)

struct packer {
    int fd; /* weak */
    struct buf out;
    uint8_t *block; /* owned */
};

static int flush(struct packer *p)
{
    int r = fd_write_full(p->fd, buf_data(&p->out), p->out.size);

    buf_clear(&p->out);
    return r;
}

static int put_bytes(struct packer *p, const void *data, size_t size)
{
    static const char zeros[TAR_BLOCK];
    int r = flush(p);

    if (r == 0)
        r = fd_write_full(p->fd, data, size);
    return r < 0 ? r : fd_write_full(p->fd, zeros, tar_padding(size));
}

/* Exactly as many bytes as the header says, whatever happens to the file meanwhile. */
static int put_content(struct packer *p, int fd, uint64_t size)
{
    uint64_t left = size;
    int r = flush(p);

    while (r == 0 && left > 0) {
        size_t want = left < BLOCK_BYTES ? (size_t)left : BLOCK_BYTES;
        ssize_t n = fd_read_full(fd, p->block, want);

        if (n < 0)
            return (int)n;
        memset(p->block + n, 0, want - (size_t)n);
        r = fd_write_full(p->fd, p->block, want);
        left -= want;
    }
    memset(p->block, 0, TAR_BLOCK);
    return r < 0 ? r : fd_write_full(p->fd, p->block, tar_padding(size));
}

static int put_entry(struct packer *p, const char *path, const char *name, const struct stat *st)
{
    _cleanup_close_ int fd = -EBADF;
    struct tar_entry t = {.path = name,
                          .mode = st->st_mode & 07777,
                          .uid = st->st_uid,
                          .gid = st->st_gid,
                          .mtime = st->st_mtim.tv_sec,
                          .mtime_nsec = (uint32_t)st->st_mtim.tv_nsec};
    char target[PATH_MAX];
    ssize_t n;
    int r;

    if (!tar_type_of(st->st_mode, &t.type))
        return 0;
    if (t.type == TAR_SYMLINK) {
        n = readlink(path, target, sizeof(target) - 1);
        if (n < 0)
            return -errno;
        target[n] = '\0';
        t.target = target;
    } else if (t.type == TAR_FILE) {
        fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            return -errno;
        t.size = (uint64_t)st->st_size;
    } else if (t.type == TAR_CHAR || t.type == TAR_BLOCKDEV) {
        t.major = major(st->st_rdev);
        t.minor = minor(st->st_rdev);
    }
    r = tar_put_header(&p->out, &t);
    if (r == 0 && t.type == TAR_FILE)
        r = put_content(p, fd, t.size);
    return r == 0 && p->out.size > BLOCK_BYTES ? flush(p) : r;
}

static int compare(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

static int put_tree(struct packer *p, const char *dir, struct error *err)
{
    char *const paths[] = {(char *)(uintptr_t)dir, NULL};
    FTS *fts = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, compare);
    size_t skip = strlen(dir);
    FTSENT *e;
    int r = fts ? 0 : -errno;

    while (r == 0 && (e = fts_read(fts))) {
        const char *name = e->fts_path + skip;

        name += strspn(name, "/");
        if (e->fts_info == FTS_DP || name[0] == '\0')
            continue;
        if (e->fts_info == FTS_DNR || e->fts_info == FTS_ERR || e->fts_info == FTS_NS)
            r = -e->fts_errno;
        else
            r = put_entry(p, e->fts_accpath, name, e->fts_statp);
        if (r < 0)
            (void)error_set(err, -r, "'%s': %s", e->fts_path, errno_text(-r));
    }
    if (fts)
        (void)fts_close(fts);
    return error_fill(err, r, "'%s'", dir);
}

int pack_dir(const char *dir, const struct pack_file *extra, int fd, struct error *err)
{
    struct packer p = {.fd = fd, .block = malloc(BLOCK_BYTES)};
    int r = p.block ? 0 : -ENOMEM;

    buf_init(&p.out, HEADS_MAX);
    if (r == 0)
        r = put_tree(&p, dir, err);
    if (r == 0 && extra) {
        r = tar_put_header(
            &p.out, &(struct tar_entry){
                        .path = extra->name, .type = TAR_FILE, .mode = 0600, .size = extra->size});
        if (r == 0)
            r = put_bytes(&p, extra->data, extra->size);
    }
    if (r == 0)
        r = tar_put_end(&p.out);
    if (r == 0)
        r = flush(&p);
    buf_done(&p.out);
    free(p.block);
    return error_fill(err, r, "pack '%s'", dir);
}
