#include "guest/layer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/tar.h"
#include "guest/file-ops.h"
#include "guest/reply.h"
#include "guest/walk.h"

#define COPY_SIZE (128u * 1024u)
#define OUT_MAX ((size_t)4 * 1024 * 1024)
#define XATTRS_MAX 64u
#define XATTR_BYTES_MAX 65536u
#define OVERLAY "trusted.overlay."

/* The first name of a file with several. */
struct first_name {
    dev_t dev;
    ino_t ino;
    char *path; /* owned */
};

struct layer_writer {
    int fd; /* weak */
    struct buf out;
    void *names; /* tree of struct first_name; goes with the process */
    struct error *err;
};

static int fail(struct layer_writer *w, int errnum, const char *what, const char *path)
{
    return error_set(w->err, errnum, "%s '%.200s': %s", what, path, errno_text(errnum));
}

static int flush(struct layer_writer *w)
{
    int r = fd_write_full(w->fd, buf_data(&w->out), w->out.size);

    buf_clear(&w->out);
    return r < 0 ? error_set(w->err, -r, "write: %s", errno_text(-r)) : 0;
}

/* ---- extended attributes ---- */

struct attributes {
    char names[XATTR_BYTES_MAX];
    char values[XATTR_BYTES_MAX];
    struct tar_xattr list[XATTRS_MAX];
    size_t n;
    bool opaque;
};

static void read_attribute(struct attributes *a, const char *path, const char *name, size_t *used)
{
    ssize_t n = lgetxattr(path, name, a->values + *used, sizeof(a->values) - *used);

    if (n < 0)
        return;
    if (strncmp(name, OVERLAY, strlen(OVERLAY)) == 0) {
        a->opaque |= strcmp(name, OVERLAY "opaque") == 0 && n == 1 && a->values[*used] == 'y';
        return;
    }
    if (a->n == XATTRS_MAX)
        return;
    a->list[a->n++] = (struct tar_xattr){name, a->values + *used, (size_t)n};
    *used += (size_t)n;
}

static void read_attributes(struct attributes *a, const struct walk_entry *e)
{
    char path[64 + NAME_MAX];
    size_t used = 0;
    ssize_t n;

    a->n = 0;
    a->opaque = false;
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", e->dir_fd, e->name);
    n = llistxattr(path, a->names, sizeof(a->names));
    for (ssize_t i = 0; i < n; i += (ssize_t)strlen(a->names + i) + 1)
        read_attribute(a, path, a->names + i, &used);
}

/* ---- entries ---- */

static int compare_names(const void *a, const void *b)
{
    const struct first_name *x = a, *y = b;

    if (x->dev != y->dev)
        return x->dev < y->dev ? -1 : 1;
    return x->ino < y->ino ? -1 : x->ino > y->ino ? 1 : 0;
}

/* The name that was written before for this file; NULL: this is the first. */
static const char *earlier_name(struct layer_writer *w, const struct walk_entry *e)
{
    struct first_name *name = calloc(1, sizeof(*name)), **found;

    if (!name)
        return NULL;
    *name = (struct first_name){e->st.st_dev, e->st.st_ino, strdup(e->path)};
    found = tsearch(name, &w->names, compare_names);
    if (!found || *found == name)
        return NULL;
    free(name->path);
    free(name);
    return (*found)->path;
}

/* PARENT/.wh.NAME, or PATH/.wh..wh..opq: an empty file. */
static int put_mark(struct layer_writer *w, const char *path, const char *name, const char *mark)
{
    char text[PATH_MAX + 16];
    struct tar_entry t = {.path = text, .type = TAR_FILE, .mode = 0600};
    size_t dir = name ? strlen(path) - strlen(name) : strlen(path);

    (void)snprintf(text, sizeof(text), "%.*s%s%s%s", (int)dir, path, name ? "" : "/", mark,
                   name ? name : "");
    return tar_put_header(&w->out, &t) < 0 ? fail(w, ENOMEM, "write", path) : 0;
}

