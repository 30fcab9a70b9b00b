#include "backend/firecracker/fc-jail.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/page-source.h"
#include "base/strv.h"

#define CGROUP_ROOT "/sys/fs/cgroup"
/* What Firecracker needs beside the guest's memory: its own 5 MiB, page tables, buffers. */
#define MEMORY_OVERHEAD_MIB 96u
/* Kernel and initramfs are smaller; bigger files are never copied. */
#define COPY_MAX_BYTES (128u << 20)
/* Copied rather than mounted: a mount costs more than reading this. */
#define SMALL_BYTES (1u << 20)
#define EMPTY_USEC (1 * USEC_PER_SEC)

const char *fc_jail_cgroup_root(void)
{
    _cleanup_free_ char *controllers = NULL;
    struct statfs fs;

    if (statfs(CGROUP_ROOT, &fs) < 0 || fs.f_type != CGROUP2_SUPER_MAGIC)
        return NULL;
    if (file_read(CGROUP_ROOT "/cgroup.controllers", 4096, &controllers, NULL, NULL) < 0)
        return NULL;
    return strstr(controllers, "memory") && strstr(controllers, "pids") ? CGROUP_ROOT : NULL;
}

int fc_jail_from_dir(struct fc_jail *jail, const char *dir, bool jailed, uid_t uid)
{
    const char *slash = strrchr(dir, '/'), *program = slash;

    *jail = (struct fc_jail){.jailed = jailed, .uid = jailed ? uid : 0};
    while (program && program > dir && program[-1] != '/')
        program--;
    if (dir[0] != '/' || program == dir || !name_is_valid(slash + 1) ||
        strlen(slash + 1) >= sizeof(jail->slot) || strlen(dir) >= sizeof(jail->dir) ||
        (size_t)(slash - program) >= sizeof(jail->program) || strstr(dir, "/../"))
        return -EINVAL;
    (void)snprintf(jail->program, sizeof(jail->program), "%.*s", (int)(slash - program), program);
    (void)snprintf(jail->slot, sizeof(jail->slot), "%s", slash + 1);
    (void)snprintf(jail->dir, sizeof(jail->dir), "%s", dir);
    (void)snprintf(jail->root, sizeof(jail->root), "%s/root", dir);
    return 0;
}

int fc_jail_make(struct fc_jail *jail, const char *base, const char *program, bool jailed,
                 uid_t uid, struct error *err)
{
    char slot[FC_SLOT_SIZE], dir[256];
    int n, r;

    r = random_id(slot, sizeof(slot) - 1);
    if (r < 0)
        return error_set(err, -r, "random slot name: %s", errno_text(-r));
    n = snprintf(dir, sizeof(dir), "%s/%s/%s", base, program, slot);
    if (n < 0 || (size_t)n + sizeof("/root/console.sock") > 108)
        return error_set(err, ENAMETOOLONG,
                         "state directory: '%s' is too long for Unix sockets below it", base);
    r = fc_jail_from_dir(jail, dir, jailed, uid);
    if (r < 0)
        return error_set(err, -r, "'%s' is no place for a jail", dir);
    r = dir_create(jail->root, 0700, err);
    if (r < 0)
        return r;
    if (jail->jailed && chown(jail->root, jail->uid, jail->uid) < 0)
        return error_set(err, errno, "chown '%s': %s", jail->root, errno_text(errno));
    return 0;
}

/* ---- files of the host in the jail ---- */

struct mount_job {
    int namespace_fd, root, tree; /* weak */
    const char *name;
    int r;
};

/* In a thread of its own: one that shares its root with others cannot change its namespace. */
static void *mount_there(void *userdata)
{
    struct mount_job *job = userdata;

    if (unshare(CLONE_FS) < 0 || setns(job->namespace_fd, CLONE_NEWNS) < 0 ||
        move_mount(job->tree, "", job->root, job->name, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        job->r = -errno;
    return NULL;
}

static int open_proc(pid_t pid, const char *name, int flags)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    return open(path, flags | O_CLOEXEC);
}

/*
 * The process has a mount namespace of its own: the mount is made there, below what the process
 * sees as its root, is seen nowhere else, and ends with the process.
 */
static int share_by_mount(pid_t pid, const char *path, const char *to, const char *name,
                          bool writable, struct error *err)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC |
                                          (writable ? 0 : MOUNT_ATTR_RDONLY)};
    _cleanup_close_ int file = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    _cleanup_close_ int tree = open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    _cleanup_close_ int namespace_fd = open_proc(pid, "ns/mnt", O_RDONLY);
    _cleanup_close_ int root = open_proc(pid, "root", O_PATH | O_DIRECTORY);
    struct mount_job job = {.namespace_fd = namespace_fd, .root = root, .tree = tree, .name = name};
    pthread_t thread;
    int r;

    if (file < 0 || tree < 0 || namespace_fd < 0 || root < 0 ||
        mount_setattr(tree, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0)
        return error_set(err, errno, "mount '%s' on '%s': %s", path, to, errno_text(errno));
    r = pthread_create(&thread, NULL, mount_there, &job);
    if (r == 0)
        (void)pthread_join(thread, NULL);
    r = r != 0 ? -r : job.r;
    return r < 0 ? error_set(err, -r, "mount '%s' on '%s': %s", path, to, errno_text(-r)) : 0;
}

