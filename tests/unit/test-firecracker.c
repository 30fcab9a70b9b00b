#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/firecracker/fc-find.h"
#include "backend/firecracker/fc-jail.h"
#include "backend/firecracker/fc-machine.h"
#include "backend/firecracker/fc-zero.h"
#include "base/fd.h"
#include "base/file.h"
#include "erofs/packs.h"
#include "harness/test.h"

TEST(versions_are_compared_by_number)
{
    ASSERT_TRUE(fc_version_compare("1.16.1", "1.16.1") == 0);
    ASSERT_TRUE(fc_version_compare("1.9.9", "1.16.1") < 0);
    ASSERT_TRUE(fc_version_compare("1.16.0", "1.16.1") < 0);
    ASSERT_TRUE(fc_version_compare("1.16", "1.16.1") < 0);
    ASSERT_TRUE(fc_version_compare("2.0.0", "1.16.1") > 0);
    ASSERT_TRUE(fc_version_compare("", "1.16.1") < 0);
    ASSERT_TRUE(fc_version_compare("1.100.0", "1.16.1") > 0);
}

static void write_program(const char *path, const char *text)
{
    ASSERT_OK(file_write_atomic(path, text, strlen(text), 0755, NULL));
}

TEST(missing_old_and_strange_programs_get_different_answers)
{
    char path[256], missing[512];
    struct fc_programs programs;
    struct error err = {0};

    (void)snprintf(path, sizeof(path), "%s/firecracker", test_tmpdir());
    (void)setenv("HEARTH_FIRECRACKER", path, 1);
    ASSERT_ERR(fc_find(&programs, &err), ENODEV);
    ASSERT_TRUE(strstr(err.text, "no firecracker program"));
    (void)snprintf(missing, sizeof(missing), "%s", err.text);
    write_program(path, "#!/bin/sh\necho 'Firecracker v1.15.1'\n");
    error_clear(&err);
    ASSERT_ERR(fc_find(&programs, &err), ENODEV);
    ASSERT_TRUE(strstr(err.text, "1.15.1") && strstr(err.text, FC_VERSION_MIN));
    ASSERT_TRUE(strcmp(err.text, missing) != 0);
    write_program(path, "#!/bin/sh\necho 'hello'\n");
    error_clear(&err);
    ASSERT_ERR(fc_find(&programs, &err), ENODEV);
    ASSERT_TRUE(strstr(err.text, "does not say"));
    write_program(path, "#!/bin/sh\nexit 3\n");
    error_clear(&err);
    ASSERT_TRUE(fc_find(&programs, &err) < 0);
    write_program(path, "#!/bin/sh\necho 'Firecracker v1.16.1'\n");
    (void)setenv("HEARTH_JAILER", "/nonexistent", 1);
    ASSERT_OK(fc_find(&programs, &err));
    ASSERT_STREQ(programs.version, "1.16.1");
    ASSERT_FALSE(programs.jailed);
    ASSERT_TRUE(programs.not_jailed[0]);
}

TEST(a_record_cannot_name_a_jail_elsewhere)
{
    static const char *const bad[] = {
        "",       "/",           "relative/firecracker/slot",
        "/slot",  "/a/../slot",  "/base/firecracker/../../etc/x/..",
        "/a/b/.", "/a/b/UPPER!", "/base/firecracker/a-name-that-is-too-long-for-a-slot",
    };
    struct fc_jail jail;

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        if (fc_jail_from_dir(&jail, bad[i], true, 1) >= 0)
            test_fail(__FILE__, __LINE__, "'%s' was taken", bad[i]);
    ASSERT_OK(fc_jail_from_dir(&jail, "/run/h/fc/firecracker/abcdefghijkl", true, FC_UID_FIRST));
    ASSERT_STREQ(jail.slot, "abcdefghijkl");
    ASSERT_STREQ(jail.program, "firecracker");
    ASSERT_STREQ(jail.root, "/run/h/fc/firecracker/abcdefghijkl/root");
}

TEST(a_state_directory_too_deep_for_sockets_is_refused)
{
    char base[200];
    struct fc_jail jail;
    struct error err = {0};

    memset(base, 'x', sizeof(base));
    base[0] = '/';
    base[100] = '\0';
    ASSERT_ERR(fc_jail_make(&jail, base, "firecracker", false, 0, &err), ENAMETOOLONG);
}

