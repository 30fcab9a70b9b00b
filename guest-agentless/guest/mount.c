#include "guest/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/console.h"
#include "guest/uevent.h"

#define IMAGE_DIR "/image"
#define DISK_DIR "/disk"
#define IMAGE_DEVICE "/dev/vda"
#define DISK_DEVICE "/dev/vdb"
#define DRIVE_USEC (20 * USEC_PER_SEC)
#define PSEUDO (MS_NOSUID | MS_NODEV | MS_NOEXEC)

int make_dir(const char *path, unsigned mode, struct error *err)
{
    struct stat st;

    if (mkdir(path, mode) == 0)
        return 0;
    if (errno == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return 0;
    return error_set(err, errno, "make directory %s: %s", path, errno_text(errno));
}

static int mount_at(const char *what, const char *where, const char *type, unsigned long flags,
                    const char *options, struct error *err)
{
    int r = make_dir(where, 0755, err);

    if (r < 0)
        return r;
    if (mount(what, where, type, flags, options) < 0)
        return error_set(err, errno, "mount %s at %s: %s", type, where, errno_text(errno));
    return 0;
}

int mount_own(struct error *err)
{
    int r;

    r = make_dir("/dev", 0755, err);
    /* Some kernels mount it by themselves. */
    if (r == 0 && mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=0755") < 0 &&
        errno != EBUSY)
        r = error_set(err, errno, "mount devtmpfs: %s", errno_text(errno));
    if (r < 0)
        return r;
    console_open();
    r = mount_at("proc", "/proc", "proc", PSEUDO, NULL, err);
    if (r == 0)
        r = mount_at("sysfs", "/sys", "sysfs", PSEUDO, NULL, err);
    if (r == 0 && mount("cgroup2", "/sys/fs/cgroup", "cgroup2", PSEUDO, NULL) < 0)
        r = error_set(err, errno, "mount cgroup2: %s", errno_text(errno));
    return r;
}

/* The devices are found by the kernel on its own time. */
static bool wait_for_device(const char *path, uint64_t deadline_usec)
{
    _cleanup_close_ int uevents = uevent_open();

    for (;;) {
        if (access(path, F_OK) == 0)
            return true;
        if (clock_now_usec() >= deadline_usec)
            return false;
        uevent_wait(uevents, deadline_usec);
    }
}

static int mount_image(struct error *err)
{
    static const char *const types[] = {"erofs", "squashfs", "ext4"};
    int first = 0;

    if (!wait_for_device(IMAGE_DEVICE, clock_now_usec() + DRIVE_USEC))
        return error_set(err, ENODEV, "there is no drive 0 (%s) with the image", IMAGE_DEVICE);
    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        if (mount(IMAGE_DEVICE, IMAGE_DIR, types[i], MS_RDONLY | MS_NOATIME, NULL) == 0)
            return 0;
        /* ENODEV: the kernel lacks the type; the first that it knows tells why. */
        if (first == 0 || first == ENODEV)
            first = errno;
    }
    return error_set(err, first, "drive 0 (%s) cannot be mounted as erofs, squashfs or ext4: %s",
                     IMAGE_DEVICE, errno_text(first));
}

static int mount_disk(struct error *err)
{
    /* Drives come in order: when the image is there, a missing disk will stay missing. */
    if (access(DISK_DEVICE, F_OK) < 0) {
        if (mount("tmpfs", DISK_DIR, "tmpfs", MS_NODEV, "mode=0755") < 0)
            return error_set(err, errno, "mount tmpfs for the writable layer: %s",
                             errno_text(errno));
        return 0;
    }
    if (mount(DISK_DEVICE, DISK_DIR, "ext4", MS_NOATIME, NULL) < 0)
        return error_set(err, errno, "drive 1 (%s) cannot be mounted as ext4: %s", DISK_DEVICE,
                         errno_text(errno));
    return 0;
}

