#include "cli/copy.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/strv.h"
#include "cli/client.h"

/*
 * Names, modes and link targets come from the guest and may lie. Everything below the target is
 * opened beneath its descriptor, one name at a time, without following links, and set-id bits are
 * dropped: nothing outside the target is ever written.
 */
#define ENTRIES_MAX 1000000u

static int get_into(struct copy *c, const char *from, uint64_t size, int fd, struct error *err)
{
    _cleanup_free_ char *target = copy_path(c, "", from);
    struct http_request request = {
        .method = "GET", .target = target, .accept = "application/octet-stream"};
    uint64_t done = 0;
    int r;

    if (!target)
        return error_set(err, ENOMEM, "out of memory");
    r = client_open(c->cli, &request, err);
    while (r >= 0) {
        const uint8_t *data;
        size_t n;

        r = http_read(&c->cli->http, &data, &n, err);
        if (r < 0)
            break;
        if (n == 0) {
            c->bytes += done;
            return 0;
        }
        r = fd_write_full(fd, data, n);
        if (r < 0) {
            http_close(&c->cli->http);
            return error_set(err, -r, "write: %s", errno_text(-r));
        }
        done += n;
        copy_progress(c, from, done, size);
    }
    return r;
}

/* A file of the tree. What stands in its place is replaced unless it is a directory. */
static int get_entry(struct copy *c, const char *from, const struct copy_info *info, int dir_fd,
                     const char *name, struct error *err)
{
    _cleanup_close_ int fd = -EBADF;
    int r;

    if (unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT)
        return error_set(err, errno, "'%s': %s", name, errno_text(errno));
    fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(err, errno, "'%s': %s", name, errno_text(errno));
    r = get_into(c, from, info->size, fd, err);
    if (r >= 0 && fchmod(fd, info->mode & 0777) < 0)
        r = error_set(err, errno, "'%s': %s", name, errno_text(errno));
    if (r < 0)
        (void)unlinkat(dir_fd, name, 0);
    return r;
}

static int make_link(const struct copy_info *info, int dir_fd, const char *name, struct error *err)
{
    if (unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT)
        return error_set(err, errno, "'%s': %s", name, errno_text(errno));
    if (symlinkat(info->link_target, dir_fd, name) < 0)
        return error_set(err, errno, "'%s': %s", name, errno_text(errno));
    return 0;
}

