#include "erofs/packs.h"

#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/spawn.h"
#include "base/strv.h"
#include "erofs/prune.h"
#include "erofs/store.h"
#include "harness/test.h"
#include "layers/layer.h"
#include "unit/image-fixture.h"

#define LARGE_BYTES 300001u /* no multiple of a block */
#define MIDDLE_BYTES 1025u  /* the least that has a block of its own */

/* Text that tells files apart at every place; owned by the caller. */
static char *text_of(unsigned seed, size_t size)
{
    char *text = malloc(size + 1);

    ASSERT_TRUE(text);
    for (size_t i = 0; i < size; i++)
        text[i] = (char)('a' + (i / 7 + i * seed) % 26);
    text[size] = '\0';
    return text;
}

/* The layer of tar_path into the store; `row`: as older versions wrote it. */
static void add_layer(bool row, char ***layers)
{
    _cleanup_free_ char *dir = string_printf("%s/images/layers", cache);
    _cleanup_free_ char *made_index = string_printf("%s/index", scratch);
    _cleanup_free_ char *made_pack = string_printf("%s/pack", scratch);
    struct layer_budget budget = {0};
    struct layer_unpack u = {.blob = tar_path,
                             .name = "layer",
                             .pack = made_pack,
                             .index = made_index,
                             .budget = &budget};
    char pack[256], index[256];

    ASSERT_OK(dir_create(dir, 0755, NULL));
    ASSERT_OK(layer_unpack(&u, NULL));
    if (row) {
        _cleanup_close_ int fd = open(made_index, O_WRONLY | O_CLOEXEC);

        ASSERT_EQ(pwrite(fd, "1", 1, 7), 1); /* the last byte of "hrthlay2" */
    }
    ASSERT_OK(store_layer_paths(u.ret_diff_id, pack, index, NULL));
    ASSERT_EQ(rename(made_pack, pack), 0);
    ASSERT_EQ(rename(made_index, index), 0);
    ASSERT_OK(strv_append(layers, u.ret_diff_id));
}

/* An image whose layer i has large-I, middle-I and small-I; ready afterwards. */
static void make(const char *name, unsigned n_layers, bool row, struct image *ret)
{
    _cleanup_record_ struct record record = {0};

    (void)snprintf(record.name, sizeof(record.name), "%s", name);
    for (unsigned i = 0; i < n_layers; i++) {
        _cleanup_free_ char *large = text_of(i, LARGE_BYTES);
        _cleanup_free_ char *middle = text_of(i + 50, MIDDLE_BYTES);
        char names[3][32];
        struct item items[] = {FILE_ITEM(names[0], large), FILE_ITEM(names[1], "small"),
                               FILE_ITEM(names[2], middle)};

        (void)snprintf(names[0], sizeof(names[0]), "large-%u", i);
        (void)snprintf(names[1], sizeof(names[1]), "small-%u", i);
        (void)snprintf(names[2], sizeof(names[2]), "middle-%u", i);
        make_tar(items, ARRAY_SIZE(items));
        add_layer(row, &record.layers);
    }
    record.size_bytes = store_layers_bytes(record.layers);
    ASSERT_OK(store_publish_layers(&record, ret, NULL));
    ASSERT_OK(image_ready(name, ret, NULL));
}

static void assert_file(const char *name, const char *expected)
{
    _cleanup_free_ char *relative = string_printf("out/%s", name);
    _cleanup_free_ char *path = in_scratch(relative), *text = NULL;
    size_t size;

    ASSERT_OK(file_read(path, 1 << 20, &text, &size, NULL));
    ASSERT_EQ(size, strlen(expected));
    ASSERT_TRUE(memcmp(text, expected, size) == 0);
}

