#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "harness/test.h"
#include "store/manifest.h"

static const struct origin sample = {
    .backend = "qemu",
    .backend_version = "QEMU 7.2",
    .accelerator = "tcg",
    .cpu_model = "qemu64",
    .kernel_version = "6.1",
    .kernel_sha256 = "aa",
    .initramfs_sha256 = "bb",
    .image_name = "base",
    .image_path = "/cache/base.erofs",
    .image_sha256 = "cc",
    .cpus = 1,
    .memory_mib = 256,
    .disk_mib = 4096,
};

static void write_text(const char *name, const char *text)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    ASSERT_OK(file_write_atomic(path, text, strlen(text), 0600, NULL));
}

static void make_sample(struct manifest *m)
{
    ASSERT_OK(sodium_init());
    *m = (struct manifest){.created_wall_usec = 1234, .origin = sample};
    origin_id(&sample, m->id);
    write_text("memory", "some memory");
    write_text("state", "device state");
    ASSERT_OK(manifest_add_file(m, test_tmpdir(), "memory", false, NULL));
    ASSERT_OK(manifest_add_file(m, test_tmpdir(), "state", true, NULL));
    ASSERT_OK(manifest_write(m, test_tmpdir(), NULL));
}

TEST(written_manifest_reads_back_the_same)
{
    struct manifest m, back;
    struct error err = {0};

    make_sample(&m);
    ASSERT_OK(manifest_read(test_tmpdir(), &back, &err));
    ASSERT_MEMEQ(&m.origin, &back.origin, sizeof(m.origin));
    ASSERT_STREQ(m.id, back.id);
    ASSERT_EQ(back.n_files, 2);
    ASSERT_EQ(back.files[0].size_bytes, strlen("some memory"));
    ASSERT_STREQ(back.files[0].digest, "");
    ASSERT_EQ(strlen(back.files[1].digest), 64);
    ASSERT_OK(manifest_verify(&back, test_tmpdir(), &err));
}

TEST(flipped_bit_in_the_state_is_found)
{
    struct manifest m;
    struct error err = {0};

    make_sample(&m);
    write_text("state", "device stat3");
    ASSERT_ERR(manifest_verify(&m, test_tmpdir(), &err), EINVAL);
    ASSERT_EQ(err.code, ERR_TEMPLATE_INVALID);
    ASSERT_TRUE(strstr(err.text, "digest"));
}

TEST(file_of_another_size_is_found)
{
    struct manifest m;
    struct error err = {0};

    make_sample(&m);
    write_text("memory", "some mem");
    ASSERT_ERR(manifest_verify(&m, test_tmpdir(), &err), EINVAL);
    ASSERT_TRUE(strstr(err.text, "bytes"));
}

TEST(missing_file_is_found)
{
    struct manifest m;
    char path[256];

    make_sample(&m);
    (void)snprintf(path, sizeof(path), "%s/memory", test_tmpdir());
    ASSERT_OK(remove(path));
    ASSERT_ERR(manifest_verify(&m, test_tmpdir(), NULL), EINVAL);
}

TEST(identity_covers_what_a_snapshot_depends_on_and_nothing_else)
{
    struct origin changed;
    struct error err = {0};
    char id[MANIFEST_ID_SIZE], other[MANIFEST_ID_SIZE];

    ASSERT_OK(sodium_init());
    origin_id(&sample, id);
    changed = sample;
    (void)snprintf(changed.image_name, sizeof(changed.image_name), "renamed");
    (void)snprintf(changed.image_path, sizeof(changed.image_path), "/elsewhere");
    origin_id(&changed, other);
    ASSERT_STREQ(id, other);
    ASSERT_OK(origin_compare(&sample, &changed, NULL));

    changed = sample;
    changed.memory_mib++;
    origin_id(&changed, other);
    ASSERT_TRUE(strcmp(id, other) != 0);
    ASSERT_ERR(origin_compare(&sample, &changed, &err), EINVAL);
    ASSERT_TRUE(strstr(err.text, "memory_mib"));

    changed = sample;
    (void)snprintf(changed.cpu_model, sizeof(changed.cpu_model), "other");
    ASSERT_ERR(origin_compare(&sample, &changed, &err), EINVAL);
    ASSERT_TRUE(strstr(err.text, "cpu_model"));

    /* Bytes may not move from one field to the next unseen. */
    changed = sample;
    (void)snprintf(changed.accelerator, sizeof(changed.accelerator), "tcgq");
    (void)snprintf(changed.cpu_model, sizeof(changed.cpu_model), "emu64");
    origin_id(&changed, other);
    ASSERT_TRUE(strcmp(id, other) != 0);
}

static int parse(const char *text, struct error *err)
{
    struct manifest m;

    return manifest_parse(text, strlen(text), &m, err);
}

TEST(rejects_what_is_no_manifest)
{
    struct error err = {0};
    char *text = NULL;
    char path[256], *at;
    size_t size;
    struct manifest m;

    ASSERT_ERR(parse("", &err), EINVAL);
    ASSERT_ERR(parse("[]", &err), EINVAL);
    ASSERT_ERR(parse("{\"version\": 9}", &err), EINVAL);
    ASSERT_TRUE(strstr(err.text, "version 9"));
    ASSERT_ERR(parse("{\"version\": 2, \"id\": \"x\"}", &err), EINVAL);
    make_sample(&m);
    (void)snprintf(path, sizeof(path), "%s/manifest.json", test_tmpdir());
    ASSERT_OK(file_read(path, 65536, &text, &size, NULL));
    ASSERT_OK(parse(text, &err));
    at = strstr(text, "\"state\"");
    ASSERT_TRUE(at);
    memcpy(at, "\"../xx\"", 7);
    ASSERT_ERR(parse(text, &err), EINVAL);
    free(text);
}

TEST(directory_without_a_manifest_is_told_apart)
{
    struct manifest m;
    struct error err = {0};

    ASSERT_ERR(manifest_read("/nonexistent", &m, &err), ENOENT);
    ASSERT_EQ(err.code, ERR_TEMPLATE_NOT_FOUND);
}

TEST(number_of_files_is_limited)
{
    struct manifest m;

    make_sample(&m);
    while (m.n_files < MANIFEST_FILES_MAX)
        ASSERT_OK(manifest_add_file(&m, test_tmpdir(), "state", false, NULL));
    ASSERT_ERR(manifest_add_file(&m, test_tmpdir(), "state", false, NULL), E2BIG);
}
