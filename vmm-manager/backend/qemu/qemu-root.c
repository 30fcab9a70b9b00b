#include "backend/qemu/qemu-root.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "backend/qemu/qemu-process.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"

#define VOLATILE_PREFIX "hearth-qemu-"
#define VOLATILE_OWNER "owner" /* file with the path of the root */
#define SWEEP_AGE_SEC 5
#define LOG_MAX_BYTES (1024u * 1024u)

/*
 * No daemon of libvirt's runs: the driver must not look for one (stdio_handler), label or chown
 * anything. The filtered capability makes libvirt read a new guest's CPU in three commands instead
 * of one for each of some 300 flags, which takes longer than all the rest of a start.
 */
static const char qemu_conf[] = "user = \"root\"\n"
                                "group = \"root\"\n"
                                "dynamic_ownership = 0\n"
                                "remember_owner = 0\n"
                                "security_driver = \"none\"\n"
                                "namespaces = [ ]\n"
                                "cgroup_controllers = [ ]\n"
                                "stdio_handler = \"file\"\n"
                                "capability_filters = [ \"cpu-unavailable-features\" ]\n";

static void dir_cleanup(DIR **d)
{
    if (*d)
        (void)closedir(*d);
}

/* Two state directories must not share a run directory. */
static uint32_t path_hash(const char *path)
{
    uint32_t h = UINT32_C(2166136261);

    for (; *path; path++)
        h = (h ^ (unsigned char)*path) * UINT32_C(16777619);
    return h;
}

/*
 * A directory of ours in a memory file system. Others may write beside it in /dev/shm, so what is
 * found there counts only if it is ours alone.
 */
static int make_volatile(const char *base, const char *path)
{
    struct statfs fs;
    struct stat st;

    if (statfs(base, &fs) < 0 || fs.f_type != TMPFS_MAGIC)
        return -ENODEV;
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return -errno;
    if (lstat(path, &st) < 0)
        return -errno;
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0)
        return -EACCES;
    return 0;
}

/* Each says whose it is; what belongs to a root that was removed goes. */
static void sweep_volatile(const char *base)
{
    _cleanup_(dir_cleanup) DIR *dir = opendir(base);
    struct dirent *e;

    while (dir && (e = readdir(dir)) != NULL) {
        _cleanup_free_ char *path = NULL, *owner_path = NULL, *owner = NULL;
        struct stat st;

        if (!string_starts_with(e->d_name, VOLATILE_PREFIX))
            continue;
        path = string_printf("%s/%s", base, e->d_name);
        owner_path = string_printf("%s/%s/" VOLATILE_OWNER, base, e->d_name);
        if (!path || !owner_path || lstat(path, &st) < 0 || !S_ISDIR(st.st_mode) ||
            st.st_uid != geteuid() || file_read(owner_path, 4096, &owner, NULL, NULL) < 0)
            continue;
        if (*owner == '/' && !file_exists(owner))
            (void)dir_remove(path, NULL);
    }
}

static int link_volatile(const char *root, const char *link, const char *target, struct error *err)
{
    _cleanup_free_ char *owner = string_printf("%s/" VOLATILE_OWNER, target);
    char old[256];
    ssize_t n;
    int r;

    if (!owner)
        return error_set(err, ENOMEM, "out of memory");
    r = file_write_atomic(owner, root, strlen(root), 0600, err);
    if (r < 0)
        return r;
    n = readlink(link, old, sizeof(old) - 1);
    if (n >= 0) {
        old[n] = '\0';
        if (strcmp(old, target) == 0)
            return 0;
        (void)unlink(link);
    }
    if (symlink(target, link) < 0)
        return error_set(err, errno, "link '%s' to '%s': %s", link, target, errno_text(errno));
    return 0;
}

static int prepare_run(const char *root, struct error *err)
{
    static const char *const bases[] = {"/run", "/dev/shm"};
    _cleanup_free_ char *link = string_printf("%s/run", root);
    struct stat st;

    if (!link)
        return error_set(err, ENOMEM, "out of memory");
    if (lstat(link, &st) == 0 && S_ISDIR(st.st_mode))
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(bases); i++) {
        _cleanup_free_ char *target =
            string_printf("%s/" VOLATILE_PREFIX "%08" PRIx32, bases[i], path_hash(root));

        if (!target)
            return error_set(err, ENOMEM, "out of memory");
        if (make_volatile(bases[i], target) < 0)
            continue;
        sweep_volatile(bases[i]);
        return link_volatile(root, link, target, err);
    }
    (void)unlink(link);
    return dir_create(link, 0700, err);
}