static int mount_overlay(struct error *err)
{
    static const char options[] =
        "lowerdir=" IMAGE_DIR ",upperdir=" DISK_DIR "/upper,workdir=" DISK_DIR "/work";
    /* With redirect_dir, directories of the image can be renamed; old kernels refuse the word. */
    static const char *const extras[] = {",redirect_dir=on", ""};
    int r;

    r = make_dir(DISK_DIR "/upper", 0755, err);
    if (r == 0)
        r = make_dir(DISK_DIR "/work", 0700, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < ARRAY_SIZE(extras); i++) {
        char text[256];

        (void)snprintf(text, sizeof(text), "%s%s", options, extras[i]);
        if (mount("overlay", NEWROOT, "overlay", MS_NOATIME, text) == 0)
            return 0;
    }
    return error_set(err, errno, "mount overlayfs: %s", errno_text(errno));
}

int mount_root(struct error *err)
{
    int r;

    r = make_dir(IMAGE_DIR, 0755, err);
    if (r == 0)
        r = make_dir(DISK_DIR, 0755, err);
    if (r == 0)
        r = make_dir(NEWROOT, 0755, err);
    if (r == 0)
        r = mount_image(err);
    if (r == 0)
        r = mount_disk(err);
    if (r == 0)
        r = mount_overlay(err);
    return r;
}

static int mount_devices(struct error *err)
{
    static const struct {
        const char *target, *path;
    } links[] = {
        {"/proc/self/fd", NEWROOT "/dev/fd"},
        {"/proc/self/fd/0", NEWROOT "/dev/stdin"},
        {"/proc/self/fd/1", NEWROOT "/dev/stdout"},
        {"/proc/self/fd/2", NEWROOT "/dev/stderr"},
    };
    int r;

    r = mount_at("devtmpfs", NEWROOT "/dev", "devtmpfs", MS_NOSUID, "mode=0755", err);
    if (r == 0)
        r = mount_at("devpts", NEWROOT "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
                     "newinstance,ptmxmode=0666,mode=0620,gid=5", err);
    if (r == 0)
        r = mount_at("tmpfs", NEWROOT "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777", err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < ARRAY_SIZE(links); i++) {
        if (symlink(links[i].target, links[i].path) < 0 && errno != EEXIST)
            return error_set(err, errno, "link %s: %s", links[i].path, errno_text(errno));
    }
    return 0;
}

/* /tmp is the image's where it has one, with the rights that it must have. */
static int prepare_tmp(struct error *err)
{
    struct stat st;

    if (lstat(NEWROOT "/tmp", &st) < 0)
        return mount_at("tmpfs", NEWROOT "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777", err);
    if (S_ISDIR(st.st_mode) && (st.st_mode & 07777) != 01777)
        (void)chmod(NEWROOT "/tmp", 01777);
    return 0;
}

int mount_inside(struct error *err)
{
    int r;

    r = mount_at("proc", NEWROOT "/proc", "proc", PSEUDO, NULL, err);
    if (r == 0)
        r = mount_at("sysfs", NEWROOT "/sys", "sysfs", PSEUDO, NULL, err);
    if (r == 0 &&
        mount("cgroup2", NEWROOT "/sys/fs/cgroup", "cgroup2", PSEUDO | MS_RDONLY, NULL) < 0)
        r = error_set(err, errno, "mount cgroup2 in the root: %s", errno_text(errno));
    if (r == 0)
        r = mount_devices(err);
    if (r == 0)
        r = mount_at("tmpfs", NEWROOT "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755", err);
    if (r == 0)
        r = prepare_tmp(err);
    return r;
}

void mount_undo(void)
{
    sync();
    (void)umount2(NEWROOT, MNT_DETACH);
    if (umount2(DISK_DIR, 0) < 0)
        (void)mount(NULL, DISK_DIR, NULL, MS_REMOUNT | MS_RDONLY, NULL);
    sync();
}
