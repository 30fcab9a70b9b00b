#include <stdlib.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/strv.h"
#include "erofs/image.h"
#include "harness/test.h"
#include "unit/image-fixture.h"

TEST(unknown_image_is_named_with_a_way_out)
{
    struct image image;
    struct error err = {0};

    fresh();
    ASSERT_ERR(image_find("nope", &image, &err), ENOENT);
    ASSERT_EQ(err.code, ERR_IMAGE_NOT_FOUND);
    ASSERT_TRUE(strstr(err.text, "'nope'") && strstr(err.text, "image pull nope"));
    ASSERT_ERR(image_remove("nope", NULL, &err), ENOENT);
    ASSERT_EQ(err.code, ERR_IMAGE_NOT_FOUND);
}

TEST(imported_image_is_found_listed_and_removed)
{
    _cleanup_free_ struct image *list = NULL;
    struct image image, found;
    size_t count = 0;
    struct stat st;

    fresh();
    ASSERT_OK(image_list(&list, &count, NULL));
    ASSERT_EQ(count, 0);
    free(TAKE_PTR(list));
    make_tar(plain, PLAIN_COUNT);
    ASSERT_OK(import("b", tar_path, &image, NULL));
    ASSERT_OK(import("a-b", tar_path, &image, NULL));
    ASSERT_OK(import("a", tar_path, &image, NULL));
    ASSERT_OK(image_list(&list, &count, NULL));
    ASSERT_EQ(count, 3);
    ASSERT_STREQ(list[0].name, "a");
    ASSERT_STREQ(list[1].name, "a-b");
    ASSERT_STREQ(list[2].name, "b");
    ASSERT_OK(image_find("a", &found, NULL));
    ASSERT_STREQ(found.sha256, image.sha256);
    ASSERT_STREQ(found.path, image.path);
    ASSERT_EQ(found.created_wall_usec, image.created_wall_usec);
    ASSERT_OK(stat(found.path, &st));
    ASSERT_EQ(st.st_size, found.size_bytes);
    ASSERT_EQ(st.st_mode & 0777, 0444);
    /* The blob goes with the last name. */
    ASSERT_OK(image_remove("a", NULL, NULL));
    ASSERT_OK(image_remove("b", NULL, NULL));
    ASSERT_TRUE(file_exists(found.path));
    ASSERT_OK(image_remove("a-b", NULL, NULL));
    ASSERT_FALSE(file_exists(found.path));
    assert_store_is_empty();
}

TEST(name_that_is_imported_again_points_to_the_new_image)
{
    static const struct item other[] = {FILE_ITEM("other", "x")};
    struct image first, second, found;

    fresh();
    make_tar(plain, PLAIN_COUNT);
    ASSERT_OK(import("it", tar_path, &first, NULL));
    make_tar(other, 1);
    ASSERT_OK(import("it", tar_path, &second, NULL));
    ASSERT_OK(image_find("it", &found, NULL));
    ASSERT_STREQ(found.sha256, second.sha256);
    ASSERT_TRUE(file_exists(first.path)); /* a sandbox may run from it */
}

TEST(damaged_record_says_so_and_can_be_removed)
{
    struct image image;
    struct error err = {0};

    fresh();
    make_tar(plain, PLAIN_COUNT);
    ASSERT_OK(import("it", tar_path, &image, NULL));
    _cleanup_free_ char *record = string_printf("%s/images/names/it.json", cache);
    ASSERT_OK(file_write_atomic(record, "{\"sha256\": \"../../x\"}", 21, 0644, NULL));
    ASSERT_ERR(image_find("it", &image, &err), EIO);
    ASSERT_TRUE(strstr(err.text, "damaged"));
    ASSERT_OK(image_remove("it", NULL, &err));
    ASSERT_ERR(image_find("it", &image, NULL), ENOENT);
}

TEST(what_a_killed_import_left_is_removed_by_the_next)
{
    struct image image;

    fresh();
    _cleanup_free_ char *left = string_printf("%s/images/tmp/abcdef/root/etc", cache);
    _cleanup_free_ char *tmp = string_printf("%s/images/tmp", cache);
    ASSERT_OK(dir_create(left, 0700, NULL));
    make_tar(plain, PLAIN_COUNT);
    ASSERT_OK(import("it", tar_path, &image, NULL));
    ASSERT_EQ(count_files(tmp), 0);
}

static void note_progress(int percent, const char *what, void *userdata)
{
    int *last = userdata;

    ASSERT_TRUE(percent >= *last && percent <= 100);
    ASSERT_TRUE(what && *what);
    *last = percent;
}

TEST(progress_only_goes_up_and_ends_at_100)
{
    struct image image;
    int last = 0;

    fresh();
    make_tar(plain, PLAIN_COUNT);
    ASSERT_OK(image_import("it", tar_path, note_progress, &last, &image, NULL));
    ASSERT_EQ(last, 100);
}