static int share_by_copy(const char *path, const char *to, const struct stat *st, struct error *err)
{
    if (st->st_size > (off_t)COPY_MAX_BYTES)
        return error_set(err, EACCES, "'%s' must be readable by others to be used in a jail", path);
    return file_copy_sparse(path, to, 0400, err);
}

static int share(const struct fc_jail *jail, pid_t pid, const char *path, const char *to,
                 const char *name, enum fc_share how, struct error *err)
{
    if (how != FC_SHARE_UNTOUCHED && linkat(AT_FDCWD, path, AT_FDCWD, to, AT_SYMLINK_FOLLOW) == 0)
        return 0;
    if (how != FC_SHARE_UNTOUCHED && errno != EXDEV && errno != EPERM && errno != EMLINK)
        return error_set(err, errno, "link '%s' to '%s': %s", path, to, errno_text(errno));
    if (jail->jailed)
        return share_by_mount(pid, path, to, name, how == FC_SHARE_WRITABLE, err);
    if (symlink(path, to) < 0)
        return error_set(err, errno, "link '%s' to '%s': %s", path, to, errno_text(errno));
    return 0;
}

int fc_jail_share(const struct fc_jail *jail, pid_t pid, const char *path, const char *name,
                  enum fc_share how, struct error *err)
{
    bool copied = false, writable = how == FC_SHARE_WRITABLE;
    char to[108];
    struct stat st;
    int r;

    fc_jail_path(jail, name, to);
    if (stat(path, &st) < 0)
        return error_set(err, errno, "open '%s': %s", path, errno_text(errno));
    copied = jail->jailed && !writable &&
             (!(st.st_mode & S_IROTH) ||
              (how == FC_SHARE_UNTOUCHED && st.st_size <= (off_t)SMALL_BYTES));
    r = copied ? share_by_copy(path, to, &st, err) : share(jail, pid, path, to, name, how, err);
    if (r < 0)
        return r;
    if (jail->jailed && (copied || writable) && chown(copied ? to : path, jail->uid, jail->uid) < 0)
        return error_set(err, errno, "chown '%s': %s", path, errno_text(errno));
    return 0;
}

/*
 * What is in the jail is the process's to change: a name there may be a link to anywhere. Beside
 * the root it is out of its reach; only then it is looked at.
 */
int fc_jail_take_out(const struct fc_jail *jail, const char *name, const char *to,
                     struct error *err)
{
    char from[108], safe[256];
    struct stat st;
    int r = 0;

    fc_jail_path(jail, name, from);
    (void)snprintf(safe, sizeof(safe), "%s/out-%s", jail->dir, name);
    if (rename(from, safe) < 0)
        return error_set(err, errno, "move '%s': %s", from, errno_text(errno));
    if (lstat(safe, &st) < 0 || !S_ISREG(st.st_mode))
        r = error_set(err, EINVAL, "'%s' is no file", from);
    else if (jail->jailed && lchown(safe, 0, 0) < 0)
        r = error_set(err, errno, "chown '%s': %s", safe, errno_text(errno));
    if (r >= 0 && rename(safe, to) == 0)
        return 0;
    if (r >= 0 && errno != EXDEV)
        r = error_set(err, errno, "move '%s' to '%s': %s", safe, to, errno_text(errno));
    if (r >= 0) {
        (void)unlink(to);
        r = file_copy_sparse(safe, to, 0600, err);
    }
    (void)unlink(safe);
    return r;
}

int fc_jail_copy_out(const struct fc_jail *jail, const char *name, const char *to,
                     struct error *err)
{
    _cleanup_close_ int fd = -EBADF;
    char from[108], path[64];
    struct stat st;

    fc_jail_path(jail, name, from);
    fd = open(from, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return error_set(err, errno, "open '%s': %s", from, errno_text(errno));
    if (!S_ISREG(st.st_mode))
        return error_set(err, EINVAL, "'%s' is no file", from);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return file_copy_sparse(path, to, 0600, err);
}

/* ---- memory of a VM's own ---- */

static int put_zeros(int fd, uint64_t offset, size_t size)
{
    static const uint8_t zeros[PAGE_BYTES];

    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)size) == 0)
        return 0;
    if (errno != EOPNOTSUPP)
        return -errno;
    for (size_t at = 0; at < size; at += PAGE_BYTES)
        if (pwrite(fd, zeros, PAGE_BYTES, (off_t)(offset + at)) != (ssize_t)PAGE_BYTES)
            return -EIO;
    return 0;
}

static int put_pages(int fd, uint64_t offset, const void *data, size_t size)
{
    const uint8_t *from = data;

    if (!data)
        return put_zeros(fd, offset, size);
    while (size > 0) {
        ssize_t n = pwrite(fd, from, size, (off_t)offset);

        if (n < 0 && errno != EINTR)
            return -errno;
        n = MAX(n, (ssize_t)0);
        from += n;
        offset += (uint64_t)n;
        size -= (size_t)n;
    }
    return 0;
}