TEST(shared_files_are_the_same_files)
{
    char base[128], from[256], to[108];
    struct fc_jail jail;
    struct stat a, b;

    (void)snprintf(base, sizeof(base), "%s/jails", test_tmpdir());
    (void)snprintf(from, sizeof(from), "%s/disk.img", test_tmpdir());
    ASSERT_OK(file_write_atomic(from, "disk", 4, 0600, NULL));
    ASSERT_OK(fc_jail_make(&jail, base, "firecracker", false, 0, NULL));
    ASSERT_OK(fc_jail_share(&jail, getpid(), from, "disk", FC_SHARE_WRITABLE, NULL));
    fc_jail_path(&jail, "disk", to);
    ASSERT_OK(stat(from, &a));
    ASSERT_OK(stat(to, &b));
    ASSERT_EQ(a.st_ino, b.st_ino);
    ASSERT_ERR(fc_jail_share(&jail, getpid(), "/nonexistent", "image", FC_SHARE_READ, NULL),
               ENOENT);
    ASSERT_OK(fc_jail_share(&jail, getpid(), from, "memory", FC_SHARE_UNTOUCHED, NULL));
    ASSERT_OK(stat(from, &b));
    ASSERT_EQ(a.st_nlink, b.st_nlink);
    ASSERT_OK(fc_jail_remove(&jail, NULL));
    ASSERT_FALSE(file_exists(jail.dir));
    ASSERT_TRUE(file_exists(from));
}

TEST(zeros_become_holes_and_nothing_else_changes)
{
    static char data[3 * 1024 * 1024 + 100];
    _cleanup_free_ char *back = NULL;
    char path[256];
    struct stat st;
    size_t size;

    memset(data, 0, sizeof(data));
    data[0] = 'a';
    data[1024 * 1024 - 1] = 'b';
    data[2 * 1024 * 1024 + 4096] = 'c';
    (void)snprintf(path, sizeof(path), "%s/memory", test_tmpdir());
    ASSERT_OK(file_write_atomic(path, data, sizeof(data), 0600, NULL));
    ASSERT_OK(fc_zero_punch(path, NULL));
    ASSERT_OK(file_read(path, sizeof(data), &back, &size, NULL));
    ASSERT_EQ(size, sizeof(data));
    ASSERT_TRUE(memcmp(back, data, size) == 0);
    ASSERT_OK(stat(path, &st));
    ASSERT_TRUE((uint64_t)st.st_blocks * 512 < 256u * 1024u);
    ASSERT_ERR(fc_zero_punch("/nonexistent/memory", NULL), ENOENT);
}

TEST(requests_name_only_files_of_the_jail)
{
    struct vm_spec spec = {.cpus = 2, .memory_mib = 256, .kernel = "/k", .disk = "/d"};
    struct fc_request requests[FC_REQUESTS_MAX];
    struct fc_options options = {0};
    int n = fc_machine_boot(&spec, &options, requests);

    ASSERT_OK(n);
    ASSERT_STREQ(requests[n - 1].path, "/actions");
    for (int i = 0; i < n; i++) {
        _cleanup_free_ char *text = json_dumps(requests[i].body, JSON_COMPACT);

        ASSERT_TRUE(text && !strstr(text, "\"/"));
    }
    fc_requests_done(requests, n);
    n = fc_machine_restore(&(struct fc_load){0}, &options, requests);
    ASSERT_EQ(n, 1);
    ASSERT_STREQ(requests[0].path, "/snapshot/load");
    fc_requests_done(requests, n);
}

static char *body_of(struct fc_request *requests, int n, const char *path)
{
    char *text = NULL;

    for (int i = 0; i < n; i++)
        if (!text && strcmp(requests[i].path, path) == 0)
            text = json_dumps(requests[i].body, JSON_COMPACT);
    fc_requests_done(requests, n);
    return text;
}

TEST(packs_of_the_image_are_drives_after_the_disk)
{
    struct vm_spec spec = {.cpus = 2, .memory_mib = 256};
    struct fc_request requests[FC_REQUESTS_MAX];
    struct fc_options options = {0};
    int n = fc_machine_boot(&spec, &options, requests), before = n, disk = 0;

    ASSERT_OK(n);
    ASSERT_OK(fc_machine_add_packs(requests, &n, 0));
    ASSERT_EQ(n, before);
    ASSERT_OK(fc_machine_add_packs(requests, &n, IMAGE_PACKS_MAX));
    ASSERT_EQ(n, before + (int)IMAGE_PACKS_MAX);
    ASSERT_STREQ(requests[n - 1].path, "/actions");
    while (strcmp(requests[disk].path, "/drives/disk") != 0)
        disk++;
    for (unsigned i = 0; i < IMAGE_PACKS_MAX; i++) {
        const struct fc_request *q = &requests[disk + 1 + (int)i];
        _cleanup_free_ char *text = json_dumps(q->body, JSON_COMPACT);
        char path[32], name[64];

        (void)snprintf(path, sizeof(path), "/drives/pack%u", i);
        (void)snprintf(name, sizeof(name), "\"path_on_host\":\"pack%u\"", i);
        ASSERT_STREQ(q->path, path);
        ASSERT_TRUE(text && strstr(text, name) && strstr(text, "\"is_read_only\":true"));
    }
    ASSERT_ERR(fc_machine_add_packs(requests, &n, IMAGE_PACKS_MAX + 1), E2BIG);
    fc_requests_done(requests, n);
}

