#include "harness/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/spawn.h"
#include "base/strv.h"

static char *in_tmp(const char *name)
{
    return string_printf("%s/%s", test_tmpdir(), name);
}

TEST(writes_a_file_whole_and_reads_it_back)
{
    _cleanup_free_ char *path = in_tmp("a"), *data = NULL;
    size_t size;

    ASSERT_OK(file_write_atomic(path, "one", 3, 0600, NULL));
    ASSERT_OK(file_write_atomic(path, "second", 6, 0600, NULL));
    ASSERT_OK(file_read(path, 100, &data, &size, NULL));
    ASSERT_EQ(size, 6);
    ASSERT_STREQ(data, "second");
}

TEST(refuses_a_file_over_the_limit)
{
    _cleanup_free_ char *path = in_tmp("big"), *data = NULL;
    struct error err = {0};

    ASSERT_OK(file_write_atomic(path, "0123456789", 10, 0600, NULL));
    ASSERT_ERR(file_read(path, 9, &data, NULL, &err), EFBIG);
    ASSERT_TRUE(strstr(err.text, path) != NULL);
    ASSERT_OK(file_read(path, 10, &data, NULL, &err));
}

TEST(failed_write_names_the_file_and_leaves_nothing)
{
    _cleanup_free_ char *path = in_tmp("missing/dir/file");
    struct error err = {0};

    ASSERT_ERR(file_write_atomic(path, "x", 1, 0600, &err), ENOENT);
    ASSERT_TRUE(strstr(err.text, "missing/dir") != NULL);
}

TEST(removes_a_tree_but_not_what_its_links_point_to)
{
    _cleanup_free_ char *dir = in_tmp("tree/b/c"), *tree = in_tmp("tree"), *keep = in_tmp("keep");
    _cleanup_free_ char *link = in_tmp("tree/b/link"), *file = in_tmp("tree/b/c/file");

    ASSERT_OK(dir_create(dir, 0700, NULL));
    ASSERT_OK(dir_create(dir, 0700, NULL));
    ASSERT_OK(dir_create(keep, 0700, NULL));
    ASSERT_OK(file_write_atomic(file, "x", 1, 0600, NULL));
    ASSERT_OK(symlink(keep, link));
    ASSERT_OK(dir_remove(tree, NULL));
    ASSERT_FALSE(file_exists(tree));
    ASSERT_TRUE(file_exists(keep));
    ASSERT_OK(dir_remove(tree, NULL));
}

TEST(copies_data_and_keeps_holes)
{
    _cleanup_free_ char *from = in_tmp("sparse"), *to = in_tmp("copy");
    _cleanup_close_ int fd = open(from, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    char back[5] = {0};
    struct stat st;

    ASSERT_OK(ftruncate(fd, 64 << 20));
    ASSERT_EQ(pwrite(fd, "head", 4, 0), 4);
    ASSERT_EQ(pwrite(fd, "tail", 4, 40 << 20), 4);
    ASSERT_OK(file_copy_sparse(from, to, 0600, NULL));
    ASSERT_OK(stat(to, &st));
    ASSERT_EQ(st.st_size, 64 << 20);
    ASSERT_TRUE(st.st_blocks * 512 < 1 << 20);
    fd = fd_close(fd);
    fd = open(to, O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(pread(fd, back, 4, 40 << 20), 4);
    ASSERT_STREQ(back, "tail");
    ASSERT_ERR(file_copy_sparse(from, to, 0600, NULL), EEXIST);
}

TEST(open_beneath_does_not_leave_the_directory)
{
    _cleanup_free_ char *dir = in_tmp("jail"), *outside = in_tmp("outside"),
                        *link = in_tmp("jail/link");
    _cleanup_close_ int dir_fd = -EBADF;

    ASSERT_OK(dir_create(dir, 0700, NULL));
    ASSERT_OK(file_write_atomic(outside, "x", 1, 0600, NULL));
    ASSERT_OK(symlink(outside, link));
    dir_fd = open(dir, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    ASSERT_ERR(fd_open_beneath(dir_fd, "../outside", O_RDONLY, 0), EXDEV);
    ASSERT_ERR(fd_open_beneath(dir_fd, outside, O_RDONLY, 0), EXDEV);
    ASSERT_ERR(fd_open_beneath(dir_fd, "link", O_RDONLY, 0), EXDEV);
}

TEST(runs_a_tool_and_reports_its_failure)
{
    const char *const ok[] = {"sh", "-c", "echo out; echo err >&2", NULL};
    const char *const bad[] = {"sh", "-c", "echo reason >&2; exit 3", NULL};
    const char *const slow[] = {"sleep", "60", NULL};
    const char *const none[] = {"/no/such/tool", NULL};
    _cleanup_buf_ struct buf output = {.max = 100};
    struct error err = {0};
    struct spawn_options o = {.argv = ok, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};

    ASSERT_OK(spawn_run(&o, 10000000, &output, &err));
    ASSERT_STREQ(buf_string(&output), "out\nerr\n");
    o.argv = bad;
    ASSERT_ERR(spawn_run(&o, 10000000, NULL, &err), EIO);
    ASSERT_STREQ(err.text, "'sh' exited with status 3: reason");
    o.argv = slow;
    ASSERT_ERR(spawn_run(&o, 20000, NULL, &err), ETIMEDOUT);
    o.argv = none;
    ASSERT_ERR(spawn_run(&o, 10000000, NULL, &err), ENOENT);
}

TEST(keeps_the_tail_of_long_output)
{
    const char *const argv[] = {"sh", "-c",
                                "i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done", NULL};
    _cleanup_buf_ struct buf output = {.max = 100};
    struct spawn_options o = {.argv = argv, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};

    ASSERT_OK(spawn_run(&o, 10000000, &output, NULL));
    ASSERT_STREQ(buf_string(&output) + output.size - 5, "2999\n");
}

TEST(passes_descriptors_in_order)
{
    const char *const argv[] = {"sh", "-c", "echo three >&3; echo four >&4", NULL};
    int p[2], q[2], keep[2];
    char a[16] = {0}, b[16] = {0};
    struct spawn_options o = {.argv = argv, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};

    ASSERT_OK(pipe2(p, O_CLOEXEC));
    ASSERT_OK(pipe2(q, O_CLOEXEC));
    keep[0] = p[1];
    keep[1] = q[1];
    o.keep_fds = keep;
    o.n_keep_fds = 2;
    ASSERT_OK(spawn_run(&o, 10000000, NULL, NULL));
    ASSERT_EQ(read(p[0], a, 15), 6);
    ASSERT_EQ(read(q[0], b, 15), 5);
    ASSERT_STREQ(a, "three\n");
    ASSERT_STREQ(b, "four\n");
    for (int i = 0; i < 2; i++) {
        close(p[i]);
        close(q[i]);
    }
}