static int put_content(struct layer_writer *w, const struct walk_entry *e)
{
    static uint8_t block[COPY_SIZE];
    _cleanup_close_ int fd = openat(e->dir_fd, e->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    uint64_t left = (uint64_t)e->st.st_size;
    size_t padding = tar_padding(left);
    int r = flush(w);

    if (fd < 0)
        return fail(w, errno, "open", e->path);
    while (r == 0 && left > 0) {
        size_t want = (size_t)MIN(left, (uint64_t)sizeof(block));
        ssize_t n = fd_read_full(fd, block, want);

        if (n < 0)
            return fail(w, (int)-n, "read", e->path);
        if ((size_t)n < want) /* it has become shorter */
            memset(block + n, 0, want - (size_t)n);
        r = fd_write_full(w->fd, block, want);
        left -= want;
    }
    memset(block, 0, padding);
    if (r == 0)
        r = fd_write_full(w->fd, block, padding);
    return r < 0 ? error_set(w->err, -r, "write: %s", errno_text(-r)) : 0;
}

static int on_entry(const struct walk_entry *e, void *userdata)
{
    static struct attributes attributes;
    struct layer_writer *w = userdata;
    char target[PATH_MAX];
    struct tar_entry t = {.path = e->path,
                          .mode = e->st.st_mode & 07777,
                          .uid = e->st.st_uid,
                          .gid = e->st.st_gid,
                          .mtime = e->st.st_mtim.tv_sec,
                          .mtime_nsec = (uint32_t)e->st.st_mtim.tv_nsec};
    int r;

    if (e->order == WALK_AFTER || !tar_type_of(e->st.st_mode, &t.type))
        return 0;
    if (S_ISCHR(e->st.st_mode) && e->st.st_rdev == 0)
        return put_mark(w, e->path, e->name, ".wh.");
    read_attributes(&attributes, e);
    t.xattrs = attributes.list;
    t.n_xattrs = attributes.n;
    if (t.type == TAR_SYMLINK) {
        ssize_t n = readlinkat(e->dir_fd, e->name, target, sizeof(target) - 1);

        if (n < 0)
            return fail(w, errno, "read the link", e->path);
        target[n] = '\0';
        t.target = target;
    } else if (t.type == TAR_CHAR || t.type == TAR_BLOCKDEV) {
        t.major = major(e->st.st_rdev);
        t.minor = minor(e->st.st_rdev);
    }
    if (t.type != TAR_DIR && e->st.st_nlink > 1) {
        const char *earlier = earlier_name(w, e);

        if (earlier) {
            t.type = TAR_HARDLINK;
            t.target = earlier;
            t.n_xattrs = 0;
        }
    }
    if (t.type == TAR_FILE)
        t.size = (uint64_t)e->st.st_size;
    r = tar_put_header(&w->out, &t);
    if (r < 0)
        return fail(w, -r, "write", e->path);
    if (t.type == TAR_FILE && t.size > 0)
        return put_content(w, e);
    if (t.type == TAR_DIR && attributes.opaque)
        r = put_mark(w, e->path, NULL, ".wh..wh..opq");
    return r == 0 && w->out.size > COPY_SIZE ? flush(w) : r;
}

int layer_write_consume(int dir_fd, int out_fd, struct error *err)
{
    struct layer_writer w = {.fd = out_fd, .err = err};
    int r;

    buf_init(&w.out, OUT_MAX);
    r = walk_tree_consume(dir_fd, WALK_DEPTH_MAX, on_entry, &w);
    if (r < 0)
        error_fill(err, r, "read the layer");
    if (r == 0)
        r = tar_put_end(&w.out) < 0 ? error_set(err, ENOMEM, "out of memory") : flush(&w);
    buf_done(&w.out);
    return r;
}

int file_op_layer(const Hearth__V1__FileLayer *op)
{
    struct error err = {0};
    char path[64] = IMAGE_DIR;
    int fd;

    if (op->number > 0)
        (void)snprintf(path, sizeof(path), LAYER_DIR "-%u", op->number);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return reply_errno(errno, "open", path);
    reply_ready(0);
    if (layer_write_consume(fd, STDOUT_FILENO, &err) < 0)
        return reply_error(HEARTH__V1__CODE__CODE_SYSTEM, err.errnum, "%s", err.text);
    (void)close(STDOUT_FILENO);
    return reply_ok();
}
