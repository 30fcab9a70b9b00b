#include "initramfs/initramfs.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/paths.h"
#include "base/strv.h"
#include "harness/test.h"
#include "initramfs/cpio.h"

struct member {
    char name[64];
    uint32_t field[13]; /* inode mode uid gid nlink mtime filesize dev×2 rdev×2 namesize check */
    const char *data;
};

/* Parses a newc archive the way the kernel does; returns the count of members before the trailer.
 */
static size_t parse(const char *data, size_t size, struct member *members, size_t max)
{
    size_t at = 0, count = 0;

    for (;;) {
        struct member m = {0};

        ASSERT_EQ(at % 4, 0);
        ASSERT_TRUE(at + 110 <= size);
        ASSERT_MEMEQ(data + at, "070701", 6);
        for (size_t i = 0; i < 13; i++) {
            char hex[9] = {0};

            memcpy(hex, data + at + 6 + i * 8, 8);
            m.field[i] = (uint32_t)strtoul(hex, NULL, 16);
        }
        ASSERT_TRUE(m.field[11] < sizeof(m.name));
        memcpy(m.name, data + at + 110, m.field[11]);
        at = (at + 110 + m.field[11] + 3) & ~(size_t)3;
        m.data = data + at;
        at = (at + m.field[6] + 3) & ~(size_t)3;
        ASSERT_TRUE(at <= size);
        if (strcmp(m.name, "TRAILER!!!") == 0) {
            ASSERT_EQ(at, size);
            return count;
        }
        ASSERT_TRUE(count < max);
        members[count++] = m;
    }
}

static void write_file(const char *dir, const char *name, const char *text)
{
    _cleanup_free_ char *path = string_printf("%s/%s", dir, name);

    ASSERT_OK(file_write_atomic(path, text, strlen(text), 0644, NULL));
}

static struct kernel kernel_with_modules(char *init_path, size_t size)
{
    struct kernel k = {.name = "distro"};
    char cache[128];

    (void)snprintf(cache, sizeof(cache), "%s/cache", test_tmpdir());
    ASSERT_OK(setenv("HEARTH_CACHE", cache, 1));
    ASSERT_STREQ(paths_cache_dir(), cache);
    ASSERT_OK(dir_remove(cache, NULL));
    (void)snprintf(k.modules_dir, sizeof(k.modules_dir), "%s/kernels/distro/modules", cache);
    ASSERT_OK(dir_create(k.modules_dir, 0755, NULL));
    write_file(k.modules_dir, "b.ko", "module b");
    write_file(k.modules_dir, "a.ko", "module a!");
    write_file(k.modules_dir, "unlisted.ko", "not wanted");
    write_file(k.modules_dir, "modules.list", "b.ko\na.ko\n");
    write_file(cache, "hearth-init", "#!init");
    (void)snprintf(init_path, size, "%s/hearth-init", cache);
    return k;
}

TEST(archive_holds_init_modules_in_order_and_the_console)
{
    static const char *const names[] = {
        "dev",         "modules", "newroot",      "proc",         "sys",
        "dev/console", "init",    "modules/b.ko", "modules/a.ko", "modules/modules.list"};
    char init[256], path[256], sha[65];
    struct kernel k = kernel_with_modules(init, sizeof(init));
    _cleanup_free_ char *data = NULL;
    struct member m[16];
    size_t size;

    ASSERT_OK(initramfs_make(&k, init, path, sha, NULL));
    ASSERT_TRUE(strstr(path, sha));
    ASSERT_OK(file_read(path, 1 << 20, &data, &size, NULL));
    ASSERT_EQ(parse(data, size, m, ARRAY_SIZE(m)), ARRAY_SIZE(names));
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        ASSERT_STREQ(m[i].name, names[i]);
    ASSERT_EQ(m[0].field[1], S_IFDIR | 0755);
    ASSERT_EQ(m[5].field[1], S_IFCHR | 0600);
    ASSERT_EQ(m[5].field[9], 5);
    ASSERT_EQ(m[5].field[10], 1);
    ASSERT_EQ(m[6].field[1], S_IFREG | 0755);
    ASSERT_EQ(m[6].field[6], 6);
    ASSERT_MEMEQ(m[6].data, "#!init", 6);
    ASSERT_MEMEQ(m[8].data, "module a!", 9);
    ASSERT_MEMEQ(m[9].data, "b.ko\na.ko\n", 10);
}

