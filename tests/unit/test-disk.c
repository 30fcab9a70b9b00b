#include "erofs/disk.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/spawn.h"
#include "base/strv.h"
#include "harness/test.h"

#define FEATURES_OFFSET (1024 + 0x5c) /* compat, incompat, ro_compat of the superblock */
#define COMPAT_HAS_JOURNAL 0x4U
#define COMPAT_RESIZE_INODE 0x10U

static const char *disk_path(void)
{
    static char path[128];

    (void)snprintf(path, sizeof(path), "%s/disk", test_tmpdir());
    (void)unlink(path);
    return path;
}

TEST(new_disk_has_its_size_and_takes_next_to_no_space)
{
    const char *path = disk_path();
    struct stat st;

    ASSERT_OK(disk_make(path, 4096, NULL));
    ASSERT_OK(stat(path, &st));
    ASSERT_EQ(st.st_size, 4096LL * 1024 * 1024);
    ASSERT_TRUE(st.st_blocks * 512 < 1536 * 1024);
    ASSERT_EQ(st.st_mode & 07777, 0600);
}

TEST(new_disk_is_a_sound_ext4_without_journal)
{
    static const uint32_t sizes[] = {8, 64, 1024, 65536};

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        const char *path = disk_path();
        const char *const argv[] = {"e2fsck", "-f", "-n", path, NULL};
        const struct spawn_options options = {
            .argv = argv, .stdin_fd = -EBADF, .stdout_fd = -EBADF, .stderr_fd = -EBADF};
        _cleanup_close_ int fd = -EBADF;
        uint32_t features[3];

        ASSERT_OK(disk_make(path, sizes[i], NULL));
        ASSERT_OK(spawn_run(&options, 30 * USEC_PER_SEC, NULL, NULL));
        fd = open(path, O_RDONLY | O_CLOEXEC);
        ASSERT_EQ(pread(fd, features, sizeof(features), FEATURES_OFFSET), sizeof(features));
        ASSERT_EQ(features[0] & (COMPAT_HAS_JOURNAL | COMPAT_RESIZE_INODE), 0);
    }
}

TEST(existing_file_is_not_touched)
{
    const char *path = disk_path();
    _cleanup_free_ char *text = NULL;

    ASSERT_OK(file_write_atomic(path, "mine", 4, 0644, NULL));
    ASSERT_ERR(disk_make(path, 64, NULL), EEXIST);
    ASSERT_OK(file_read(path, 16, &text, NULL, NULL));
    ASSERT_STREQ(text, "mine");
}

TEST(size_out_of_range_is_refused_before_anything_is_made)
{
    const char *path = disk_path();
    struct error err = {0};

    ASSERT_ERR(disk_make(path, 0, &err), EINVAL);
    ASSERT_TRUE(strstr(err.text, "MiB"));
    ASSERT_ERR(disk_make(path, UINT32_MAX, NULL), EINVAL);
    ASSERT_FALSE(file_exists(path));
}

TEST(missing_directory_is_named)
{
    struct error err = {0};

    ASSERT_ERR(disk_make("/nonexistent/disk", 64, &err), ENOENT);
    ASSERT_TRUE(strstr(err.text, "/nonexistent/disk"));
}
