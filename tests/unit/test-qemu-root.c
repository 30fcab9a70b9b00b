#include <stdio.h>
#include <stdlib.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backend/qemu/qemu-root.h"
#include "backend/qemu/qemu-verbs.h"
#include "base/file.h"
#include "base/strv.h"
#include "harness/test.h"

static const char *path_in(const char *root, const char *name)
{
    static char path[2][512];
    static unsigned turn;
    char *p = path[turn++ % 2];

    (void)snprintf(p, sizeof(path[0]), "%s/%s", root, name);
    return p;
}

static const char *fresh_root(const char *name)
{
    static char root[256];

    (void)snprintf(root, sizeof(root), "%s/%s", test_tmpdir(), name);
    ASSERT_OK(root_prepare(root, NULL));
    ASSERT_OK(dir_create(path_in(root, "run/qemu"), 0700, NULL));
    ASSERT_OK(dir_create(path_in(root, "log/qemu"), 0700, NULL));
    return root;
}

/* What prepare put outside the tree goes with it. */
static void drop_root(const char *root)
{
    char target[256];
    ssize_t n = readlink(path_in(root, "run"), target, sizeof(target) - 1);

    if (n > 0) {
        target[n] = '\0';
        ASSERT_OK(dir_remove(target, NULL));
    }
}

static void write_pid(const char *root, const char *id, long pid)
{
    char name[64], text[32];

    (void)snprintf(name, sizeof(name), "run/qemu/%s.pid", id);
    (void)snprintf(text, sizeof(text), "%ld\n", pid);
    ASSERT_OK(file_write_atomic(path_in(root, name), text, strlen(text), 0600, NULL));
}

TEST(prepares_twice_and_repairs_the_configuration)
{
    const char *root = fresh_root("twice");
    char *text = NULL;

    ASSERT_OK(file_write_atomic(path_in(root, "etc/qemu.conf"), "user = \"x\"\n", 11, 0600, NULL));
    ASSERT_OK(root_prepare(root, NULL));
    ASSERT_OK(file_read(path_in(root, "etc/qemu.conf"), 4096, &text, NULL, NULL));
    ASSERT_TRUE(strstr(text, "stdio_handler = \"file\"") != NULL);
    free(text);
    drop_root(root);
}

TEST(forgets_a_start_that_was_cut_off)
{
    static const struct {
        const char *name, *text;
        bool stays;
    } cases[] = {
        {"run/qemu/half.xml",
         "<!-- x -->\n<domstatus state='paused' reason='starting up' pid='0'>\n", false},
        {"run/qemu/empty.xml", "", false},
        {"run/qemu/lives.xml",
         "<domstatus state='running' reason='booted' pid='4711'>\n<x pid='0'/>", true},
        {"run/qemu/other.xml", "<domain/>", true},
        {"run/qemu/autostarted", "", true},
    };
    const char *root = fresh_root("half");

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        ASSERT_OK(file_write_atomic(path_in(root, cases[i].name), cases[i].text,
                                    strlen(cases[i].text), 0600, NULL));
    ASSERT_OK(root_prepare(root, NULL));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        ASSERT_EQ(file_exists(path_in(root, cases[i].name)), cases[i].stays);
    drop_root(root);
}

TEST(sweeps_what_a_removed_root_left_in_memory)
{
    char target[256];
    const char *root = fresh_root("gone");
    ssize_t n = readlink(path_in(root, "run"), target, sizeof(target) - 1);

    if (n < 0) {
        /* No memory file system here: nothing is put outside the root. */
        ASSERT_TRUE(file_exists(path_in(root, "run")));
        return;
    }
    target[n] = '\0';
    ASSERT_TRUE(file_exists(target));
    ASSERT_OK(dir_remove(root, NULL));
    root = fresh_root("next");
    ASSERT_FALSE(file_exists(target));
    drop_root(root);
}