TEST(what_an_operator_sets_reaches_firecracker)
{
    struct vm_spec spec = {.cpus = 1, .memory_mib = 128};
    struct fc_load load = {.pager = true, .tap = "tap7"};
    struct fc_request requests[FC_REQUESTS_MAX];
    struct fc_options options;
    struct error err = {0};

    (void)setenv("HEARTH_FC_DISK_RATE", "8M", 1);
    (void)setenv("HEARTH_FC_CPU_TEMPLATE", "T2S", 1);
    (void)setenv("HEARTH_FC_CLOCK_REALTIME", "1", 1);
    ASSERT_OK(fc_options_read(&options, &err));
    {
        _cleanup_free_ char *text =
            body_of(requests, fc_machine_boot(&spec, &options, requests), "/machine-config");

        ASSERT_TRUE(text && strstr(text, "\"cpu_template\":\"T2S\""));
    }
    {
        _cleanup_free_ char *text =
            body_of(requests, fc_machine_restore(&load, &options, requests), "/drives/disk");

        ASSERT_TRUE(text && strstr(text, "\"size\":8388608") && strstr(text, "\"ops\":null"));
    }
    {
        _cleanup_free_ char *text =
            body_of(requests, fc_machine_restore(&load, &options, requests), "/snapshot/load");

        ASSERT_TRUE(text && strstr(text, "\"Uffd\"") && strstr(text, "\"pager.sock\""));
        ASSERT_TRUE(strstr(text, "\"host_dev_name\":\"tap7\""));
        ASSERT_TRUE(strstr(text, "\"uds_path\":\"console.sock\""));
#if defined(__x86_64__)
        ASSERT_TRUE(strstr(text, "\"clock_realtime\":true"));
#endif
    }
    (void)unsetenv("HEARTH_FC_DISK_RATE");
    (void)unsetenv("HEARTH_FC_CPU_TEMPLATE");
    (void)unsetenv("HEARTH_FC_CLOCK_REALTIME");
}

TEST(options_that_make_no_sense_are_named)
{
    static const char *const wrong[][2] = {
        {"HEARTH_FC_POOL", "65"},           {"HEARTH_FC_POOL", "many"},
        {"HEARTH_FC_DISK_RATE", "1K"},      {"HEARTH_FC_DISK_IOPS", "-1"},
        {"HEARTH_FC_CPU_TEMPLATE", "../x"}, {"HEARTH_FC_CLOCK_REALTIME", "yes"},
    };
    struct fc_options options;

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        struct error err = {0};

        (void)setenv(wrong[i][0], wrong[i][1], 1);
        ASSERT_ERR(fc_options_read(&options, &err), EINVAL);
        ASSERT_TRUE(strstr(err.text, wrong[i][0]) && strstr(err.text, wrong[i][1]));
        (void)unsetenv(wrong[i][0]);
    }
    ASSERT_OK(fc_options_read(&options, NULL));
    ASSERT_EQ(options.pool_size, 2);
}

TEST(what_leaves_a_jail_is_a_file)
{
    char base[256], to[256], link_path[512];
    _cleanup_free_ char *text = NULL;
    struct fc_jail jail;
    struct error err = {0};

    (void)snprintf(base, sizeof(base), "%s/b", test_tmpdir());
    (void)snprintf(to, sizeof(to), "%s/out", test_tmpdir());
    ASSERT_OK(fc_jail_make(&jail, base, "firecracker", false, 0, &err));
    (void)snprintf(link_path, sizeof(link_path), "%s/state", jail.root);
    ASSERT_OK(symlink("/etc/passwd", link_path));
    ASSERT_TRUE(fc_jail_copy_out(&jail, "state", to, &err) < 0);
    ASSERT_TRUE(fc_jail_take_out(&jail, "state", to, &err) < 0);
    ASSERT_TRUE(access(to, F_OK) < 0);
    ASSERT_OK(file_write_atomic(link_path, "x", 1, 0600, NULL));
    ASSERT_OK(fc_jail_take_out(&jail, "state", to, &err));
    ASSERT_OK(file_read(to, 16, &text, NULL, NULL));
    ASSERT_STREQ(text, "x");
    ASSERT_OK(fc_jail_remove(&jail, &err));
}
