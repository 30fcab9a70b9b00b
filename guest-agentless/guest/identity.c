#include "guest/identity.h"

#include <ctype.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/random.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

#define ENTROPY_MIN 32u
#define ENTROPY_MAX 512u
#define HOSTNAME_LIMIT 63u
#define BOOT_ID_FILE "/hearth-boot-id" /* in the initramfs, shown in the root's /proc */

static bool is_hex(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (!isxdigit((unsigned char)text[i]))
            return false;
    }
    return true;
}

static bool is_uuid(const char *text)
{
    if (strlen(text) != 36)
        return false;
    for (size_t i = 0; i < 36; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;

        if (dash ? text[i] != '-' : !isxdigit((unsigned char)text[i]))
            return false;
    }
    return true;
}

static bool is_hostname(const char *text)
{
    size_t size = strlen(text);

    if (size == 0 || size > HOSTNAME_LIMIT || text[0] == '-')
        return false;
    for (size_t i = 0; i < size; i++) {
        if (!isalnum((unsigned char)text[i]) && text[i] != '-' && text[i] != '.')
            return false;
    }
    return true;
}

int identity_check(const Hearth__V1__Thaw *thaw, struct error *err)
{
    if (thaw->entropy.len < ENTROPY_MIN || thaw->entropy.len > ENTROPY_MAX)
        return error_set(err, EINVAL, "thaw: %zu bytes of entropy, expected %u to %u",
                         thaw->entropy.len, ENTROPY_MIN, ENTROPY_MAX);
    if (thaw->realtime_nsec == 0)
        return error_set(err, EINVAL, "thaw: no wall clock");
    if (!is_hostname(thaw->hostname))
        return error_set(err, EINVAL, "thaw: '%.64s' is not a host name", thaw->hostname);
    if (strlen(thaw->machine_id) != 32 || !is_hex(thaw->machine_id, 32))
        return error_set(err, EINVAL, "thaw: machine id '%.64s' is not 32 hex digits",
                         thaw->machine_id);
    if (!is_uuid(thaw->boot_id))
        return error_set(err, EINVAL, "thaw: boot id '%.64s' is not a UUID", thaw->boot_id);
    return 0;
}

static int apply_entropy(const ProtobufCBinaryData *entropy, struct error *err)
{
    _cleanup_close_ int fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
    union {
        struct rand_pool_info info;
        uint8_t space[sizeof(struct rand_pool_info) + ENTROPY_MAX];
    } u = {0};

    if (fd < 0)
        return error_set(err, errno, "thaw: open /dev/urandom: %s", errno_text(errno));
    u.info.entropy_count = (int)entropy->len * 8;
    u.info.buf_size = (int)entropy->len;
    memcpy(u.space + sizeof(struct rand_pool_info), entropy->data, entropy->len);
    if (ioctl(fd, RNDADDENTROPY, &u) < 0)
        return error_set(err, errno, "thaw: add entropy: %s", errno_text(errno));
    if (ioctl(fd, RNDRESEEDCRNG) < 0)
        return error_set(err, errno, "thaw: reseed: %s", errno_text(errno));
    return 0;
}

/*
 * Replaces the content of a file of one line. In place where it can be: a full disk must not keep a
 * sandbox from waking up, and rewriting the same block needs no new one.
 */
static int write_line(int dir_fd, const char *path, const char *line, struct error *err)
{
    _cleanup_close_ int fd = -EBADF;
    struct stat st;
    char text[128];
    int size = snprintf(text, sizeof(text), "%s\n", line);

    fd = openat(dir_fd, path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        /* A link or a special file: ours takes its place. */
        fd = fd_close(fd);
        (void)unlinkat(dir_fd, path, 0);
        fd = openat(dir_fd, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
        st.st_size = 0;
    }
    if (fd < 0)
        return error_set(err, errno, "thaw: open %s: %s", path, errno_text(errno));
    if (pwrite(fd, text, (size_t)size, 0) != size || (st.st_size > size && ftruncate(fd, size) < 0))
        return error_set(err, errno, "thaw: write %s: %s", path, errno_text(errno));
    return 0;
}

static bool file_says(const char *path, const char *line)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char text[64];
    ssize_t n = fd < 0 ? -1 : fd_read_full(fd, text, sizeof(text));

    return n >= (ssize_t)strlen(line) && memcmp(text, line, strlen(line)) == 0;
}

/* The kernel's own boot id cannot be changed: a file of ours lies over it. */
static int apply_boot_id(const char *boot_id, const char *root, struct error *err)
{
    char path[512];
    int r;

    r = write_line(AT_FDCWD, BOOT_ID_FILE, boot_id, err);
    if (r < 0)
        return r;
    (void)snprintf(path, sizeof(path), "%s/proc/sys/kernel/random/boot_id", root);
    if (file_says(path, boot_id))
        return 0;
    if (mount(BOOT_ID_FILE, path, NULL, MS_BIND, NULL) < 0)
        return error_set(err, errno, "thaw: boot id: %s", errno_text(errno));
    (void)mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL);
    return 0;
}

/* /etc of the user's root, made if it is missing; links in the way stay inside the root. */
static int open_etc(const char *root)
{
    const struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                                 .resolve = RESOLVE_IN_ROOT};
    _cleanup_close_ int root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long fd;

    if (root_fd < 0)
        return -errno;
    fd = syscall(SYS_openat2, root_fd, "etc", &how, sizeof(how));
    if (fd < 0 && errno == ENOENT && mkdirat(root_fd, "etc", 0755) == 0)
        fd = syscall(SYS_openat2, root_fd, "etc", &how, sizeof(how));
    return fd < 0 ? -errno : (int)fd;
}

static int apply_wall_clock(uint64_t realtime_nsec, uint64_t received_usec, struct error *err)
{
    uint64_t nsec = realtime_nsec + (clock_now_usec() - received_usec) * 1000;
    const struct timespec now = {
        .tv_sec = (time_t)(nsec / NSEC_PER_SEC),
        .tv_nsec = (long)(nsec % NSEC_PER_SEC),
    };

    if (clock_settime(CLOCK_REALTIME, &now) < 0)
        return error_set(err, errno, "thaw: wall clock: %s", errno_text(errno));
    return 0;
}

int identity_apply(const Hearth__V1__Thaw *thaw, uint64_t received_usec, const char *root,
                   struct error *err)
{
    _cleanup_close_ int etc_fd = -EBADF;
    int r;

    r = apply_entropy(&thaw->entropy, err);
    if (r < 0)
        return r;
    r = apply_wall_clock(thaw->realtime_nsec, received_usec, err);
    if (r < 0)
        return r;
    if (sethostname(thaw->hostname, strlen(thaw->hostname)) < 0)
        return error_set(err, errno, "thaw: host name: %s", errno_text(errno));
    r = apply_boot_id(thaw->boot_id, root, err);
    if (r < 0)
        return r;
    etc_fd = open_etc(root);
    if (etc_fd < 0)
        return error_set(err, -etc_fd, "thaw: open /etc: %s", errno_text(-etc_fd));
    r = write_line(etc_fd, "hostname", thaw->hostname, err);
    if (r < 0)
        return r;
    return write_line(etc_fd, "machine-id", thaw->machine_id, err);
}
