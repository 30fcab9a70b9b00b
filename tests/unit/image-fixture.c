#include "unit/image-fixture.h"

#include <archive_entry.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/paths.h"
#include "base/spawn.h"
#include "base/strv.h"
#include "harness/test.h"

char cache[128], scratch[128], tar_path[192];

const struct item plain[PLAIN_COUNT] = {
    DIR_ITEM("./"),
    DIR_ITEM("./etc/"),
    FILE_ITEM("./etc/hostname", "guest\n"),
    {.name = "./bin", .mode = S_IFLNK | 0777, .content = "usr/bin", .mtime = 3000},
    DIR_ITEM("./usr/"),
    DIR_ITEM("./usr/bin/"),
    {.name = "./usr/bin/su", .mode = S_IFREG | 04755, .content = "su", .mtime = 4000},
    {.name = "./usr/bin/su2", .content = "./usr/bin/su", .mtime = 4000},
};

void fresh(void)
{
    (void)snprintf(cache, sizeof(cache), "%s/cache", test_tmpdir());
    (void)snprintf(scratch, sizeof(scratch), "%s/scratch", test_tmpdir());
    (void)snprintf(tar_path, sizeof(tar_path), "%s/test.tar", scratch);
    ASSERT_OK(setenv("HEARTH_CACHE", cache, 1));
    ASSERT_STREQ(paths_cache_dir(), cache);
    ASSERT_OK(dir_remove(cache, NULL));
    ASSERT_OK(dir_remove(scratch, NULL));
    ASSERT_OK(dir_create(scratch, 0755, NULL));
}

char *in_scratch(const char *name)
{
    char *path = string_printf("%s/%s", scratch, name);

    ASSERT_TRUE(path);
    return path;
}

struct archive *tar_open(int filter)
{
    struct archive *a = archive_write_new();

    ASSERT_EQ(archive_write_set_format_pax_restricted(a), ARCHIVE_OK);
    ASSERT_EQ(archive_write_add_filter(a, filter), ARCHIVE_OK);
    ASSERT_EQ(archive_write_open_filename(a, tar_path), ARCHIVE_OK);
    return a;
}

void tar_add(struct archive *a, const struct item *item)
{
    struct archive_entry *e = archive_entry_new();
    size_t size = S_ISREG(item->mode) && item->content ? strlen(item->content) : 0;

    archive_entry_set_pathname(e, item->name);
    archive_entry_set_mtime(e, item->mtime, 0);
    if (item->mode == 0) {
        archive_entry_set_filetype(e, AE_IFREG);
        archive_entry_set_hardlink(e, item->content);
    } else {
        archive_entry_set_mode(e, item->mode);
        if (S_ISLNK(item->mode))
            archive_entry_set_symlink(e, item->content);
        if (S_ISCHR(item->mode))
            archive_entry_set_rdev(e, 0x103);
    }
    archive_entry_set_size(e, (la_int64_t)size);
    ASSERT_EQ(archive_write_header(a, e), ARCHIVE_OK);
    if (size > 0)
        ASSERT_EQ(archive_write_data(a, item->content, size), size);
    archive_entry_free(e);
}

void tar_close(struct archive *a)
{
    ASSERT_EQ(archive_write_close(a), ARCHIVE_OK);
    (void)archive_write_free(a);
}

void make_tar(const struct item *items, size_t count)
{
    struct archive *a = tar_open(ARCHIVE_FILTER_NONE);

    for (size_t i = 0; i < count; i++)
        tar_add(a, &items[i]);
    tar_close(a);
}

int import(const char *name, const char *source, struct image *ret, struct error *err)
{
    return image_import(name, source, NULL, NULL, ret, err);
}

size_t count_files(const char *dir)
{
    _cleanup_free_ char *command = string_printf("find '%s' -mindepth 1 | wc -l", dir);
    const char *const argv[] = {"sh", "-c", command, NULL};
    const struct spawn_options options = {
        .argv = argv, .stdin_fd = -EBADF, .stdout_fd = -EBADF, .stderr_fd = -EBADF};
    _cleanup_buf_ struct buf out = {.max = 1024};

    ASSERT_OK(spawn_run(&options, 10 * USEC_PER_SEC, &out, NULL));
    return strtoul(buf_string(&out), NULL, 10);
}

void assert_store_is_empty(void)
{
    _cleanup_free_ char *images = string_printf("%s/images", cache);

    ASSERT_TRUE(count_files(images) <= 5);
}