static int prepare_conf(const char *root, struct error *err)
{
    _cleanup_free_ char *dir = string_printf("%s/etc", root);
    _cleanup_free_ char *path = string_printf("%s/etc/qemu.conf", root);
    _cleanup_free_ char *old = NULL;
    size_t size;
    int r;

    if (!dir || !path)
        return error_set(err, ENOMEM, "out of memory");
    r = dir_create(dir, 0700, err);
    if (r < 0)
        return r;
    if (file_read(path, sizeof(qemu_conf), &old, &size, NULL) >= 0 && strcmp(old, qemu_conf) == 0)
        return 0;
    return file_write_atomic(path, qemu_conf, sizeof(qemu_conf) - 1, 0600, err);
}

pid_t root_read_pid(const char *root, const char *id)
{
    char path[512], text[32];
    uint64_t pid;
    ssize_t n;

    if ((size_t)snprintf(path, sizeof(path), "%s/run/qemu/%s.pid", root, id) >= sizeof(path))
        return -ENAMETOOLONG;
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -ESRCH;
    n = fd_read_full(fd, text, sizeof(text) - 1);
    if (n <= 0)
        return -ESRCH;
    text[n] = '\0';
    text[strcspn(text, "\n")] = '\0';
    if (parse_u64(text, 2, INT32_MAX, &pid) < 0)
        return -ESRCH;
    return (pid_t)pid;
}

int root_open_vm(const char *root, const char *id, pid_t *ret_pid)
{
    pid_t pid = root_read_pid(root, id);
    int fd;

    if (pid < 0)
        return (int)pid;
    fd = pidfd_open(pid, 0);
    if (fd < 0)
        return -ESRCH;
    /* Checked after opening: what the descriptor names can no longer change. */
    if (!process_is_vm(pid, id)) {
        (void)fd_close(fd);
        return -ESRCH;
    }
    if (ret_pid)
        *ret_pid = pid;
    return fd;
}

/*
 * libvirt removes the directories of its probes and VMs unless it is killed first. Called while no
 * driver is open: no probe is under way, and a VM either lives or is no more.
 */
static void sweep_lib(const char *root)
{
    _cleanup_free_ char *lib = string_printf("%s/lib/qemu", root);
    _cleanup_(dir_cleanup) DIR *dir = lib ? opendir(lib) : NULL;
    struct dirent *e;

    while (dir && (e = readdir(dir)) != NULL) {
        _cleanup_free_ char *path = NULL;
        const char *id = NULL;

        if (string_starts_with(e->d_name, "domain-")) {
            id = strchr(e->d_name + strlen("domain-"), '-'); /* domain-NUMBER-ID */
            _cleanup_close_ int fd = id ? root_open_vm(root, id + 1, NULL) : -ESRCH;
            if (!id || fd >= 0)
                continue;
        } else if (!string_starts_with(e->d_name, "qmp-")) {
            continue;
        }
        path = string_printf("%s/%s", lib, e->d_name);
        if (path)
            (void)dir_remove(path, NULL);
    }
}

/* "ID" of "ID<suffix>", or false. */
static bool strip_suffix(const char *name, const char *suffix, char *id, size_t size)
{
    size_t n = strlen(name), m = strlen(suffix);

    if (n <= m || n - m >= size || strcmp(name + n - m, suffix) != 0)
        return false;
    memcpy(id, name, n - m);
    id[n - m] = '\0';
    return name_is_valid(id);
}

/* Was the start of this VM cut off before libvirt knew its process? */
static bool status_is_half(int dir_fd, const char *name)
{
    _cleanup_close_ int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    char head[2048], *tag, *end;
    ssize_t n = fd < 0 ? -1 : fd_read_full(fd, head, sizeof(head) - 1);

    if (n <= 0)
        return n == 0;
    head[n] = '\0';
    tag = strstr(head, "<domstatus ");
    end = tag ? strchr(tag, '>') : NULL;
    if (!end)
        return false;
    *end = '\0';
    return strstr(tag, " pid='0'") != NULL;
}

