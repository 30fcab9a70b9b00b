#include "backend/firecracker/fc-jail.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <linux/magic.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"

const char *fc_jail_cgroup_root(void)
{
    static const char *const root = "/sys/fs/cgroup";
    _cleanup_free_ char *controllers = NULL;
    struct statfs fs;

    if (statfs(root, &fs) < 0 || fs.f_type != CGROUP2_SUPER_MAGIC)
        return NULL;
    if (file_read("/sys/fs/cgroup/cgroup.controllers", 4096, &controllers, NULL, NULL) < 0)
        return NULL;
    return strstr(controllers, "memory") && strstr(controllers, "pids") ? root : NULL;
}

int fc_jail_make(struct fc_jail *jail, const char *base, bool jailed, uid_t uid, struct error *err)
{
    int n, r;

    *jail = (struct fc_jail){.jailed = jailed, .uid = jailed ? uid : 0};
    r = random_id(jail->slot, sizeof(jail->slot) - 1);
    if (r < 0)
        return error_set(err, -r, "random slot name: %s", errno_text(-r));
    (void)snprintf(jail->base, sizeof(jail->base), "%s", base);
    n = snprintf(jail->root, sizeof(jail->root), "%s/firecracker/%s/root", base, jail->slot);
    if (n < 0 || (size_t)n + sizeof("/console.sock") > 108)
        return error_set(err, ENAMETOOLONG,
                         "state directory '%s' is too long for Unix sockets below it", base);
    r = dir_create(jail->root, 0700, err);
    if (r < 0)
        return r;
    if (jail->jailed && chown(jail->root, jail->uid, jail->uid) < 0)
        return error_set(err, errno, "chown '%s': %s", jail->root, errno_text(errno));
    return 0;
}

/* A file cannot be linked across file systems: mount it over an empty one. */
static int share_by_mount(const char *path, const char *to, bool writable, struct error *err)
{
    _cleanup_close_ int fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    if (fd < 0)
        return error_set(err, errno, "create '%s': %s", to, errno_text(errno));
    if (mount(path, to, NULL, MS_BIND, NULL) < 0)
        return error_set(err, errno, "mount '%s' on '%s': %s", path, to, errno_text(errno));
    if (!writable && mount(NULL, to, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) < 0)
        return error_set(err, errno, "make '%s' read-only: %s", to, errno_text(errno));
    return 0;
}

int fc_jail_share(const struct fc_jail *jail, const char *path, const char *name, bool writable,
                  struct error *err)
{
    char real[4096], to[256];
    int r;

    (void)snprintf(to, sizeof(to), "%s/%s", jail->root, name);
    if (!realpath(path, real))
        return error_set(err, errno, "open '%s': %s", path, errno_text(errno));
    if (link(real, to) < 0) {
        if (errno != EXDEV && errno != EPERM && errno != EMLINK)
            return error_set(err, errno, "link '%s' to '%s': %s", real, to, errno_text(errno));
        if (!jail->jailed) {
            if (symlink(real, to) < 0)
                return error_set(err, errno, "link '%s' to '%s': %s", real, to,
                                 errno_text(errno));
            return 0;
        }
        r = share_by_mount(real, to, writable, err);
        if (r < 0)
            return r;
    }
    if (writable && jail->jailed && chown(to, jail->uid, jail->uid) < 0)
        return error_set(err, errno, "chown '%s': %s", to, errno_text(errno));
    return 0;
}

int fc_jail_take_out(const struct fc_jail *jail, const char *name, const char *to,
                     struct error *err)
{
    char from[256];
    int r;

    (void)snprintf(from, sizeof(from), "%s/%s", jail->root, name);
    if (chown(from, 0, 0) < 0 && jail->jailed)
        return error_set(err, errno, "chown '%s': %s", from, errno_text(errno));
    if (rename(from, to) == 0)
        return 0;
    if (errno != EXDEV)
        return error_set(err, errno, "move '%s' to '%s': %s", from, to, errno_text(errno));
    (void)unlink(to);
    r = file_copy_sparse(from, to, 0600, err);
    if (r == 0)
        (void)unlink(from);
    return r;
}

/* Whatever is mounted below the slot, also by a daemon that died. */
static void unmount_below(const char *dir)
{
    _cleanup_free_ char *text = NULL;
    char *line, *rest;

    if (file_read("/proc/self/mounts", 64u << 20, &text, NULL, NULL) < 0)
        return;
    for (rest = text; (line = strsep(&rest, "\n")) != NULL;) {
        char *where = strchr(line, ' ');
        char *end = where ? strchr(where + 1, ' ') : NULL;

        if (!end)
            continue;
        *end = '\0';
        if (string_starts_with(where + 1, dir) && where[1 + strlen(dir)] == '/')
            (void)umount2(where + 1, MNT_DETACH | UMOUNT_NOFOLLOW);
    }
}

int fc_jail_remove(const struct fc_jail *jail, struct error *err)
{
    char dir[256], cgroup[256];

    (void)snprintf(dir, sizeof(dir), "%s/firecracker/%s", jail->base, jail->slot);
    unmount_below(dir);
    if (jail->jailed) {
        (void)snprintf(cgroup, sizeof(cgroup), "%s/hearth/%s", fc_jail_cgroup_root(), jail->slot);
        if (rmdir(cgroup) < 0 && errno != ENOENT)
            log_warning_errno(-errno, "Failed to remove cgroup '%s', ignoring", cgroup);
    }
    return dir_remove(dir, err);
}

void fc_jail_socket(const struct fc_jail *jail, const char *name, char ret[108])
{
    (void)snprintf(ret, 108, "%.*s/%s", 90, jail->root, name);
}