static bool name_is_safe(const char *name)
{
    return name[0] && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* A directory that is still to be read: its path below the root, and its mode for the end. */
struct pending {
    char *below; /* owned; "." is the root */
    uint32_t mode;
};

struct tree {
    struct copy *copy;
    const char *from;
    int root_fd;
    struct pending *dirs; /* owned */
    size_t count, entries;
};

static int add_pending(struct tree *t, const char *parent, const char *name, uint32_t mode)
{
    struct pending *more = reallocarray(t->dirs, t->count + 1, sizeof(*more));

    if (!more)
        return -ENOMEM;
    t->dirs = more;
    more[t->count].mode = mode;
    more[t->count].below =
        strcmp(parent, ".") == 0 ? string_printf("%s", name) : string_printf("%s/%s", parent, name);
    if (!more[t->count].below)
        return -ENOMEM;
    t->count++;
    return 0;
}

static int take_entry(struct tree *t, int dir_fd, const char *below, const char *guest_dir,
                      const json_t *json, struct error *err)
{
    _cleanup_(copy_info_done) struct copy_info info = {0};
    _cleanup_free_ char *from = NULL;
    int r;

    r = copy_info_read(json, &info, err);
    if (r < 0)
        return r;
    if (!json_object_get(json, "path")) {
        cli_note(t->copy->cli, "in '%s': a name that is not UTF-8, ignoring", guest_dir);
        t->copy->skipped++;
        return 0;
    }
    if (!name_is_safe(info.name))
        return error_set(err, EPROTO, "the guest sent a bad file name");
    if (++t->entries > ENTRIES_MAX)
        return error_set(err, E2BIG, "'%s': more than %u files", t->from, ENTRIES_MAX);
    from = string_printf("%s/%s", strcmp(guest_dir, "/") == 0 ? "" : guest_dir, info.name);
    if (!from)
        return error_set(err, ENOMEM, "out of memory");
    if (info.is_file)
        return get_entry(t->copy, from, &info, dir_fd, info.name, err);
    if (info.is_link)
        return make_link(&info, dir_fd, info.name, err);
    if (!info.is_directory) {
        cli_note(t->copy->cli, "'%s': neither file, directory nor link, ignoring", from);
        t->copy->skipped++;
        return 0;
    }
    if (mkdirat(dir_fd, info.name, 0700) < 0 && errno != EEXIST)
        return error_set(err, errno, "'%s': %s", info.name, errno_text(errno));
    r = add_pending(t, below, info.name, info.mode);
    return r < 0 ? error_set(err, -r, "out of memory") : 0;
}

static int take_directory(struct tree *t, const char *below, struct error *err)
{
    bool is_root = strcmp(below, ".") == 0;
    _cleanup_free_ char *guest_dir =
        is_root ? string_printf("%s", t->from)
                : string_printf("%s/%s", strcmp(t->from, "/") == 0 ? "" : t->from, below);
    _cleanup_free_ char *target = guest_dir ? copy_path(t->copy, "/list", guest_dir) : NULL;
    _cleanup_close_ int dir_fd = -EBADF;
    json_auto_t *answer = NULL;
    json_t *entry;
    size_t i;
    int r;

    if (!target)
        return error_set(err, ENOMEM, "out of memory");
    dir_fd = fd_open_beneath(t->root_fd, below, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (dir_fd < 0)
        return error_set(err, -dir_fd, "'%s': %s", below, errno_text(-dir_fd));
    r = client_call(t->copy->cli, "GET", target, NULL, &answer, err);
    if (r < 0)
        return r;
    json_array_foreach(json_object_get(answer, "entries"), i, entry)
    {
        r = take_entry(t, dir_fd, below, guest_dir, entry, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Last, and the deepest first: a directory may forbid us to write in it. */
static void set_modes(const struct tree *t)
{
    for (size_t i = t->count; i-- > 0;) {
        _cleanup_close_ int fd =
            fd_open_beneath(t->root_fd, t->dirs[i].below, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);

        if (fd >= 0)
            (void)fchmod(fd, t->dirs[i].mode & 0777);
    }
}

static int get_tree(struct copy *c, const char *from, const struct copy_info *info, const char *to,
                    struct error *err)
{
    _cleanup_close_ int root_fd = -EBADF;
    struct tree t = {.copy = c, .from = from};
    int r;

    if (mkdir(to, 0700) < 0 && errno != EEXIST)
        return error_set(err, errno, "'%s': %s", to, errno_text(errno));
    root_fd = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0)
        return error_set(err, errno, "'%s': %s", to, errno_text(errno));
    t.root_fd = root_fd;
    r = add_pending(&t, ".", ".", info->mode);
    if (r < 0)
        (void)error_set(err, -r, "out of memory");
    for (size_t i = 0; i < t.count && r >= 0; i++)
        r = take_directory(&t, t.dirs[i].below, err);
    set_modes(&t);
    for (size_t i = 0; i < t.count; i++)
        free(t.dirs[i].below);
    free(t.dirs);
    return r;
}

/* The path is the user's own: an existing file is written to, wherever a link leads. */
static int get_file(struct copy *c, const char *from, const struct copy_info *info, const char *to,
                    struct error *err)
{
    bool existed = access(to, F_OK) == 0;
    _cleanup_close_ int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0600);
    struct stat st;
    int r;

    if (fd < 0 || fstat(fd, &st) < 0)
        return error_set(err, errno, "'%s': %s", to, errno_text(errno));
    r = get_into(c, from, info->size, fd, err);
    if (r >= 0 && S_ISREG(st.st_mode) && fchmod(fd, info->mode & 0777) < 0)
        r = error_set(err, errno, "'%s': %s", to, errno_text(errno));
    if (r < 0 && !existed)
        (void)unlink(to);
    return r;
}

int copy_out(struct copy *c, const char *from, const struct copy_info *info, const char *to,
             struct error *err)
{
    if (strcmp(to, "-") == 0) {
        if (info->is_directory)
            return error_set(err, EISDIR, "'%s' is a directory; '-' takes a single file", from);
        return get_into(c, from, info->size, STDOUT_FILENO, err);
    }
    return info->is_directory ? get_tree(c, from, info, to, err) : get_file(c, from, info, to, err);
}
