#include "guest/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/macros.h"
#include "guest/file-ops.h"

#define INODES_MAX 16384u /* of each scratch: they cost memory of the kernel */

/* An absolute path without NUL as a string. */
static int take_path(const ProtobufCBinaryData *path, char *to, size_t size, struct error *err)
{
    if (path->len == 0 || path->data[0] != '/')
        return error_set(err, EINVAL, "a path of confine is not absolute");
    if (path->len >= size || memchr(path->data, '\0', path->len))
        return error_set(err, EINVAL, "a path of confine has %zu bytes or a NUL, at most %zu fit",
                         path->len, size - 1);
    memcpy(to, path->data, path->len);
    to[path->len] = '\0';
    return 0;
}

int confine_check(const Hearth__V1__Confine *confine, struct error *err)
{
    char path[CONFINE_PATH_MAX];
    int r = 0;

    if (confine->n_scratch > CONFINE_SCRATCH_MAX || confine->n_files > CONFINE_FILES_MAX)
        return error_set(err, EINVAL, "%zu scratch directories and %zu files, at most %u and %u",
                         confine->n_scratch, confine->n_files, CONFINE_SCRATCH_MAX,
                         CONFINE_FILES_MAX);
    for (size_t i = 0; r == 0 && i < confine->n_scratch; i++) {
        uint64_t size = confine->scratch[i]->size_bytes;

        if (size < CONFINE_SCRATCH_BYTES_MIN || size > CONFINE_SCRATCH_BYTES_MAX)
            return error_set(err, EINVAL, "a scratch directory of %llu bytes is not possible",
                             (unsigned long long)size);
        r = take_path(&confine->scratch[i]->path, path, CONFINE_SCRATCH_PATH_MAX, err);
    }
    for (size_t i = 0; r == 0 && i < confine->n_files; i++)
        r = take_path(&confine->files[i]->path, path, sizeof(path), err);
    return r;
}

static int add_scratch(const Hearth__V1__Scratch *scratch, const struct user *user,
                       struct error *err)
{
    char path[CONFINE_SCRATCH_PATH_MAX], options[128];
    int r = take_path(&scratch->path, path, sizeof(path), err);

    if (r < 0)
        return r;
    (void)snprintf(options, sizeof(options), "size=%llu,nr_inodes=%u,mode=0755,uid=%u,gid=%u",
                   (unsigned long long)scratch->size_bytes, INODES_MAX, (unsigned)user->uid,
                   (unsigned)user->gid);
    if (mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options) < 0)
        return error_set(err, errno, "mount a scratch directory at '%s': %s", path,
                         errno_text(errno));
    return 0;
}

int confine_enter(const Hearth__V1__Confine *confine, const struct user *user, struct error *err)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID,
                              .propagation = MS_PRIVATE};
    char path[CONFINE_SCRATCH_PATH_MAX];
    int r = 0;

    if (unshare(CLONE_NEWNS) < 0)
        return error_set(err, errno, "mounts of its own: %s", errno_text(errno));
    /* Before anything changes: where the mounts are shared, the others must not follow. */
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return error_set(err, errno, "mounts of its own: %s", errno_text(errno));
    for (size_t i = 0; r == 0 && i < confine->n_scratch; i++) {
        r = take_path(&confine->scratch[i]->path, path, sizeof(path), err);
        if (r == 0)
            (void)make_dirs(path, /* itself= */ true, 0755); /* mount() says what is wrong */
    }
    if (r == 0 && mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, &attr, sizeof(attr)) < 0)
        r = error_set(err, errno, "make all mounts read-only: %s", errno_text(errno));
    for (size_t i = 0; r == 0 && i < confine->n_scratch; i++)
        r = add_scratch(confine->scratch[i], user, err);
    return r;
}

int confine_fill(const Hearth__V1__Confine *confine, struct error *err)
{
    for (size_t i = 0; i < confine->n_files; i++) {
        const ProtobufCBinaryData *content = &confine->files[i]->content;
        char path[CONFINE_PATH_MAX];
        int r = take_path(&confine->files[i]->path, path, sizeof(path), err);

        if (r < 0)
            return r;
        r = make_dirs(path, /* itself= */ false, 0755);
        if (r < 0)
            return error_set(err, -r, "directory of '%s': %s", path, errno_text(-r));
        _cleanup_close_ int fd =
            open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
        r = fd < 0 ? -errno : fd_write_full(fd, content->data, content->len);
        if (r < 0)
            return error_set(err, -r, "write '%s': %s", path, errno_text(-r));
    }
    return 0;
}
