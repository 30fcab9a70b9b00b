#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/strv.h"
#include "guest/file-ops.h"
#include "guest/reply.h"

#define COPY_SIZE (128u * 1024u)

static uint8_t copy_buffer[COPY_SIZE];

int file_op_read(const Hearth__V1__FileRead *op)
{
    _cleanup_free_ char *path = path_from_request(&op->path);
    _cleanup_close_ int fd = -EBADF;
    uint64_t left = op->length ? op->length : UINT64_MAX;
    struct stat st;

    if (!path)
        return 1;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0)
        return reply_errno(errno, "open", path);
    if (S_ISDIR(st.st_mode))
        return reply_errno(EISDIR, "read", path);
    if (op->offset > INT64_MAX || (op->offset > 0 && lseek(fd, (off_t)op->offset, SEEK_SET) < 0))
        return reply_errno(op->offset > INT64_MAX ? EINVAL : errno, "seek in", path);
    reply_ready((uint64_t)st.st_size);
    while (left > 0) {
        ssize_t n = read(fd, copy_buffer, (size_t)MIN((uint64_t)COPY_SIZE, left));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return reply_errno(errno, "read", path);
        if (n == 0)
            break;
        if (fd_write_full(STDOUT_FILENO, copy_buffer, (size_t)n) < 0)
            return 1;
        left -= (uint64_t)n;
    }
    (void)close(STDOUT_FILENO);
    return reply_ok();
}

/* ---- write ---- */

/* Of an atomic write under way; removed when we are told to stop. */
static char temporary[PATH_MAX];

static void on_term(int signo)
{
    (void)signo;
    if (temporary[0])
        (void)unlink(temporary);
    _exit(1);
}

static int open_temporary(const char *target, mode_t mode)
{
    const char *slash = strrchr(target, '/');
    char id[17], path[PATH_MAX];
    int fd, r;

    r = random_id(id, sizeof(id) - 1);
    if (r < 0)
        return r;
    r = snprintf(path, sizeof(path), "%.*s/.hearth-%s", (int)(slash - target), target, id);
    if (r < 0 || (size_t)r >= sizeof(path))
        return -ENAMETOOLONG;
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return -errno;
    memcpy(temporary, path, sizeof(temporary));
    return fd;
}

static int copy_input(int fd, uint64_t *ret_size)
{
    uint64_t size = 0;

    for (;;) {
        ssize_t n = read(STDIN_FILENO, copy_buffer, COPY_SIZE);
        int r;

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        r = fd_write_full(fd, copy_buffer, (size_t)n);
        if (r < 0)
            return r;
        size += (uint64_t)n;
    }
    *ret_size = size;
    return 0;
}

static int write_done(const char *path, uint64_t size)
{
    Hearth__V1__FileInfo info = HEARTH__V1__FILE_INFO__INIT;
    Hearth__V1__Reply reply = HEARTH__V1__REPLY__INIT;

    info.path = (ProtobufCBinaryData){.len = strlen(path), .data = (uint8_t *)(uintptr_t)path};
    info.type = HEARTH__V1__FILE_TYPE__FILE_TYPE_FILE;
    info.size = size;
    reply.reply_case = HEARTH__V1__REPLY__REPLY_INFO;
    reply.info = &info;
    reply_send(&reply);
    return 0;
}

static int write_atomic(const Hearth__V1__FileWrite *op, const char *path)
{
    _cleanup_free_ char *real = realpath(path, NULL);
    _cleanup_close_ int fd = -EBADF;
    const char *target = real ? real : path; /* a link keeps being one */
    struct stat st = {0};
    bool exists = stat(target, &st) == 0;
    mode_t mode = exists ? st.st_mode & 07777 : 0644;
    uint64_t size;
    int r;

    if (exists && op->exclusive)
        return reply_errno(EEXIST, "write", path);
    if (exists && !S_ISREG(st.st_mode))
        return reply_errno(S_ISDIR(st.st_mode) ? EISDIR : EINVAL, "write", path);
    if (op->mode)
        mode = op->mode & 07777;
    fd = open_temporary(target, 0600);
    if (fd < 0)
        return reply_errno(-fd, "write", path);
    if (exists)
        (void)!fchown(fd, st.st_uid, st.st_gid);
    reply_ready(0);
    r = copy_input(fd, &size);
    if (r == 0 && fchmod(fd, mode) < 0)
        r = -errno;
    if (r == 0 && syscall(SYS_renameat2, AT_FDCWD, temporary, AT_FDCWD, target,
                          op->exclusive ? RENAME_NOREPLACE : 0) < 0)
        r = -errno;
    if (r < 0) {
        (void)unlink(temporary);
        return reply_errno(-r, "write", path);
    }
    temporary[0] = '\0';
    return write_done(path, size);
}

static int write_in_place(const Hearth__V1__FileWrite *op, const char *path)
{
    int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | (op->append ? O_APPEND : O_TRUNC) |
                (op->exclusive ? O_EXCL : 0);
    _cleanup_close_ int fd = open(path, flags, op->mode ? op->mode & 07777 : 0644);
    uint64_t size;
    int r;

    if (fd < 0)
        return reply_errno(errno, "write", path);
    if (op->mode && fchmod(fd, op->mode & 07777) < 0)
        return reply_errno(errno, "change mode of", path);
    reply_ready(0);
    r = copy_input(fd, &size);
    return r < 0 ? reply_errno(-r, "write", path) : write_done(path, size);
}

int file_op_write(const Hearth__V1__FileWrite *op)
{
    _cleanup_free_ char *path = path_from_request(&op->path);
    struct sigaction action = {.sa_handler = on_term};
    int r;

    if (!path)
        return 1;
    if (op->atomic && op->append)
        return reply_error(HEARTH__V1__CODE__CODE_INVALID, EINVAL,
                           "a write cannot both append and be atomic");
    r = op->parents ? make_dirs(path, false, 0755) : 0;
    if (r < 0)
        return reply_errno(-r, "make the directories of", path);
    (void)sigaction(SIGTERM, &action, NULL);
    return op->atomic ? write_atomic(op, path) : write_in_place(op, path);
}
