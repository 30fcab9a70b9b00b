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
#include "guest/layer.h"
#include "guest/uevent.h"

#define IMAGE_DEVICE "/dev/vda"
#define DISK_DEVICE "/dev/vdb"
#define PACK_DEVICE "/dev/vdc" /* and on */
#define PACKS_MAX 16u
/* What is looked at of EROFS; all numbers little endian. */
#define EROFS_BLOCK 4096u
#define EROFS_MAGIC 0xE0F5E1E2u
#define EROFS_SUPER 1024u
#define EROFS_EXTRA_DEVICES 86u /* in the superblock: how many */
#define EROFS_TABLE 88u         /* and where their table is, counted in slots */
#define EROFS_SLOT 128u
#define EROFS_SLOT_BLOCKS 64u
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

static uint64_t little_endian(const uint8_t *at, size_t size)
{
    uint64_t value = 0;

    while (size-- > 0)
        value = value << 8 | at[size];
    return value;
}

/* Waits for a pack and looks whether it is the size that the image expects. */
static int check_pack(const char *path, uint64_t blocks, uint64_t deadline_usec, struct error *err)
{
    _cleanup_close_ int fd = -EBADF;
    off_t size;

    if (!wait_for_device(path, deadline_usec))
        return error_set(err, ENODEV, "there is no drive %s with a layer of the image", path);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (size < 0)
        return error_set(err, errno, "open %s: %s", path, errno_text(errno));
    if ((uint64_t)size != blocks * EROFS_BLOCK)
        return error_set(err, EINVAL, "drive %s is not the layer that the image expects there",
                         path);
    return 0;
}

/*
 * Mount options for the devices of the image, from its superblock; "" when it has none or is no
 * EROFS. The kernel takes them in the order of the image's table.
 */
static int pack_options(uint64_t deadline_usec, char *options, size_t size, struct error *err)
{
    _cleanup_close_ int fd = open(IMAGE_DEVICE, O_RDONLY | O_CLOEXEC);
    uint8_t block[EROFS_BLOCK];
    uint64_t count, table;
    size_t used = 0;
    int r = 0;

    options[0] = '\0';
    if (fd < 0 || fd_read_full(fd, block, sizeof(block)) != (ssize_t)sizeof(block) ||
        little_endian(block + EROFS_SUPER, 4) != EROFS_MAGIC)
        return 0; /* the mount will tell */
    count = little_endian(block + EROFS_SUPER + EROFS_EXTRA_DEVICES, 2);
    table = little_endian(block + EROFS_SUPER + EROFS_TABLE, 2) * EROFS_SLOT;
    if (count > PACKS_MAX || table + count * EROFS_SLOT > sizeof(block))
        return error_set(err, EINVAL, "the image has %llu devices, at most %u are known",
                         (unsigned long long)count, PACKS_MAX);
    for (unsigned i = 0; i < count && r == 0; i++) {
        char path[] = PACK_DEVICE;

        for (unsigned k = 0; k < i; k++)
            path[sizeof(path) - 2]++;
        r = check_pack(path, little_endian(block + table + i * EROFS_SLOT + EROFS_SLOT_BLOCKS, 4),
                       deadline_usec, err);
        used += (size_t)snprintf(options + used, size - used, "%sdevice=%s", i ? "," : "", path);
    }
    return r;
}

static int mount_image(struct error *err)
{
    static const char *const types[] = {"erofs", "squashfs", "ext4"};
    uint64_t deadline_usec = clock_now_usec() + DRIVE_USEC;
    char options[PACKS_MAX * sizeof("device=" PACK_DEVICE ",")];
    int first = 0, r;

    if (!wait_for_device(IMAGE_DEVICE, deadline_usec))
        return error_set(err, ENODEV, "there is no drive 0 (%s) with the image", IMAGE_DEVICE);
    r = pack_options(deadline_usec, options, sizeof(options), err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        if (mount(IMAGE_DEVICE, IMAGE_DIR, types[i], MS_RDONLY | MS_NOATIME, options) == 0)
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

static int mount_kernel(struct error *err)
{
    int r;

    r = mount_at("proc", NEWROOT "/proc", "proc", PSEUDO, NULL, err);
    if (r == 0)
        r = mount_at("sysfs", NEWROOT "/sys", "sysfs", PSEUDO, NULL, err);
    if (r == 0 &&
        mount("cgroup2", NEWROOT "/sys/fs/cgroup", "cgroup2", PSEUDO | MS_RDONLY, NULL) < 0)
        r = error_set(err, errno, "mount cgroup2 in the root: %s", errno_text(errno));
    return r < 0 ? r : mount_devices(err);
}

int mount_inside(struct error *err)
{
    int r = mount_kernel(err);

    if (r == 0)
        r = mount_at("tmpfs", NEWROOT "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755", err);
    if (r == 0)
        r = prepare_tmp(err);
    return r;
}

/* Its root looks as the one below does. */
static int make_layer(const char *path, const char *below, struct error *err)
{
    struct stat st;
    int r = make_dir(path, 0755, err);

    if (r == 0 && (stat(below, &st) < 0 || chown(path, st.st_uid, st.st_gid) < 0 ||
                   chmod(path, st.st_mode & 07777) < 0))
        r = error_set(err, errno, "prepare %s: %s", path, errno_text(errno));
    return r;
}

int mount_new_layer(uint32_t number, struct error *err)
{
    char upper[64], work[64], below[64] = IMAGE_DIR, options[4096];
    /* A directory of the image that is renamed has to be copied: layers have no word for it. */
    static const char *const extras[] = {",redirect_dir=off,metacopy=off", ",redirect_dir=off", ""};
    size_t used;
    int r;

    if (number > LAYERS_MAX)
        return error_set(err, E2BIG, "more than %u layers", LAYERS_MAX);
    if (number > 1)
        (void)snprintf(below, sizeof(below), LAYER_DIR "-%u", number - 1);
    (void)snprintf(upper, sizeof(upper), LAYER_DIR "-%u", number);
    (void)snprintf(work, sizeof(work), DISK_DIR "/work-%u", number);
    r = make_layer(upper, below, err);
    if (r == 0)
        r = make_dir(work, 0700, err);
    if (r < 0)
        return r;
    used =
        (size_t)snprintf(options, sizeof(options), "upperdir=%s,workdir=%s,lowerdir=", upper, work);
    for (uint32_t i = number - 1; i > 0; i--)
        used += (size_t)snprintf(options + used, sizeof(options) - used, LAYER_DIR "-%u:", i);
    used += (size_t)snprintf(options + used, sizeof(options) - used, IMAGE_DIR);
    if (umount2(NEWROOT, MNT_DETACH) < 0)
        return error_set(err, errno, "unmount the root: %s", errno_text(errno));
    r = -EINVAL;
    for (size_t i = 0; i < ARRAY_SIZE(extras) && r < 0; i++) {
        (void)snprintf(options + used, sizeof(options) - used, "%s", extras[i]);
        r = mount("overlay", NEWROOT, "overlay", MS_NOATIME, options) < 0 ? -errno : 0;
    }
    return r < 0 ? error_set(err, -r, "mount overlayfs: %s", errno_text(-r)) : mount_kernel(err);
}

void mount_undo(void)
{
    sync();
    (void)umount2(NEWROOT, MNT_DETACH);
    if (umount2(DISK_DIR, 0) < 0)
        (void)mount(NULL, DISK_DIR, NULL, MS_REMOUNT | MS_RDONLY, NULL);
    sync();
}
