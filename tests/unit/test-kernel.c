#include "kernel/kernel.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/paths.h"
#include "base/strv.h"
#include "harness/test.h"

#define SHA "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const char *fresh_cache(void)
{
    static char dir[128];

    (void)snprintf(dir, sizeof(dir), "%s/cache", test_tmpdir());
    ASSERT_OK(setenv("HEARTH_CACHE", dir, 1));
    ASSERT_OK(unsetenv("HEARTH_KERNEL"));
    ASSERT_STREQ(paths_cache_dir(), dir);
    ASSERT_OK(dir_remove(dir, NULL));
    return dir;
}

static void write_file(const char *dir, const char *name, const char *text)
{
    _cleanup_free_ char *path = string_printf("%s/%s", dir, name);

    ASSERT_OK(file_write_atomic(path, text, strlen(text), 0644, NULL));
}

static void add_kernel(const char *name, const char *info)
{
    _cleanup_free_ char *dir = string_printf("%s/kernels/%s", paths_cache_dir(), name);
    _cleanup_free_ char *modules = string_printf("%s/modules", dir);

    ASSERT_OK(dir_create(modules, 0755, NULL));
    write_file(dir, "kernel", "image");
    write_file(dir, "info.json", info);
}

static const char *info(const char *version)
{
    static char text[512];

    (void)snprintf(text, sizeof(text), "{\"version\": \"%s\", \"sha256\": \"" SHA "\"}", version);
    return text;
}

TEST(missing_kernel_says_how_to_get_one)
{
    struct kernel k;
    struct error err = {0};

    (void)fresh_cache();
    ASSERT_ERR(kernel_find(NULL, &k, &err), ENOENT);
    ASSERT_EQ(err.code, ERR_KERNEL_NOT_FOUND);
    ASSERT_TRUE(strstr(err.text, "hearth kernel fetch"));
    ASSERT_ERR(kernel_find("minimal", &k, &err), ENOENT);
    ASSERT_EQ(err.code, ERR_KERNEL_NOT_FOUND);
    ASSERT_TRUE(strstr(err.text, "hearth kernel build"));
}

TEST(minimal_is_the_default_as_soon_as_it_is_there)
{
    const char *cache = fresh_cache();
    _cleanup_free_ char *path = string_printf("%s/kernels/distro/kernel", cache);
    struct kernel k;

    add_kernel("distro", info("6.1.0-1-cloud"));
    ASSERT_OK(kernel_find(NULL, &k, NULL));
    ASSERT_STREQ(k.name, "distro");
    ASSERT_STREQ(k.version, "6.1.0-1-cloud");
    ASSERT_STREQ(k.sha256, SHA);
    ASSERT_STREQ(k.path, path);
    add_kernel("minimal", info("6.1.1-hearth"));
    ASSERT_OK(kernel_find(NULL, &k, NULL));
    ASSERT_STREQ(k.name, "minimal");
}

TEST(environment_names_the_default)
{
    struct kernel k;
    struct error err = {0};

    (void)fresh_cache();
    add_kernel("distro", info("1"));
    add_kernel("minimal", info("2"));
    ASSERT_OK(setenv("HEARTH_KERNEL", "distro", 1));
    ASSERT_OK(kernel_find(NULL, &k, NULL));
    ASSERT_STREQ(k.name, "distro");
    ASSERT_OK(kernel_find("minimal", &k, NULL));
    ASSERT_STREQ(k.name, "minimal");
    ASSERT_OK(setenv("HEARTH_KERNEL", "other", 1));
    ASSERT_ERR(kernel_find(NULL, &k, &err), ENOENT);
    ASSERT_TRUE(strstr(err.text, "'other'"));
}

TEST(name_cannot_leave_the_cache)
{
    struct kernel k;

    (void)fresh_cache();
    ASSERT_ERR(kernel_find("../../etc", &k, NULL), EINVAL);
    ASSERT_ERR(kernel_find("", &k, NULL), EINVAL);
    ASSERT_ERR(kernel_find("a-name-that-has-more-characters-than-fit", &k, NULL), EINVAL);
}

TEST(damaged_record_is_refused_with_its_path)
{
    struct kernel k;
    struct error err = {0};

    (void)fresh_cache();
    add_kernel("distro", "{\"version\": \"1\", \"sha256\": \"short\"}");
    ASSERT_ERR(kernel_find(NULL, &k, &err), EIO);
    ASSERT_TRUE(strstr(err.text, "info.json"));
    add_kernel("distro", "{");
    ASSERT_ERR(kernel_find(NULL, &k, &err), EIO);
    add_kernel("distro", "{\"version\": 7, \"sha256\": \"" SHA "\"}");
    ASSERT_ERR(kernel_find(NULL, &k, &err), EIO);
}

TEST(list_is_sorted_limited_and_leaves_damaged_ones_out)
{
    struct kernel k[4];

    (void)fresh_cache();
    ASSERT_EQ(kernel_list(k, 4, NULL), 0);
    add_kernel("minimal", info("2"));
    add_kernel("distro", info("1"));
    add_kernel("broken", "[]");
    ASSERT_EQ(kernel_list(k, 4, NULL), 2);
    ASSERT_STREQ(k[0].name, "distro");
    ASSERT_STREQ(k[1].name, "minimal");
    ASSERT_EQ(kernel_list(k, 1, NULL), 1);
}