/* What another reader of EROFS finds in it. */
static void assert_content(const struct image *image, unsigned n_layers)
{
    _cleanup_strv_ char **packs = NULL, **argv = NULL;
    _cleanup_free_ char *out = in_scratch("out");
    _cleanup_free_ char *extract = string_printf("--extract=%s", out);
    struct spawn_options options = {.stdin_fd = -EBADF, .stdout_fd = -EBADF, .stderr_fd = -EBADF};
    struct error err = {0};

    ASSERT_OK(dir_remove(out, NULL));
    ASSERT_OK(image_packs_find(image->path, &packs, NULL));
    ASSERT_OK(strv_append(&argv, "fsck.erofs"));
    ASSERT_OK(strv_append(&argv, extract));
    for (size_t i = 0; packs && packs[i]; i++) {
        _cleanup_free_ char *device = string_printf("--device=%s", packs[i]);

        ASSERT_OK(strv_append(&argv, device));
    }
    ASSERT_OK(strv_append(&argv, image->path));
    options.argv = (const char *const *)argv;
    if (spawn_run(&options, 30 * USEC_PER_SEC, NULL, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    for (unsigned i = 0; i < n_layers; i++) {
        _cleanup_free_ char *large = text_of(i, LARGE_BYTES);
        _cleanup_free_ char *middle = text_of(i + 50, MIDDLE_BYTES);
        char name[32];

        (void)snprintf(name, sizeof(name), "large-%u", i);
        assert_file(name, large);
        (void)snprintf(name, sizeof(name), "small-%u", i);
        assert_file(name, "small");
        (void)snprintf(name, sizeof(name), "middle-%u", i);
        assert_file(name, middle);
    }
}

static void read_block(const char *path, uint8_t block[static EROFS_BLOCK])
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);

    ASSERT_EQ(pread(fd, block, EROFS_BLOCK, 0), (ssize_t)EROFS_BLOCK);
}

/* As if it had been used last when the world was young. */
static void make_old(const struct image *image)
{
    const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    char path[256];

    ASSERT_EQ(utimensat(AT_FDCWD, image->path, times, 0), 0);
    ASSERT_OK(store_hash_path(path, "blobs", image->sha256, ".used", NULL));
    ASSERT_EQ(unlink(path), 0);
}

TEST(files_stay_in_the_pack_and_the_image_says_where)
{
    struct image_packs packs;
    struct image image;
    struct stat st;

    fresh();
    make("one", 1, false, &image);
    ASSERT_OK(image_packs_read(image.path, &packs, NULL));
    ASSERT_EQ(packs.n, 1);
    ASSERT_EQ(packs.pack[0].bytes % EROFS_BLOCK, 0);
    ASSERT_TRUE(packs.pack[0].bytes >= LARGE_BYTES + MIDDLE_BYTES);
    ASSERT_EQ(stat(image.path, &st), 0);
    ASSERT_TRUE(st.st_size <= 2 * (off_t)EROFS_BLOCK); /* superblock and inodes */
    ASSERT_TRUE(image.size_bytes > LARGE_BYTES && image.own_bytes <= 2 * EROFS_BLOCK);
    assert_content(&image, 1);
}

TEST(what_follows_the_end_of_a_file_is_zero)
{
    _cleanup_strv_ char **packs = NULL;
    _cleanup_free_ char *text = NULL;
    struct image image;
    size_t size, files = 0;

    fresh();
    make("one", 1, false, &image);
    ASSERT_OK(image_packs_find(image.path, &packs, NULL));
    ASSERT_OK(file_read(packs[0], 1 << 20, &text, &size, NULL));
    for (size_t block = 0; block < size; block += EROFS_BLOCK) {
        size_t used = strnlen(text + block, EROFS_BLOCK);

        for (size_t i = used; i < EROFS_BLOCK; i++)
            ASSERT_EQ(text[block + i], 0);
        files += used < EROFS_BLOCK ? 1 : 0;
    }
    ASSERT_EQ(files, 3);
}

TEST(the_largest_layers_become_devices_and_the_rest_is_copied)
{
    struct image_packs packs;
    struct image image;

    fresh();
    make("many", 12, false, &image);
    ASSERT_OK(image_packs_read(image.path, &packs, NULL));
    ASSERT_EQ(packs.n, IMAGE_PACKS_MAX);
    assert_content(&image, 12);
}

TEST(layers_of_older_versions_become_one_file)
{
    struct image_packs packs;
    struct image image, again;

    fresh();
    make("old", 2, true, &image);
    ASSERT_OK(image_packs_read(image.path, &packs, NULL));
    ASSERT_EQ(packs.n, 0);
    assert_content(&image, 2);
    /* The same layers in the new form are another image; the old one keeps its name and bytes. */
    make("new", 2, false, &again);
    ASSERT_TRUE(strcmp(image.sha256, again.sha256) != 0);
    ASSERT_EQ(unlink(image.path), 0);
    ASSERT_OK(image_ready("old", &again, NULL));
    ASSERT_STREQ(again.sha256, image.sha256);
    ASSERT_OK(image_packs_read(again.path, &packs, NULL));
    ASSERT_EQ(packs.n, 0);
    assert_content(&again, 2);
}

