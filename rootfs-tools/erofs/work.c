#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fd.h"
#include "base/file.h"
#include "erofs/store.h"

/*
 * Theory of operation. Work happens in its own directory images/tmp/XXXXXX, which is locked while
 * it lives; whatever work that was killed has left is recognised by its free lock and removed by
 * the next one. Only finished files are renamed out of there, so there is never half an image.
 */

void store_work_done(struct store_work *w)
{
    if (w->dir[0])
        (void)dir_remove(w->dir, NULL);
    w->lock_fd = fd_close(w->lock_fd);
}

static void remove_stale(const char *tmp)
{
    DIR *dir = opendir(tmp);
    struct dirent *entry;

    if (!dir)
        return;
    while ((entry = readdir(dir))) {
        _cleanup_close_ int fd = -EBADF;
        char path[PATH_MAX];

        if (entry->d_name[0] == '.')
            continue;
        fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
            continue;
        (void)snprintf(path, sizeof(path), "%s/%s", tmp, entry->d_name);
        (void)dir_remove(path, NULL);
    }
    (void)closedir(dir);
}

/* Made and locked under the store's lock: another import must not take it for left over. */
int store_work_init(struct store_work *w, struct error *err)
{
    _cleanup_close_ int lock = -EBADF;
    char tmp[256], dir[256];
    int r = store_lock(&lock, err);

    if (r == 0)
        r = store_path(tmp, "tmp", err);
    if (r == 0)
        r = dir_create(tmp, 0700, err);
    if (r == 0)
        r = store_path(dir, "tmp/XXXXXX", err);
    if (r < 0)
        return r;
    remove_stale(tmp);
    if (!mkdtemp(dir))
        return error_set(err, errno, "create a directory in '%s': %s", tmp, errno_text(errno));
    memcpy(w->dir, dir, sizeof(w->dir));
    r = fault_check("work-made", err);
    if (r < 0)
        return r;
    w->lock_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->lock_fd < 0 || flock(w->lock_fd, LOCK_EX | LOCK_NB) < 0)
        return error_set(err, errno, "lock '%s': %s", dir, errno_text(errno));
    return 0;
}
