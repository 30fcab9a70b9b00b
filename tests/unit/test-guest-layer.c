#include "harness/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "dockerfile/copy.h"
#include "dockerfile/steps.h"
#include "guest/layer.h"

/* What a guest writes of its layer is read as the layer of an image. */

static void put_file(int dir, const char *name, const char *content)
{
    _cleanup_close_ int fd = openat(dir, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

    ASSERT_TRUE(fd >= 0);
    ASSERT_OK(fd_write_full(fd, content, strlen(content)));
}

/* A name of more than one tar field, with bytes that are no UTF-8 and a newline. */
#define LONG10 "abcdefghi\xff"
#define LONG LONG10 LONG10 LONG10 LONG10 LONG10 LONG10 LONG10 LONG10 LONG10 LONG10 LONG10 "\n"

static void fill(int dir)
{
    static const struct timespec times[2] = {{1, 0}, {1234567890, 123456789}};

    put_file(dir, "file", "content\n");
    ASSERT_OK(fchownat(dir, "file", 3000000, 7, 0));
    ASSERT_OK(fchmodat(dir, "file", 04751, 0));
    ASSERT_OK(utimensat(dir, "file", times, 0));
    ASSERT_OK(linkat(dir, "file", dir, "other", 0));
    ASSERT_OK(symlinkat("/a/../target", dir, "link"));
    ASSERT_OK(mkdirat(dir, "d", 0711));
    put_file(dir, "d/" LONG, "x");
    ASSERT_OK(mknodat(dir, "d/gone", S_IFCHR, makedev(0, 0)));
    ASSERT_OK(mknodat(dir, "pipe", S_IFIFO | 0600, 0));
    put_file(dir, "empty", "");
}

TEST(a_layer_of_a_guest_is_a_layer_of_an_image)
{
    const char *tmp = test_tmpdir();
    _cleanup_free_ char *top = string_printf("%s/top", tmp), *tar = string_printf("%s/tar", tmp);
    _cleanup_stack_ struct stack stack = {0};
    _cleanup_close_ int dir = -EBADF, out = -EBADF;
    struct tree_node *node;
    struct error err = {0};
    char xattr[128];

    if (geteuid() != 0)
        test_skip("devices and owners are root's to make");
    ASSERT_OK(dir_create(top, 0755, &err));
    dir = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fill(dir);
    (void)snprintf(xattr, sizeof(xattr), "%s/file", top);
    ASSERT_OK(
        setxattr(xattr, "security.capability", "\1\0\0\2\0\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20, 0));
    (void)snprintf(xattr, sizeof(xattr), "%s/d", top);
    ASSERT_OK(setxattr(xattr, "trusted.overlay.opaque", "y", 1, 0));
    out = open(tar, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_OK(layer_write_consume(TAKE_FD(dir), out, &err));
    ASSERT_OK(step_open_context(tmp, tar, NULL, &stack, &err));

    node = tree_lookup(stack.tree, "file");
    ASSERT_TRUE(node != NULL);
    ASSERT_EQ(node->inode->mode, S_IFREG | 04751);
    ASSERT_EQ(node->inode->uid, 3000000);
    ASSERT_EQ(node->inode->mtime, 1234567890);
    ASSERT_EQ(node->inode->mtime_nsec, 123456789);
    ASSERT_TRUE(node->inode->xattrs_size > 0);
    ASSERT_TRUE(tree_lookup(stack.tree, "other")->inode == node->inode);
    ASSERT_EQ(node->inode->nlink, 2);
    node = tree_lookup(stack.tree, "d/" LONG);
    ASSERT_TRUE(node != NULL);
    ASSERT_EQ(node->inode->size, 1);
    ASSERT_TRUE(!tree_lookup(stack.tree, "d/gone"));
    node = tree_lookup(stack.tree, "link");
    ASSERT_STREQ(node->inode->target, "/a/../target");
    ASSERT_TRUE(S_ISFIFO(tree_lookup(stack.tree, "pipe")->inode->mode));
    ASSERT_EQ(tree_lookup(stack.tree, "empty")->inode->size, 0);
    ASSERT_EQ(tree_count(stack.tree), 8); /* with the root */
}

TEST(whiteouts_and_opaque_directories_have_their_marks)
{
    const char *tmp = test_tmpdir();
    _cleanup_free_ char *top = string_printf("%s/marks", tmp), *tar = string_printf("%s/t2", tmp);
    _cleanup_free_ char *dir_path = string_printf("%s/sub", top), *data = NULL;
    _cleanup_close_ int dir = -EBADF, out = -EBADF;
    struct error err = {0};
    size_t size;

    if (geteuid() != 0)
        test_skip("devices are root's to make");
    ASSERT_OK(dir_create(dir_path, 0755, &err));
    ASSERT_OK(setxattr(dir_path, "trusted.overlay.opaque", "y", 1, 0));
    dir = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ASSERT_OK(mknodat(dir, "sub/gone", S_IFCHR, makedev(0, 0)));
    ASSERT_OK(mknodat(dir, "top-gone", S_IFCHR, makedev(0, 0)));
    out = open(tar, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_OK(layer_write_consume(TAKE_FD(dir), out, &err));
    ASSERT_OK(file_read(tar, 1 << 20, &data, &size, &err));
    ASSERT_TRUE(memmem(data, size, "sub/.wh..wh..opq", 17) != NULL);
    ASSERT_TRUE(memmem(data, size, "sub/.wh.gone", 13) != NULL);
    ASSERT_TRUE(memmem(data, size, ".wh.top-gone", 13) != NULL);
    ASSERT_TRUE(memmem(data, size, "trusted.overlay", 15) == NULL);
}