TEST(same_input_gives_the_same_file_and_is_not_written_again)
{
    char init[256], path[256], sha[65], path2[256], sha2[65];
    struct kernel k = kernel_with_modules(init, sizeof(init));
    struct stat first, second;

    ASSERT_OK(initramfs_make(&k, init, path, sha, NULL));
    ASSERT_OK(stat(path, &first));
    write_file(k.modules_dir, "a.ko", "module a!"); /* same content, other time and inode */
    ASSERT_OK(initramfs_make(&k, init, path2, sha2, NULL));
    ASSERT_OK(stat(path2, &second));
    ASSERT_STREQ(path, path2);
    ASSERT_EQ(first.st_ino, second.st_ino);
    write_file(k.modules_dir, "a.ko", "module A!");
    ASSERT_OK(initramfs_make(&k, init, path2, sha2, NULL));
    ASSERT_TRUE(strcmp(sha, sha2) != 0);
}

TEST(kernel_without_modules_gets_an_empty_list)
{
    char init[256], path[256], sha[65];
    struct kernel k = kernel_with_modules(init, sizeof(init));
    _cleanup_free_ char *data = NULL;
    struct member m[16];
    size_t size;

    ASSERT_OK(dir_remove(k.modules_dir, NULL));
    ASSERT_OK(initramfs_make(&k, init, path, sha, NULL));
    ASSERT_OK(file_read(path, 1 << 20, &data, &size, NULL));
    ASSERT_EQ(parse(data, size, m, ARRAY_SIZE(m)), 8);
    ASSERT_STREQ(m[7].name, "modules/modules.list");
    ASSERT_EQ(m[7].field[6], 0);
}

TEST(missing_init_or_module_is_named)
{
    char init[256], path[256], sha[65];
    struct kernel k = kernel_with_modules(init, sizeof(init));
    struct error err = {0};

    ASSERT_ERR(initramfs_make(&k, "/nonexistent/init", path, sha, &err), ENOENT);
    ASSERT_TRUE(strstr(err.text, "/nonexistent/init"));
    write_file(k.modules_dir, "modules.list", "gone.ko\n");
    ASSERT_ERR(initramfs_make(&k, init, path, sha, &err), ENOENT);
    ASSERT_TRUE(strstr(err.text, "gone.ko"));
}

TEST(list_that_leads_elsewhere_or_never_ends_is_refused)
{
    char init[256], path[256], sha[65], list[4096] = "";
    struct kernel k = kernel_with_modules(init, sizeof(init));

    write_file(k.modules_dir, "modules.list", "../../../etc/passwd\n");
    ASSERT_ERR(initramfs_make(&k, init, path, sha, NULL), EINVAL);
    for (size_t i = 0; i < 200; i++)
        memcpy(list + i * 5, "a.ko\n", 6);
    write_file(k.modules_dir, "modules.list", list);
    ASSERT_ERR(initramfs_make(&k, init, path, sha, NULL), E2BIG);
}

TEST(archive_over_the_limit_of_its_buffer_fails)
{
    _cleanup_buf_ struct buf out = {.max = 300};
    struct cpio c;
    char data[256] = {0};

    cpio_init(&c, &out);
    ASSERT_OK(cpio_add_dir(&c, "dev", 0755));
    ASSERT_ERR(cpio_add_file(&c, "big", 0644, data, sizeof(data)), ENOBUFS);
}
