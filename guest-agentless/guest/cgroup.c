#include "guest/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/strv.h"

#define CGROUP_PIDS_TEXT 1024u

int cgroup_write(int cgroup_fd, const char *file, const char *text)
{
    _cleanup_close_ int fd = openat(cgroup_fd, file, O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

/* Content of a small file as a string. */
static int read_text(int dir_fd, const char *file, char *text, size_t size)
{
    _cleanup_close_ int fd = openat(dir_fd, file, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return -errno;
    n = fd_read_full(fd, text, size - 1);
    if (n < 0)
        return (int)n;
    text[n] = '\0';
    return 0;
}

int cgroup_read_key(int cgroup_fd, const char *file, const char *key, uint64_t *ret)
{
    char text[1024];
    size_t length = strlen(key);
    int r;

    r = read_text(cgroup_fd, file, text, sizeof(text));
    if (r < 0)
        return r;
    for (char *p = text; *p;) {
        char *end = strchrnul(p, '\n');
        bool last = *end == '\0';

        *end = '\0';
        if (strncmp(p, key, length) == 0 && p[length] == ' ')
            return parse_u64(p + length + 1, 0, UINT64_MAX, ret);
        if (last)
            break;
        p = end + 1;
    }
    return -ENOENT;
}

bool cgroup_oom_killed(int cgroup_fd)
{
    uint64_t count;

    return cgroup_read_key(cgroup_fd, "memory.events", "oom_kill", &count) == 0 && count > 0;
}

static int open_dir(int at, const char *path)
{
    int fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd < 0 ? -errno : fd;
}

int cgroup_open_tree(const char *dir)
{
    _cleanup_close_ int parent = -EBADF, fd = -EBADF;
    _cleanup_free_ char *parent_path = strdup(dir);
    char *slash;

    if (!parent_path)
        return -ENOMEM;
    slash = strrchr(parent_path, '/');
    if (!slash || slash == parent_path)
        return -EINVAL;
    *slash = '\0';
    parent = open_dir(AT_FDCWD, parent_path);
    if (parent < 0)
        return parent;
    /* A kernel without one of them still serves; then there is no limit and no OOM report. */
    (void)cgroup_write(parent, "cgroup.subtree_control", "+memory");
    (void)cgroup_write(parent, "cgroup.subtree_control", "+pids");
    if (mkdirat(parent, slash + 1, 0755) < 0 && errno != EEXIST)
        return -errno;
    fd = open_dir(parent, slash + 1);
    if (fd < 0)
        return fd;
    (void)cgroup_write(fd, "cgroup.subtree_control", "+memory");
    (void)cgroup_write(fd, "cgroup.subtree_control", "+pids");
    if (mkdirat(fd, "ops", 0755) < 0 && errno != EEXIST)
        return -errno;
    return TAKE_FD(fd);
}

static void cgroup_name(uint64_t id, char text[32])
{
    (void)snprintf(text, 32, "p%" PRIu64, id);
}

static int set_limit(int fd, const char *file, uint64_t value)
{
    char text[32];

    if (value == 0)
        return 0;
    (void)snprintf(text, sizeof(text), "%" PRIu64, value);
    return cgroup_write(fd, file, text);
}

int cgroup_create(int tree_fd, uint64_t id, const struct cgroup_limits *limits)
{
    _cleanup_close_ int fd = -EBADF;
    char name[32];
    int r;

    cgroup_name(id, name);
    if (mkdirat(tree_fd, name, 0755) < 0 && errno != EEXIST)
        return -errno;
    fd = open_dir(tree_fd, name);
    if (fd < 0)
        return fd;
    r = set_limit(fd, "memory.max", limits->memory_bytes);
    if (r == 0)
        r = set_limit(fd, "pids.max", limits->pids);
    if (r < 0) {
        (void)cgroup_remove(tree_fd, id);
        return r;
    }
    return TAKE_FD(fd);
}

int cgroup_remove(int tree_fd, uint64_t id)
{
    char name[32];

    cgroup_name(id, name);
    return unlinkat(tree_fd, name, AT_REMOVEDIR) < 0 ? -errno : 0;
}

/* Decimal numbers of the text, one a line, added to what is there. */
static void parse_pids(const char *text, size_t size, uint64_t *value, pid_t *pids, size_t max,
                       size_t *count)
{
    for (size_t i = 0; i < size; i++) {
        if (text[i] >= '0' && text[i] <= '9') {
            *value = *value * 10 + (uint64_t)(text[i] - '0');
        } else {
            if (*value > 0 && *count < max)
                pids[(*count)++] = (pid_t)*value;
            *value = 0;
        }
    }
}

ssize_t cgroup_pids(int cgroup_fd, int *procs_fd, pid_t *pids, size_t max)
{
    char text[CGROUP_PIDS_TEXT];
    uint64_t value = 0;
    size_t count = 0;
    ssize_t n;

    if (*procs_fd < 0)
        *procs_fd = openat(cgroup_fd, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    if (*procs_fd < 0)
        return *procs_fd = -errno;
    n = pread(*procs_fd, text, sizeof(text), 0);
    if (n < 0)
        return -errno;
    parse_pids(text, (size_t)n, &value, pids, max, &count);
    /* Nearly full: there may be more, which comes in order when it is read on from the start. */
    if ((size_t)n + 16 < sizeof(text))
        return (ssize_t)count;
    value = 0;
    count = 0;
    if (lseek(*procs_fd, 0, SEEK_SET) < 0)
        return -errno;
    while ((n = read(*procs_fd, text, sizeof(text))) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        parse_pids(text, (size_t)n, &value, pids, max, &count);
    }
    return (ssize_t)count;
}

/* Session in /proc/PID/stat: the fourth field after the command, which may hold any byte. */
static pid_t session_of(int proc_fd, const char *pid)
{
    char path[32], text[512];
    const char *p;
    char state;
    int ppid, pgrp, session;

    if (strlen(pid) > 16)
        return -1;
    (void)snprintf(path, sizeof(path), "%.16s/stat", pid);
    if (read_text(proc_fd, path, text, sizeof(text)) < 0)
        return -1;
    p = strrchr(text, ')');
    if (!p || sscanf(p + 1, " %c %d %d %d", &state, &ppid, &pgrp, &session) != 4)
        return -1;
    return state == 'Z' || state == 'X' ? -1 : session;
}

ssize_t session_pids(pid_t session, pid_t *pids, size_t max)
{
    DIR *d = opendir("/proc");
    struct dirent *e;
    size_t count = 0;

    if (!d)
        return -errno;
    while (count < max && (e = readdir(d))) {
        uint64_t pid;

        if (parse_u64(e->d_name, 1, INT32_MAX, &pid) < 0)
            continue;
        if (session_of(dirfd(d), e->d_name) == session)
            pids[count++] = (pid_t)pid;
    }
    (void)closedir(d);
    return (ssize_t)count;
}