TEST(a_missing_or_short_pack_is_told)
{
    _cleanup_strv_ char **packs = NULL, **none = NULL;
    struct error err = {0};
    struct image image, found;

    fresh();
    make("one", 1, false, &image);
    ASSERT_OK(image_packs_find(image.path, &packs, NULL));
    ASSERT_EQ(truncate(packs[0], EROFS_BLOCK), 0);
    ASSERT_ERR(image_packs_find(image.path, &none, &err), EIO);
    ASSERT_TRUE(strstr(err.text, "has 4096 bytes and should have"));
    ASSERT_OK(image_find("one", &found, NULL));
    ASSERT_FALSE(found.ready);
    ASSERT_ERR(image_ready("one", &found, &err), EIO);
    ASSERT_EQ(unlink(packs[0]), 0);
    ASSERT_ERR(image_packs_find(image.path, &none, &err), EIO);
    ASSERT_TRUE(strstr(err.text, "No such file"));
}

TEST(what_is_in_use_keeps_its_packs_without_a_name)
{
    _cleanup_strv_ char **packs = NULL, **none = NULL;
    struct prune_options options = {.all = true};
    struct prune_result result;
    struct image image;
    char *in_use[] = {image.sha256, NULL};

    fresh();
    make("one", 3, false, &image);
    ASSERT_OK(image_packs_find(image.path, &packs, NULL));
    ASSERT_OK(image_remove("one", in_use, NULL));
    make_old(&image);
    options.in_use = in_use;
    ASSERT_OK(image_prune(&options, &result, NULL));
    assert_content(&image, 3);
    options.in_use = NULL;
    ASSERT_OK(image_prune(&options, &result, NULL));
    ASSERT_FALSE(file_exists(image.path));
    ASSERT_FALSE(file_exists(packs[0]));
    ASSERT_TRUE(result.freed_bytes >= 3 * (uint64_t)LARGE_BYTES);
}

TEST(files_without_a_name_go_before_images_that_have_one)
{
    struct prune_options options = {.trim = true};
    struct prune_result result;
    struct image image, other, found;
    char *in_use[] = {image.sha256, NULL};

    fresh();
    make("gone", 3, false, &image);
    make("stays", 1, false, &other);
    ASSERT_OK(image_remove("gone", in_use, NULL));
    make_old(&image);
    make_old(&other);
    options.limit_bytes = image_cache_usage() - 1;
    ASSERT_OK(image_prune(&options, &result, NULL));
    ASSERT_FALSE(file_exists(image.path));
    ASSERT_OK(image_find("stays", &found, NULL));
    ASSERT_TRUE(found.ready);
    assert_content(&found, 1);
}

TEST(a_table_that_is_not_ours_is_refused)
{
    uint8_t good[EROFS_BLOCK], block[EROFS_BLOCK];
    const size_t super = EROFS_SUPER_OFFSET;
    struct image_packs packs = {.n = 99};
    struct image image;

    fresh();
    make("one", 2, false, &image);
    read_block(image.path, good);
    ASSERT_OK(image_packs_parse(good, &packs));
    ASSERT_EQ(packs.n, 2);

#define CHANGED(at, value)                                                                         \
    (memcpy(block, good, sizeof(block)), block[at] = (value), image_packs_parse(block, &packs))
    ASSERT_ERR(CHANGED(super + 86, IMAGE_PACKS_MAX + 1), EINVAL);
    ASSERT_ERR(CHANGED(super + 87, 1), EINVAL);
    ASSERT_ERR(CHANGED(super + 86, 3), EINVAL); /* a slot that is empty */
    ASSERT_ERR(CHANGED(super + 88, 0), EINVAL);
    ASSERT_ERR(CHANGED(EROFS_SLOTS_OFFSET, '/'), EINVAL);
    ASSERT_ERR(CHANGED(EROFS_SLOTS_OFFSET + 63, 0), EINVAL);
    ASSERT_EQ(packs.n, 2);        /* untouched */
    ASSERT_OK(CHANGED(super, 0)); /* no EROFS at all */
    ASSERT_EQ(packs.n, 0);
#undef CHANGED
}
