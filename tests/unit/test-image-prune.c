#include "harness/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/strv.h"
#include "erofs/prune.h"
#include "erofs/store.h"
#include "image-fixture.h"
#include "layers/layer.h"

/* An image of one layer with one file, as if it had been pulled `used` microseconds after 1970. */
static void pulled(const char *name, const char *content, uint64_t used, struct image *ret)
{
    const struct item items[] = {FILE_ITEM("file", content)};
    _cleanup_free_ char *layers = string_printf("%s/images/layers", cache);
    _cleanup_free_ char *temporary = string_printf("%s/index", scratch);
    _cleanup_free_ char *data = string_printf("%s/pack", scratch);
    _cleanup_record_ struct record record = {0};
    struct layer_budget budget = {0};
    struct layer_unpack u = {
        .blob = tar_path, .name = "layer", .pack = data, .index = temporary, .budget = &budget};
    char pack[256], index[256], path[256];

    make_tar(items, 1);
    ASSERT_OK(dir_create(layers, 0755, NULL));
    ASSERT_OK(layer_unpack(&u, NULL));
    ASSERT_OK(store_layer_paths(u.ret_diff_id, pack, index, NULL));
    ASSERT_EQ(rename(data, pack), 0);
    ASSERT_EQ(rename(temporary, index), 0);
    (void)snprintf(record.name, sizeof(record.name), "%s", name);
    (void)snprintf(record.digest, sizeof(record.digest), "%s", u.ret_diff_id);
    ASSERT_OK(strv_append(&record.layers, u.ret_diff_id));
    ASSERT_OK(store_publish_layers(&record, ret, NULL));
    record.created_wall_usec = used;
    ASSERT_OK(record_write(&record, NULL));
    ASSERT_OK(image_ready(name, ret, NULL));
    ASSERT_OK(store_hash_path(path, "blobs", ret->sha256, ".used", NULL));
    ASSERT_EQ(unlink(path), 0); /* as if it had not been used since */
}

TEST(least_recently_used_goes_first_and_never_what_is_in_use)
{
    struct image old, middle, recent, found;
    struct prune_options options = {.trim = true, .limit_bytes = 1};
    struct prune_result result;
    char *in_use[] = {NULL, NULL};

    fresh();
    pulled("h/old:1", "1", 1000, &old);
    pulled("h/middle:1", "2", 2000, &middle);
    pulled("h/recent:1", "3", 3000, &recent);
    in_use[0] = middle.sha256;
    options.in_use = in_use;
    ASSERT_OK(image_prune(&options, &result, NULL));
    ASSERT_ERR(image_find("h/old:1", &found, NULL), ENOENT);
    ASSERT_ERR(image_find("h/recent:1", &found, NULL), ENOENT);
    ASSERT_OK(image_find("h/middle:1", &found, NULL));
    ASSERT_TRUE(found.ready);
    ASSERT_TRUE(result.removed >= 4 && result.freed_bytes > 0);
    ASSERT_FALSE(file_exists(old.path));
}

TEST(only_as_much_goes_as_must)
{
    struct image old, recent, found;
    struct prune_options options = {.trim = true};
    struct prune_result result;

    fresh();
    pulled("h/old:1", "1", 1000, &old);
    pulled("h/recent:1", "2", 2000, &recent);
    options.limit_bytes = image_cache_usage() - 1;
    ASSERT_OK(image_prune(&options, &result, NULL));
    ASSERT_OK(image_find("h/old:1", &found, NULL)); /* its file is gone, and can be made again */
    ASSERT_FALSE(found.ready);
    ASSERT_OK(image_find("h/recent:1", &found, NULL));
    ASSERT_TRUE(found.ready);
    ASSERT_OK(image_ready("h/old:1", &found, NULL));
    ASSERT_STREQ(found.sha256, old.sha256);
    options.limit_bytes = UINT64_MAX;
    ASSERT_OK(image_prune(&options, &result, NULL));
    ASSERT_EQ(result.removed, 0);
}

TEST(imported_image_stays)
{
    struct image image, found;
    struct prune_options options = {.all = true};
    struct prune_result result;

    fresh();
    make_tar(plain, PLAIN_COUNT);
    ASSERT_OK(import("mine", tar_path, &image, NULL));
    ASSERT_OK(image_prune(&options, &result, NULL));
    ASSERT_OK(image_find("mine", &found, NULL));
    ASSERT_TRUE(found.ready);
}
