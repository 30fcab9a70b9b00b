#include "guest/file-ops.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/reply.h"
#include "guest/walk.h"

#define MODE_BITS 07777u

int make_dirs(const char *path, bool itself, mode_t mode)
{
    char text[PATH_MAX];
    size_t size = strlen(path);
    struct stat st;

    if (size >= sizeof(text))
        return -ENAMETOOLONG;
    memcpy(text, path, size + 1);
    while (size > 1 && text[size - 1] == '/')
        text[--size] = '\0';
    for (char *p = text + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        if (mkdir(text, 0755) < 0 && errno != EEXIST)
            return -errno;
        *p = '/';
    }
    if (!itself)
        return 0;
    if (mkdir(text, mode) == 0)
        return chmod(text, mode) < 0 ? -errno : 0;
    if (errno != EEXIST)
        return -errno;
    return stat(text, &st) == 0 && S_ISDIR(st.st_mode) ? 0 : -EEXIST;
}

int file_op_mkdir(const Hearth__V1__FileMkdir *op)
{
    _cleanup_free_ char *path = path_from_request(&op->path);
    mode_t mode = op->mode ? op->mode & MODE_BITS : 0755;
    int r;

    if (!path)
        return 1;
    if (op->parents)
        r = make_dirs(path, true, mode);
    else
        r = mkdir(path, mode) < 0 || chmod(path, mode) < 0 ? -errno : 0;
    return r < 0 ? reply_errno(-r, "make directory", path) : reply_ok();
}

int file_op_move(const Hearth__V1__FileMove *op)
{
    _cleanup_free_ char *from = path_from_request(&op->from);
    _cleanup_free_ char *to = from ? path_from_request(&op->to) : NULL;

    if (!to)
        return 1;
    if (syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to,
                op->no_replace ? RENAME_NOREPLACE : 0) < 0)
        return reply_errno(errno, "move", errno == EEXIST ? to : from);
    return reply_ok();
}

static int remove_entry(const struct walk_entry *e, void *userdata)
{
    bool dir = S_ISDIR(e->st.st_mode);

    (void)userdata;
    if (dir && e->order == WALK_BEFORE && e->depth < WALK_DEPTH_MAX) {
        int fd = openat(e->dir_fd, e->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

        /* One that cannot be entered will not come again: it can go only if it is empty. */
        if (fd >= 0) {
            (void)fd_close(fd);
            return 0;
        }
    }
    if (unlinkat(e->dir_fd, e->name, dir ? AT_REMOVEDIR : 0) < 0 && errno != ENOENT)
        return -errno;
    return 0;
}

int file_op_remove(const Hearth__V1__FileRemove *op)
{
    _cleanup_free_ char *path = path_from_request(&op->path);
    struct stat st;
    int fd, r;

    if (!path)
        return 1;
    if (lstat(path, &st) < 0)
        return reply_errno(errno, "remove", path);
    if (!S_ISDIR(st.st_mode))
        return unlink(path) < 0 ? reply_errno(errno, "remove", path) : reply_ok();
    if (op->recursive) {
        fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            return reply_errno(errno, "remove", path);
        r = walk_tree_consume(fd, WALK_DEPTH_MAX, remove_entry, NULL);
        if (r < 0)
            return reply_errno(-r, "remove", path);
    }
    return rmdir(path) < 0 ? reply_errno(errno, "remove", path) : reply_ok();
}

int file_op_mkfifo(const Hearth__V1__FileMkfifo *op)
{
    _cleanup_free_ char *path = path_from_request(&op->path);

    if (!path)
        return 1;
    if (mkfifo(path, op->mode ? op->mode & MODE_BITS : 0644) < 0)
        return reply_errno(errno, "make fifo", path);
    return reply_ok();
}

int file_op_symlink(const Hearth__V1__FileSymlink *op)
{
    _cleanup_free_ char *path = path_from_request(&op->path);
    char target[PATH_MAX];

    if (!path)
        return 1;
    if (op->target.len == 0 || op->target.len >= sizeof(target) ||
        memchr(op->target.data, '\0', op->target.len))
        return reply_error(HEARTH__V1__CODE__CODE_INVALID, EINVAL,
                           "the target of link '%.256s' is empty, too long or holds a NUL", path);
    memcpy(target, op->target.data, op->target.len);
    target[op->target.len] = '\0';
    return symlink(target, path) < 0 ? reply_errno(errno, "make link", path) : reply_ok();
}

int file_op_set_attr(const Hearth__V1__FileSetAttr *op)
{
    _cleanup_free_ char *path = path_from_request(&op->path);
    struct timespec times[2] = {
        {.tv_nsec = UTIME_OMIT},
        {.tv_sec = (time_t)(op->mtime_nsec / NSEC_PER_SEC),
         .tv_nsec = (long)(op->mtime_nsec % NSEC_PER_SEC)},
    };

    if (!path)
        return 1;
    /* Owner first: changing it clears the set-user-id bits. */
    if (op->set_owner && chown(path, op->uid, op->gid) < 0)
        return reply_errno(errno, "change owner of", path);
    if (op->set_mode && chmod(path, op->mode & MODE_BITS) < 0)
        return reply_errno(errno, "change mode of", path);
    if (op->set_mtime && utimensat(AT_FDCWD, path, times, 0) < 0)
        return reply_errno(errno, "change time of", path);
    return reply_ok();
}
