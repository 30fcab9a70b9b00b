#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/strv.h"

#define DIR_DEPTH_MAX 256

bool file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

int file_read(const char *path, size_t max, char **ret_data, size_t *ret_size, struct error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    _cleanup_free_ char *data = NULL;
    size_t size = 0, capacity = 0;

    if (fd < 0)
        return error_set(err, errno, "open '%s': %s", path, errno_text(errno));
    /* The size is not asked for: files of /proc say 0. */
    for (;;) {
        ssize_t n;

        if (size == capacity) {
            size_t grown = capacity ? capacity * 2 : 4096;
            char *larger = realloc(data, grown + 1);

            if (!larger)
                return error_set(err, ENOMEM, "read '%s': out of memory", path);
            data = larger;
            capacity = grown;
        }
        n = fd_read_full(fd, data + size, capacity - size);
        if (n < 0)
            return error_set(err, (int)-n, "read '%s': %s", path, errno_text((int)-n));
        size += (size_t)n;
        if (size > max)
            return error_set(err, EFBIG, "read '%s': larger than %zu bytes", path, max);
        if (size < capacity)
            break;
    }
    data[size] = '\0';
    *ret_data = TAKE_PTR(data);
    if (ret_size)
        *ret_size = size;
    return 0;
}

int dir_sync_parent(const char *path)
{
    _cleanup_free_ char *copy = strdup(path);
    _cleanup_close_ int fd = -EBADF;
    char *slash;

    if (!copy)
        return -ENOMEM;
    slash = strrchr(copy, '/');
    if (!slash)
        return -EINVAL;
    slash[slash == copy ? 1 : 0] = '\0';
    fd = open(copy, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return fsync(fd) < 0 ? -errno : 0;
}

int file_write_atomic(const char *path, const void *data, size_t size, mode_t mode,
                      struct error *err)
{
    char suffix[9];
    _cleanup_free_ char *beside = NULL;
    _cleanup_close_ int fd = -EBADF;
    int r = random_id(suffix, sizeof(suffix) - 1);

    if (r < 0)
        return error_set(err, -r, "write '%s': %s", path, errno_text(-r));
    beside = string_printf("%s.%s.tmp", path, suffix);
    if (!beside)
        return error_set(err, ENOMEM, "write '%s': out of memory", path);
    fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0)
        return error_set(err, errno, "create '%s': %s", beside, errno_text(errno));
    r = fd_write_full(fd, data, size);
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    if (r == 0 && rename(beside, path) < 0)
        r = -errno;
    if (r < 0) {
        (void)unlink(beside);
        return error_set(err, -r, "write '%s': %s", path, errno_text(-r));
    }
    r = dir_sync_parent(path);
    if (r < 0)
        return error_set(err, -r, "sync the directory of '%s': %s", path, errno_text(-r));
    return 0;
}

int file_open_unnamed(const char *dir)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    char path[512];

    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return fd >= 0 ? fd : -errno;
    if ((size_t)snprintf(path, sizeof(path), "%s/.unnamed-XXXXXX", dir) >= sizeof(path))
        return -ENAMETOOLONG;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return -errno;
    (void)unlink(path);
    return fd;
}

int dir_create(const char *path, mode_t mode, struct error *err)
{
    _cleanup_free_ char *copy = strdup(path);

    if (!copy)
        return error_set(err, ENOMEM, "create directory '%s': out of memory", path);
    for (char *p = copy + 1;; p++) {
        char c = *p;

        if (c != '/' && c != '\0')
            continue;
        *p = '\0';
        if (mkdir(copy, mode) < 0 && errno != EEXIST)
            return error_set(err, errno, "create directory '%s': %s", copy, errno_text(errno));
        if (c == '\0')
            break;
        *p = c;
    }
    return 0;
}