/*
 * What libvirt wrote of a VM while it was starting it, with the job that it was at. It does not go
 * on with such a VM when it finds it again, and nobody ever ends that job: everything asked of a VM
 * of this name would wait for it. The process, if there is one, is known by its pid file.
 */
static void sweep_run(const char *root)
{
    _cleanup_free_ char *run = string_printf("%s/run/qemu", root);
    _cleanup_(dir_cleanup) DIR *dir = run ? opendir(run) : NULL;
    struct dirent *e;
    char id[64];

    while (dir && (e = readdir(dir)) != NULL) {
        if (strip_suffix(e->d_name, ".xml", id, sizeof(id)) &&
            status_is_half(dirfd(dir), e->d_name))
            (void)unlinkat(dirfd(dir), e->d_name, 0);
    }
}

int root_prepare(const char *root, struct error *err)
{
    int r;

    r = dir_create(root, 0700, err);
    if (r >= 0)
        r = prepare_run(root, err);
    if (r >= 0)
        r = prepare_conf(root, err);
    if (r >= 0) {
        sweep_lib(root);
        sweep_run(root);
    }
    return r;
}

int root_list(const char *root, char ***ret, struct error *err)
{
    _cleanup_free_ char *path = string_printf("%s/run/qemu", root);
    _cleanup_(dir_cleanup) DIR *dir = NULL;
    _cleanup_strv_ char **ids = NULL;
    struct dirent *e;
    char id[64];
    int r;

    if (!path)
        return error_set(err, ENOMEM, "out of memory");
    dir = opendir(path);
    if (!dir && errno != ENOENT)
        return error_set(err, errno, "list '%s': %s", path, errno_text(errno));
    while (dir && (e = readdir(dir)) != NULL) {
        _cleanup_close_ int fd = -EBADF;

        if (!strip_suffix(e->d_name, ".pid", id, sizeof(id)))
            continue;
        fd = root_open_vm(root, id, NULL);
        if (fd < 0)
            continue;
        r = strv_append(&ids, id);
        if (r < 0)
            return error_fill(err, r, "list VMs");
    }
    *ret = TAKE_PTR(ids);
    return 0;
}

int root_last_words(const char *root, const char *id, char *text, size_t size)
{
    static const char mark[] = " qemu-system-";
    _cleanup_free_ char *path = string_printf("%s/log/qemu/%s.log", root, id);
    _cleanup_free_ char *log = NULL;
    const char *found = NULL;
    size_t n = 0;

    if (!path)
        return -ENOMEM;
    if (file_read(path, LOG_MAX_BYTES, &log, NULL, NULL) < 0)
        return -ENOENT;
    /* "TIME qemu-system-ARCH: complaint"; the command line has the program's whole path. */
    for (const char *p = log; (p = strstr(p, mark)) != NULL; p++)
        found = p + 1;
    if (!found || !strchr(found, ':'))
        return -ENOENT;
    for (found = strchr(found, ':') + 1 + strspn(strchr(found, ':') + 1, " ");
         *found && *found != '\n' && n + 1 < size; found++)
        text[n++] = *found >= ' ' && *found < 0x7f ? *found : '?';
    text[n] = '\0';
    return n > 0 ? 0 : -ENOENT;
}

void root_sweep_logs(const char *root, bool (*alive)(const char *id, void *userdata),
                     void *userdata)
{
    _cleanup_free_ char *path = string_printf("%s/log/qemu", root);
    _cleanup_(dir_cleanup) DIR *dir = path ? opendir(path) : NULL;
    time_t now = time(NULL);
    struct dirent *e;
    struct stat st;
    char id[64];

    while (dir && (e = readdir(dir)) != NULL) {
        if (!strip_suffix(e->d_name, ".log", id, sizeof(id)) || alive(id, userdata))
            continue;
        if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            now - st.st_mtime >= SWEEP_AGE_SEC)
            (void)unlinkat(dirfd(dir), e->d_name, 0);
    }
}

void root_release(const char *root)
{
    _cleanup_free_ char *link = string_printf("%s/run", root);
    _cleanup_strv_ char **ids = NULL;
    char target[256];
    ssize_t n;

    if (!link || root_list(root, &ids, NULL) < 0 || strv_length(ids) > 0)
        return;
    n = readlink(link, target, sizeof(target) - 1);
    if (n <= 0)
        return;
    target[n] = '\0';
    (void)dir_remove(target, NULL);
    (void)unlink(link);
}
