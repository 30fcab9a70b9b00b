#include "guest/walk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/fd.h"

struct level {
    DIR *dir;         /* owned */
    size_t path_size; /* of the directory's own path */
    struct stat st;
};

struct walk {
    struct level levels[WALK_DEPTH_MAX];
    unsigned n;
    char path[PATH_MAX];
};

static int push(struct walk *w, int fd, const struct stat *st)
{
    struct level *l = &w->levels[w->n];

    l->dir = fdopendir(fd);
    if (!l->dir) {
        int r = -errno;

        (void)fd_close(fd);
        return r;
    }
    l->path_size = strlen(w->path);
    if (st)
        l->st = *st;
    w->n++;
    return 0;
}

static void pop(struct walk *w)
{
    (void)closedir(w->levels[--w->n].dir);
}

static void set_path(struct walk *w, const struct level *l, const char *name)
{
    size_t size = l->path_size;

    if (size > 0 && size + 1 < sizeof(w->path))
        w->path[size++] = '/';
    (void)snprintf(w->path + size, sizeof(w->path) - size, "%s", name);
}

/* The directory on top is read to its end. */
static int leave(struct walk *w, walk_fn fn, void *userdata)
{
    struct walk_entry e = {.depth = w->n - 1, .order = WALK_AFTER};
    struct level *l = &w->levels[w->n - 1];
    const char *slash;

    w->path[l->path_size] = '\0';
    e.st = l->st;
    pop(w);
    if (w->n == 0)
        return 0;
    slash = strrchr(w->path, '/');
    e.dir_fd = dirfd(w->levels[w->n - 1].dir);
    e.name = slash ? slash + 1 : w->path;
    e.path = w->path;
    return fn(&e, userdata);
}

static int visit(struct walk *w, const char *name, unsigned max_depth, walk_fn fn, void *userdata)
{
    struct level *l = &w->levels[w->n - 1];
    struct walk_entry e = {.dir_fd = dirfd(l->dir), .name = name, .depth = w->n};
    int fd, r;

    set_path(w, l, name);
    e.path = w->path;
    if (fstatat(e.dir_fd, name, &e.st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno;
    r = fn(&e, userdata);
    if (r < 0 || !S_ISDIR(e.st.st_mode) || w->n >= max_depth)
        return r;
    fd = openat(e.dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        /* Gone, or not ours to read: its own entry was reported. */
        return errno == ENOENT || errno == EACCES || errno == ENOTDIR || errno == ELOOP ? 0
                                                                                        : -errno;
    return push(w, fd, &e.st);
}

int walk_tree_consume(int top_fd, unsigned max_depth, walk_fn fn, void *userdata)
{
    /* Large, and there is one walk in a process. */
    static struct walk w;
    int r;

    w.n = 0;
    w.path[0] = '\0';
    if (max_depth > WALK_DEPTH_MAX)
        max_depth = WALK_DEPTH_MAX;
    r = push(&w, top_fd, NULL);
    while (r == 0 && w.n > 0) {
        struct dirent *d;

        errno = 0;
        d = readdir(w.levels[w.n - 1].dir);
        if (!d)
            r = errno ? -errno : leave(&w, fn, userdata);
        else if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
            r = visit(&w, d->d_name, max_depth, fn, userdata);
    }
    while (w.n > 0)
        pop(&w);
    return r;
}
