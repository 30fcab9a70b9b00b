#include "erofs/disk.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/spawn.h"

#define SIZE_MIN_MIB 8U
#define SIZE_MAX_MIB (8U * 1024 * 1024) /* ext4 without 64-bit block numbers ends at 16 TiB */
#define TIMEOUT_USEC (60 * USEC_PER_SEC)

/*
 * All features are named, so that /etc/mke2fs.conf of the host has no say. Nothing that costs space
 * or time in a disk that is cloned for each sandbox and thrown away with it: no journal, no backup
 * superblocks, no room to grow, no checksums but those that let untouched block groups stay holes.
 */
#define FEATURES                                                                                   \
    "none,dir_index,dir_nlink,ext_attr,extent,extra_isize,filetype,flex_bg,huge_file,large_file,"  \
    "sparse_super,sparse_super2,uninit_bg"
/*
 * All metadata in one run of blocks at the start. The file is new and therefore zero, so the inode
 * tables count as zeroed and the guest's kernel starts no thread to do it.
 */
#define EXTENDED                                                                                   \
    "num_backup_sb=0,packed_meta_blocks=1,assume_storage_prezeroed=1,nodiscard,root_owner=0:0"

int disk_make(const char *path, uint32_t size_mib, struct error *err)
{
    const char *const argv[] = {"mke2fs", "-q",    "-F",     "-b", "4096", "-I",    "256",
                                "-i",     "16384", "-m",     "0",  "-G",   "32768", "-O",
                                FEATURES, "-E",    EXTENDED, path, NULL};
    const struct spawn_options options = {
        .argv = argv, .stdin_fd = -EBADF, .stdout_fd = -EBADF, .stderr_fd = -EBADF};
    _cleanup_close_ int fd = -EBADF;
    int r;

    if (size_mib < SIZE_MIN_MIB || size_mib > SIZE_MAX_MIB)
        return error_set(err, EINVAL, "disk '%s': size must be %u to %u MiB, not %u", path,
                         SIZE_MIN_MIB, SIZE_MAX_MIB, size_mib);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(err, errno, "create disk '%s': %s", path, errno_text(errno));
    r = 0;
    if (ftruncate(fd, (off_t)size_mib * 1024 * 1024) < 0)
        r = error_set(err, errno, "size disk '%s': %s", path, errno_text(errno));
    if (r == 0) {
        r = spawn_run(&options, TIMEOUT_USEC, NULL, err);
        error_wrap(err, "make disk '%s'", path);
    }
    if (r < 0)
        (void)unlink(path);
    return r;
}
