#include "guest/rootfs.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "guest/users.h"

#define USER_NAME "user"
#define USER_ID 1000
#define USER_HOME "/home/user"

/* Appends to a file of the image, after a newline if its last line has none. */
static int append(const char *path, mode_t mode, const char *existing, const char *line,
                  struct error *err)
{
    _cleanup_close_ int fd =
        open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, mode);
    size_t size = strlen(existing);
    int r = 0;

    if (fd < 0)
        return error_set(err, errno, "open %s: %s", path, errno_text(errno));
    if (size > 0 && existing[size - 1] != '\n')
        r = fd_write_full(fd, "\n", 1);
    if (r == 0)
        r = fd_write_full(fd, line, strlen(line));
    return r < 0 ? error_set(err, -r, "write %s: %s", path, errno_text(-r)) : 0;
}

static int add_root(const struct users *u, struct error *err)
{
    int r = 0;

    if (u->passwd[0] == '\0')
        r = append("/etc/passwd", 0644, "", "root:x:0:0:root:/root:/bin/sh\n", err);
    if (r == 0 && u->group[0] == '\0')
        r = append("/etc/group", 0644, "", "root:x:0:\n", err);
    return r;
}

static int add_user(const struct users *u, struct error *err)
{
    const char *shell = access("/bin/bash", X_OK) == 0 ? "/bin/bash" : "/bin/sh";
    char name[USER_NAME_MAX], line[256];
    struct user known;
    int r;

    if (users_resolve(u, USER_NAME, &known, NULL) == 0)
        return 0;
    users_name_of_gid(u, USER_ID, name);
    if (name[0] == '\0') {
        (void)snprintf(line, sizeof(line), USER_NAME ":x:%d:\n", USER_ID);
        r = append("/etc/group", 0644, u->group, line, err);
        if (r < 0)
            return r;
    }
    (void)snprintf(line, sizeof(line), USER_NAME ":x:%d:%d::" USER_HOME ":%s\n", USER_ID, USER_ID,
                   shell);
    return append("/etc/passwd", 0644, u->passwd, line, err);
}

static int make_home(const char *path, uid_t uid, gid_t gid, mode_t mode)
{
    if (mkdir(path, mode) < 0)
        return errno == EEXIST ? 0 : -errno;
    return chown(path, uid, gid) < 0 ? -errno : 0;
}

static int prepare_users(struct error *err)
{
    struct users u;
    int r;

    r = users_load(&u);
    if (r < 0)
        return error_set(err, -r, "out of memory");
    r = add_root(&u, err);
    if (r == 0)
        r = add_user(&u, err);
    users_done(&u);
    return r;
}

int rootfs_prepare(const char *root, struct error *err)
{
    int r;

    if (chroot(root) < 0 || chdir("/") < 0)
        return error_set(err, errno, "enter %s: %s", root, errno_text(errno));
    (void)umask(022);
    /* A link that leads nowhere, or the like: the files below will tell. */
    (void)mkdir("/etc", 0755);
    r = prepare_users(err);
    if (r < 0)
        return r;
    (void)make_home("/root", 0, 0, 0700);
    (void)make_home("/home", 0, 0, 0755);
    r = make_home(USER_HOME, USER_ID, USER_ID, 0755);
    if (r < 0)
        return error_set(err, -r, "make " USER_HOME ": %s", errno_text(-r));
    if (access("/etc/hosts", F_OK) < 0)
        return append("/etc/hosts", 0644, "", "127.0.0.1 localhost\n::1 localhost ip6-localhost\n",
                      err);
    return 0;
}