int fc_jail_compose(const struct fc_jail *jail, const char *base, struct page_source *pages,
                    const char *name, uint64_t deadline_usec, struct error *err)
{
    _cleanup_close_ int fd = -EBADF;
    uint64_t offset;
    const void *data;
    char to[108];
    size_t size;
    struct stat st;
    int r;

    fc_jail_path(jail, name, to);
    r = file_copy_sparse(base, to, 0600, err);
    if (r < 0)
        return r;
    fd = open(to, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return error_set(err, errno, "open '%s': %s", to, errno_text(errno));
    while ((r = pages->ops->next(pages, &offset, &data, &size, err)) > 0) {
        if (offset > (uint64_t)st.st_size || size > (uint64_t)st.st_size - offset)
            return error_set_code(err, ERR_SNAPSHOT_INVALID,
                                  "the snapshot has pages beyond the end of '%s'", base);
        r = clock_now_usec() > deadline_usec ? -ETIMEDOUT : put_pages(fd, offset, data, size);
        if (r < 0)
            return error_set(err, -r, "write '%s': %s", to, errno_text(-r));
    }
    if (r >= 0 && jail->jailed && fchown(fd, jail->uid, jail->uid) < 0)
        r = error_set(err, errno, "chown '%s': %s", to, errno_text(errno));
    return r;
}

/* ---- cgroup ---- */

static int open_cgroup(const struct fc_jail *jail, const char *file, int flags)
{
    char path[128];

    (void)snprintf(path, sizeof(path), CGROUP_ROOT "/hearth/%s/%s", jail->slot, file);
    return open(path, flags | O_CLOEXEC);
}

static int limit(const struct fc_jail *jail, const char *file, const char *value, struct error *err)
{
    _cleanup_close_ int fd = open_cgroup(jail, file, O_WRONLY);
    int r = fd < 0 ? -errno : fd_write_full(fd, value, strlen(value));

    return r < 0 ? error_set(err, -r, "write '%s' to '%s' of cgroup 'hearth/%s': %s", value, file,
                             jail->slot, errno_text(-r))
                 : 0;
}

static uint64_t bytes_in_memory(const char *path)
{
    struct statfs fs;
    struct stat st;

    if (statfs(path, &fs) < 0 || stat(path, &st) < 0 || fs.f_type != TMPFS_MAGIC)
        return 0;
    return (uint64_t)st.st_size;
}

int fc_jail_limit(const struct fc_jail *jail, uint32_t memory_mib, uint32_t cpus, const char *disk,
                  struct error *err)
{
    char value[64];
    int r;

    if (!jail->jailed)
        return 0;
    (void)snprintf(value, sizeof(value), "%llu",
                   ((unsigned long long)(memory_mib + MEMORY_OVERHEAD_MIB) << 20) +
                       bytes_in_memory(disk));
    r = limit(jail, "memory.max", value, err);
    if (r < 0)
        return r;
    /* A fifth of a CPU for what Firecracker itself does beside its vCPUs. */
    (void)snprintf(value, sizeof(value), "%u 100000", cpus * 100000 + 20000);
    return limit(jail, "cpu.max", value, err);
}

/*
 * Whatever is in the cgroup ends: a jailer that was given up may have started a process that nobody
 * knows of. Waits for that until it is empty, or for a second.
 */
static void empty_cgroup(const struct fc_jail *jail)
{
    _cleanup_close_ int events = open_cgroup(jail, "cgroup.events", O_RDONLY);
    _cleanup_close_ int kill = open_cgroup(jail, "cgroup.kill", O_WRONLY);
    uint64_t deadline = clock_now_usec() + EMPTY_USEC, now;

    if (kill >= 0)
        (void)!write(kill, "1", 1);
    while (events >= 0 && (now = clock_now_usec()) < deadline) {
        struct pollfd p = {.fd = events, .events = POLLPRI};
        char text[256];
        ssize_t n = pread(events, text, sizeof(text) - 1, 0);

        text[n > 0 ? n : 0] = '\0';
        if (!strstr(text, "populated 1"))
            return;
        (void)poll(&p, 1, (int)((deadline - now) / USEC_PER_MSEC) + 1);
    }
}

int fc_jail_remove(const struct fc_jail *jail, struct error *err)
{
    char cgroup[128];

    if (jail->jailed) {
        (void)snprintf(cgroup, sizeof(cgroup), CGROUP_ROOT "/hearth/%s", jail->slot);
        if (rmdir(cgroup) < 0 && errno == EBUSY) {
            empty_cgroup(jail);
            (void)rmdir(cgroup);
        }
        if (access(cgroup, F_OK) == 0)
            log_warning("Failed to remove cgroup '%s', ignoring", cgroup);
    }
    return dir_remove(jail->dir, err);
}

void fc_jail_path(const struct fc_jail *jail, const char *name, char ret[108])
{
    (void)snprintf(ret, 108, "%.*s/%s", 90, jail->root, name);
}