/* Empties the directory behind fd, which it takes. */
static int empty_dir(int fd, dev_t device, int depth) /* NOLINT(misc-no-recursion): bounded */
{
    DIR *dir = fdopendir(fd);
    int result = 0;

    if (!dir) {
        int r = -errno;

        fd_close(fd);
        return r;
    }
    for (;;) {
        struct dirent *entry = readdir(dir);
        struct stat st;
        int r = 0;

        if (!entry)
            break;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        if (S_ISDIR(st.st_mode)) {
            int child = -EBADF;

            if (st.st_dev != device || depth >= DIR_DEPTH_MAX)
                r = -EXDEV;
            else
                child = openat(dirfd(dir), entry->d_name,
                               O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (child >= 0)
                r = empty_dir(child, device, depth + 1);
        }
        if (r == 0 &&
            unlinkat(dirfd(dir), entry->d_name, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0) < 0 &&
            errno != ENOENT)
            r = -errno;
        if (r < 0 && result == 0)
            result = r;
    }
    (void)closedir(dir);
    return result;
}

int dir_remove(const char *path, struct error *err)
{
    struct stat st;
    int fd, r;

    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0) {
        if (unlink(path) == 0)
            return 0;
        return error_set(err, errno, "remove '%s': %s", path, errno_text(errno));
    }
    if (fstat(fd, &st) < 0) {
        r = -errno;
        fd_close(fd);
    } else {
        r = empty_dir(fd, st.st_dev, 0);
    }
    if (r == 0 && rmdir(path) < 0 && errno != ENOENT)
        r = -errno;
    if (r < 0)
        return error_set(err, -r, "remove '%s': %s", path, errno_text(-r));
    return 0;
}

/* Copies one data extent; falls back to read and write where copy_file_range cannot. */
static int copy_extent(int from, int to, off_t start, off_t end)
{
    off_t in = start, out = start;

    while (in < end) {
        ssize_t n = copy_file_range(from, &in, to, &out, (size_t)(end - in), 0);

        if (n > 0)
            continue;
        if (n == 0)
            return 0; /* the file got shorter */
        if (errno != EXDEV && errno != EINVAL && errno != EOPNOTSUPP && errno != ENOSYS)
            return -errno;
        while (in < end) {
            char block[64 * 1024];
            ssize_t got = pread(from, block, MIN(sizeof(block), (size_t)(end - in)), in);

            if (got <= 0)
                return got < 0 ? -errno : 0;
            if (pwrite(to, block, (size_t)got, in) != got)
                return errno ? -errno : -EIO;
            in += got;
        }
    }
    return 0;
}

static int copy_extents(int from, int to, off_t size)
{
    off_t position = 0;

    if (ioctl(to, FICLONE, from) == 0)
        return 0;
    if (ftruncate(to, size) < 0)
        return -errno;
    while (position < size) {
        off_t start = lseek(from, position, SEEK_DATA), end;
        int r;

        if (start < 0)
            return errno == ENXIO ? 0 : -errno;
        end = lseek(from, start, SEEK_HOLE);
        if (end < 0)
            return -errno;
        r = copy_extent(from, to, start, end);
        if (r < 0)
            return r;
        position = end;
    }
    return 0;
}

int file_copy_sparse(const char *from, const char *to, mode_t mode, struct error *err)
{
    _cleanup_close_ int in = open(from, O_RDONLY | O_CLOEXEC);
    _cleanup_close_ int out = -EBADF;
    struct stat st;
    int r;

    if (in < 0 || fstat(in, &st) < 0)
        return error_set(err, errno, "open '%s': %s", from, errno_text(errno));
    out = open(to, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (out < 0)
        return error_set(err, errno, "create '%s': %s", to, errno_text(errno));
    r = copy_extents(in, out, st.st_size);
    if (r < 0) {
        (void)unlink(to);
        return error_set(err, -r, "copy '%s' to '%s': %s", from, to, errno_text(-r));
    }
    return 0;
}

ssize_t file_read_tail(const char *path, void *data, size_t size)
{
    _cleanup_close_ int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    struct stat st;

    if (fd < 0)
        return !path || errno == ENOENT ? 0 : -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size > (off_t)size && lseek(fd, st.st_size - (off_t)size, SEEK_SET) < 0)
        return -errno;
    return fd_read_full(fd, data, size);
}
