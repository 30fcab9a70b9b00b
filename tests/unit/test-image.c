#include "erofs/image.h"

#include <archive.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/spawn.h"
#include "base/strv.h"
#include "harness/test.h"
#include "unit/image-fixture.h"

static void write_file(const char *name, const char *text)
{
    _cleanup_free_ char *path = in_scratch(name);

    ASSERT_OK(file_write_atomic(path, text, strlen(text), 0644, NULL));
}

/* Extracts an image into scratch/out. */
static void extract(const struct image *image)
{
    _cleanup_free_ char *out = in_scratch("out");
    _cleanup_free_ char *option = string_printf("--extract=%s", out);
    const char *const argv[] = {"fsck.erofs", "--overwrite", "--preserve",
                                option,       image->path,   NULL};
    const struct spawn_options options = {
        .argv = argv, .stdin_fd = -EBADF, .stdout_fd = -EBADF, .stderr_fd = -EBADF};
    struct error err = {0};

    ASSERT_OK(dir_remove(out, NULL));
    if (spawn_run(&options, 30 * USEC_PER_SEC, NULL, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
}

/* i_mode as the image has it: the tools hide the set-uid bit. Metadata starts at block 0. */
static uint16_t mode_in_image(const struct image *image, const char *path)
{
    _cleanup_free_ char *option = string_printf("--path=%s", path);
    const char *const argv[] = {"dump.erofs", option, image->path, NULL};
    const struct spawn_options options = {
        .argv = argv, .stdin_fd = -EBADF, .stdout_fd = -EBADF, .stderr_fd = -EBADF};
    _cleanup_buf_ struct buf out = {.max = 4096};
    _cleanup_close_ int fd = open(image->path, O_RDONLY | O_CLOEXEC);
    const char *nid;
    uint16_t mode;

    ASSERT_OK(spawn_run(&options, 10 * USEC_PER_SEC, &out, NULL));
    nid = strstr(buf_string(&out), "NID: ");
    ASSERT_TRUE(nid);
    ASSERT_EQ(pread(fd, &mode, sizeof(mode), (off_t)strtoul(nid + 5, NULL, 10) * 32 + 4), 2);
    return mode;
}

/* An archive that must be refused, and then must not have left anything. */
static void assert_refused(const struct item *items, size_t count, const char *text)
{
    struct error err = {0};
    struct image image;

    make_tar(items, count);
    ASSERT_TRUE(import("bad", tar_path, &image, &err) < 0);
    if (err.code != ERR_IMAGE_INVALID || !strstr(err.text, text))
        test_fail(__FILE__, __LINE__, "expected '%s' in: %s (%s)", text, err.text,
                  error_code_name(err.code));
    assert_store_is_empty();
}

/* ---- what goes in comes out ---- */

TEST(archive_keeps_content_modes_links_and_times)
{
    struct image image;
    struct stat st, st2;
    _cleanup_free_ char *text = NULL;

    fresh();
    _cleanup_free_ char *hostname = in_scratch("out/etc/hostname");
    _cleanup_free_ char *su = in_scratch("out/usr/bin/su"), *su2 = in_scratch("out/usr/bin/su2");
    _cleanup_free_ char *bin = in_scratch("out/bin");
    char target[32] = "";
    make_tar(plain, PLAIN_COUNT);
    ASSERT_OK(import("plain", tar_path, &image, NULL));
    ASSERT_STREQ(image.name, "plain");
    extract(&image);
    ASSERT_OK(file_read(hostname, 64, &text, NULL, NULL));
    ASSERT_STREQ(text, "guest\n");
    ASSERT_OK(stat(hostname, &st));
    ASSERT_EQ(st.st_mtime, 2000);
    ASSERT_OK(stat(su, &st));
    ASSERT_EQ(st.st_mode & 0777, 0755);
    ASSERT_EQ(mode_in_image(&image, "/usr/bin/su"), S_IFREG | 04755);
    ASSERT_OK(stat(su2, &st2));
    ASSERT_EQ(st2.st_size, 2);
    ASSERT_EQ(readlink(bin, target, sizeof(target) - 1), 7);
    ASSERT_STREQ(target, "usr/bin");
}

TEST(compressed_archives_give_the_same_image)
{
    static const int filters[] = {ARCHIVE_FILTER_GZIP, ARCHIVE_FILTER_XZ, ARCHIVE_FILTER_ZSTD,
                                  ARCHIVE_FILTER_BZIP2, ARCHIVE_FILTER_LZ4};
    struct image first, image;

    fresh();
    make_tar(plain, PLAIN_COUNT);
    ASSERT_OK(import("first", tar_path, &first, NULL));
    for (size_t i = 0; i < ARRAY_SIZE(filters); i++) {
        struct archive *a = tar_open(filters[i]);

        for (size_t j = 0; j < PLAIN_COUNT; j++)
            tar_add(a, &plain[j]);
        tar_close(a);
        ASSERT_OK(import("again", tar_path, &image, NULL));
        ASSERT_STREQ(image.sha256, first.sha256);
    }
}

TEST(directory_gives_the_same_image_each_time_and_as_an_archive)
{
    struct image from_tar, from_dir, again;

    fresh();
    if (geteuid() != 0)
        return; /* owners differ then */
    _cleanup_free_ char *out = in_scratch("out"), *copy = in_scratch("copy");
    make_tar(plain, PLAIN_COUNT);
    ASSERT_OK(import("tar", tar_path, &from_tar, NULL));
    const char *const tar_argv[] = {"tar", "-xpf", tar_path, "-C", out, NULL};
    const char *const cp_argv[] = {"cp", "-a", out, copy, NULL};
    struct spawn_options options = {
        .argv = tar_argv, .stdin_fd = -EBADF, .stdout_fd = -EBADF, .stderr_fd = -EBADF};
    ASSERT_OK(dir_create(out, 0755, NULL));
    ASSERT_OK(spawn_run(&options, 10 * USEC_PER_SEC, NULL, NULL));
    ASSERT_OK(import("dir", out, &from_dir, NULL));
    options.argv = cp_argv;
    ASSERT_OK(spawn_run(&options, 10 * USEC_PER_SEC, NULL, NULL));
    ASSERT_OK(import("again", copy, &again, NULL));
    ASSERT_STREQ(from_dir.sha256, again.sha256);
    ASSERT_STREQ(from_dir.sha256, from_tar.sha256);
}

TEST(directories_the_archive_only_implies_do_not_carry_the_time_of_the_import)
{
    static const struct item items[] = {FILE_ITEM("a/b/c", "x"), FILE_ITEM("/d/e", "y")};
    struct image image;
    struct stat st;

    fresh();
    _cleanup_free_ char *b = in_scratch("out/a/b"), *e = in_scratch("out/d/e");
    make_tar(items, ARRAY_SIZE(items));
    ASSERT_OK(import("implied", tar_path, &image, NULL));
    extract(&image);
    ASSERT_OK(stat(b, &st));
    ASSERT_EQ(st.st_mtime, 0);
    ASSERT_TRUE(file_exists(e));
}

TEST(names_beyond_ascii_survive)
{
    static const struct item items[] = {FILE_ITEM("gr\xc3\xbc\xc3\x9f-\xe6\x97\xa5", "x"),
                                        FILE_ITEM("latin-\xfc", "y")};
    struct image image;

    fresh();
    _cleanup_free_ char *utf8 = in_scratch("out/gr\xc3\xbc\xc3\x9f-\xe6\x97\xa5");
    struct archive *a = archive_write_new();
    ASSERT_EQ(archive_write_set_format_gnutar(a), ARCHIVE_OK);
    ASSERT_EQ(archive_write_open_filename(a, tar_path), ARCHIVE_OK);
    for (size_t i = 0; i < ARRAY_SIZE(items); i++)
        tar_add(a, &items[i]);
    tar_close(a);
    _cleanup_free_ char *latin = in_scratch("out/latin-\xfc");
    ASSERT_OK(import("names", tar_path, &image, NULL));
    extract(&image);
    ASSERT_TRUE(file_exists(utf8));
    ASSERT_TRUE(file_exists(latin));
}

TEST(file_capabilities_are_kept)
{
    /* cap_net_raw=ep, revision 2 */
    static const uint8_t capability[20] = {1, 0, 0, 2, 0, 0x20};
    struct image image;

    fresh();
    _cleanup_free_ char *dir = in_scratch("tree");
    ASSERT_OK(dir_create(dir, 0755, NULL));
    write_file("tree/ping", "ping");
    _cleanup_free_ char *ping = in_scratch("tree/ping");
    if (setxattr(ping, "security.capability", capability, sizeof(capability), 0) < 0)
        return; /* not root, or a file system without */
    const char *const argv[] = {"tar", "--xattrs", "--xattrs-include=*", "-C", dir, "-cf", tar_path,
                                ".",   NULL};
    const struct spawn_options options = {
        .argv = argv, .stdin_fd = -EBADF, .stdout_fd = -EBADF, .stderr_fd = -EBADF};
    ASSERT_OK(spawn_run(&options, 10 * USEC_PER_SEC, NULL, NULL));
    const char *const sources[] = {dir, tar_path};
    for (size_t i = 0; i < 2; i++) {
        _cleanup_free_ char *data = NULL;
        size_t size;

        ASSERT_OK(import("caps", sources[i], &image, NULL));
        ASSERT_OK(file_read(image.path, 16 << 20, &data, &size, NULL));
        ASSERT_TRUE(memmem(data, size, capability, sizeof(capability)));
    }
}

/* ---- hostile archives ---- */

TEST(archive_that_climbs_out_is_refused)
{
    static const struct item up = FILE_ITEM("../escape", "x");
    static const struct item middle = FILE_ITEM("a/../../escape", "x");
    static const struct item inside[] = {DIR_ITEM("a"), FILE_ITEM("a/../b", "x")};
    static const struct item link_up[] = {{.name = "l", .content = "../../../etc/passwd"}};

    fresh();
    assert_refused(&up, 1, "leads out");
    assert_refused(&middle, 1, "leads out");
    assert_refused(inside, 2, "leads out");
    assert_refused(link_up, 1, "leads out");
}

TEST(archive_that_writes_through_a_symlink_is_refused)
{
    fresh();
    _cleanup_free_ char *victim = in_scratch("victim");
    _cleanup_free_ char *file = in_scratch("victim/file");
    const struct item through[] = {{.name = "l", .mode = S_IFLNK | 0777, .content = victim},
                                   FILE_ITEM("l/new", "x")};
    const struct item over[] = {{.name = "l", .mode = S_IFLNK | 0777, .content = file},
                                FILE_ITEM("l", "x")};
    const struct item steal[] = {{.name = "l", .mode = S_IFLNK | 0777, .content = victim},
                                 {.name = "stolen", .content = "l/file"}};
    _cleanup_free_ char *text = NULL;
    struct image image;

    ASSERT_OK(dir_create(victim, 0755, NULL));
    write_file("victim/file", "untouched");
    assert_refused(through, 2, "cannot unpack 'l/new'");
    assert_refused(steal, 2, "cannot unpack 'stolen'");
    /* A file in place of a symlink is fine: the link goes, its target stays. */
    make_tar(over, 2);
    ASSERT_OK(import("over", tar_path, &image, NULL));
    ASSERT_OK(file_read(file, 64, &text, NULL, NULL));
    ASSERT_STREQ(text, "untouched");
    ASSERT_EQ(count_files(victim), 1);
}

TEST(archive_that_replaces_the_root_is_refused)
{
    static const struct item symlink_root = {
        .name = "/", .mode = S_IFLNK | 0777, .content = "/etc"};

    fresh();
    assert_refused(&symlink_root, 1, "root directory");
}

TEST(archive_that_nests_too_deep_or_names_too_long_is_refused)
{
    char deep[1024], lengthy[3600];
    const struct item d = FILE_ITEM(deep, "x"), l = FILE_ITEM(lengthy, "x");

    fresh();
    for (size_t i = 0; i < 300; i++)
        memcpy(deep + 2 * i, "a/", 3);
    assert_refused(&d, 1, "too deep");
    for (size_t i = 0; i < 3500; i++)
        lengthy[i] = i % 200 == 199 ? '/' : 'n';
    lengthy[3500] = '\0';
    assert_refused(&l, 1, "too long");
}

TEST(device_nodes_go_in_only_as_root)
{
    static const struct item items[] = {FILE_ITEM("a", "x"),
                                        {.name = "dev/null", .mode = S_IFCHR | 0666}};
    struct image image;

    fresh();
    make_tar(items, 2);
    ASSERT_OK(import("devices", tar_path, &image, NULL));
}

/* ---- sources that are no image ---- */

static void assert_import_fails(const char *source, enum error_code code, const char *text)
{
    struct error err = {0};
    struct image image;

    ASSERT_TRUE(import("bad", source, &image, &err) < 0);
    if (err.code != code || !strstr(err.text, text))
        test_fail(__FILE__, __LINE__, "expected %s '%s', got %s: %s", error_code_name(code), text,
                  error_code_name(err.code), err.text);
    assert_store_is_empty();
}

TEST(source_that_is_no_image_is_refused_with_the_reason)
{
    struct archive *a;

    fresh();
    _cleanup_free_ char *missing = in_scratch("missing"), *text = in_scratch("text");
    _cleanup_free_ char *nothing = in_scratch("nothing"), *dir = in_scratch("dir");
    assert_import_fails(missing, ERR_PATH_NOT_FOUND, "missing");
    write_file("text", "this is no archive, only some text that is long enough to look at");
    assert_import_fails(text, ERR_IMAGE_INVALID, "no tar archive");
    write_file("nothing", "");
    assert_import_fails(nothing, ERR_IMAGE_INVALID, "nothing");
    ASSERT_OK(dir_create(dir, 0755, NULL));
    assert_import_fails(dir, ERR_IMAGE_INVALID, "empty");
    assert_import_fails("/dev/null", ERR_IMAGE_INVALID, "neither");
    a = tar_open(ARCHIVE_FILTER_NONE);
    tar_close(a);
    assert_import_fails(tar_path, ERR_IMAGE_INVALID, "test.tar");
    /* The cache itself cannot be part of an image. */
    assert_import_fails(test_tmpdir(), ERR_IMAGE_INVALID, "holds the cache");
}

TEST(truncated_archive_is_refused_at_every_length)
{
    _cleanup_free_ char *data = NULL;
    size_t size, refused = 0;

    fresh();
    struct archive *a = tar_open(ARCHIVE_FILTER_GZIP);
    for (size_t i = 0; i < PLAIN_COUNT; i++)
        tar_add(a, &plain[i]);
    tar_close(a);
    ASSERT_OK(file_read(tar_path, 1 << 20, &data, &size, NULL));
    for (size_t n = 1; n < size - 8; n += 7) {
        struct error err = {0};
        struct image image;

        ASSERT_OK(file_write_atomic(tar_path, data, n, 0644, NULL));
        if (import("cut", tar_path, &image, &err) < 0) {
            ASSERT_EQ(err.code, ERR_IMAGE_INVALID);
            refused++;
        }
    }
    ASSERT_TRUE(refused > 10);
}

TEST(name_must_be_one)
{
    static const char *const names[] = {"", "Upper", "../x", "a//b", ".x", "with space"};
    struct image image;
    struct error err = {0};

    fresh();
    make_tar(plain, PLAIN_COUNT);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        ASSERT_ERR(import(names[i], tar_path, &image, &err), EINVAL);
        ASSERT_EQ(err.code, ERR_INVALID_ARGUMENT);
        ASSERT_ERR(image_find(names[i], &image, NULL), EINVAL);
        ASSERT_ERR(image_remove(names[i], NULL, NULL), EINVAL);
    }
}

/* Runs in a mount namespace of its own, where the place for unpacking is very small. */
static int import_without_space(void)
{
    _cleanup_free_ char *tmp = string_printf("%s/images/tmp", cache);
    struct error err = {0};
    struct image image;

    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return 77;
    ASSERT_OK(dir_create(tmp, 0700, NULL));
    if (mount("none", tmp, "tmpfs", 0, "size=256k") < 0)
        return 77;
    ASSERT_ERR(import("big", tar_path, &image, &err), ENOSPC);
    ASSERT_EQ(err.code, ERR_NO_SPACE);
    ASSERT_EQ(count_files(tmp), 0);
    return 0;
}

TEST(full_disk_is_said_as_such_and_nothing_is_left)
{
    static char content[512 * 1024];
    const struct item items[] = {FILE_ITEM("big", content)};
    int status;
    pid_t pid;

    fresh();
    memset(content, 'x', sizeof(content) - 1);
    make_tar(items, 1);
    pid = fork();
    if (pid == 0)
        _exit(import_without_space());
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77));
}