TEST(sweeps_what_a_killed_libvirt_left)
{
    const char *root = fresh_root("lib");

    ASSERT_OK(dir_create(path_in(root, "lib/qemu/qmp-ABCDEF"), 0700, NULL));
    ASSERT_OK(dir_create(path_in(root, "lib/qemu/domain-7-sb-1"), 0700, NULL));
    ASSERT_OK(dir_create(path_in(root, "lib/qemu/save"), 0700, NULL));
    ASSERT_OK(root_prepare(root, NULL));
    ASSERT_FALSE(file_exists(path_in(root, "lib/qemu/qmp-ABCDEF")));
    ASSERT_FALSE(file_exists(path_in(root, "lib/qemu/domain-7-sb-1")));
    ASSERT_TRUE(file_exists(path_in(root, "lib/qemu/save")));
    drop_root(root);
}

TEST(releases_what_it_put_outside)
{
    const char *root = fresh_root("release");

    root_release(root);
    ASSERT_OK(root_prepare(root, NULL));
    root_release(root);
    ASSERT_TRUE(file_exists(path_in(root, "etc/qemu.conf")));
}

TEST(trusts_no_pid_file)
{
    const char *root = fresh_root("pids");
    char **ids = NULL;

    ASSERT_ERR(root_read_pid(root, "none"), ESRCH);
    ASSERT_ERR(root_open_vm(root, "none", NULL), ESRCH);
    /* Ourselves: alive, but not QEMU. */
    write_pid(root, "other", (long)getpid());
    ASSERT_EQ(root_read_pid(root, "other"), getpid());
    ASSERT_ERR(root_open_vm(root, "other", NULL), ESRCH);
    write_pid(root, "one", 1);
    ASSERT_ERR(root_read_pid(root, "one"), ESRCH);
    write_pid(root, "minus", -1);
    ASSERT_ERR(root_read_pid(root, "minus"), ESRCH);
    write_pid(root, "huge", 99999999999L);
    ASSERT_ERR(root_read_pid(root, "huge"), ESRCH);
    ASSERT_OK(root_list(root, &ids, NULL));
    ASSERT_EQ(strv_length(ids), 0);
    strv_free(ids);
    drop_root(root);
}

TEST(lists_nothing_before_the_first_vm)
{
    char **ids = NULL;

    ASSERT_OK(root_list("/nonexistent", &ids, NULL));
    ASSERT_EQ(strv_length(ids), 0);
    strv_free(ids);
}

static bool only_keep(const char *id, void *userdata)
{
    (void)userdata;
    return strcmp(id, "keep") == 0;
}

TEST(sweeps_old_logs_of_vms_that_are_gone)
{
    const char *root = fresh_root("logs");
    struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    static const char *const names[] = {"log/qemu/keep.log", "log/qemu/old.log",
                                        "log/qemu/Other.txt", "log/qemu/new.log"};

    for (size_t i = 0; i < 4; i++) {
        ASSERT_OK(file_write_atomic(path_in(root, names[i]), "x", 1, 0600, NULL));
        if (i < 3)
            ASSERT_OK(utimensat(AT_FDCWD, path_in(root, names[i]), old, 0));
    }
    root_sweep_logs(root, only_keep, NULL);
    ASSERT_TRUE(file_exists(path_in(root, names[0])));
    ASSERT_FALSE(file_exists(path_in(root, names[1])));
    ASSERT_TRUE(file_exists(path_in(root, names[2])));
    ASSERT_TRUE(file_exists(path_in(root, names[3])));
    drop_root(root);
}

TEST(refuses_a_directory_too_deep_for_a_socket)
{
    struct backend_vm vm;
    struct error err = {0};
    char dir[128];

    memset(dir, 'd', sizeof(dir));
    dir[0] = '/';
    dir[94] = '\0';
    ASSERT_OK(verb_paths(dir, &vm, &err));
    ASSERT_EQ(strlen(vm.console_path), 107);
    dir[94] = 'd';
    dir[95] = '\0';
    ASSERT_ERR(verb_paths(dir, &vm, &err), ENAMETOOLONG);
    ASSERT_TRUE(strstr(err.text, "shorter state directory") != NULL);
}
