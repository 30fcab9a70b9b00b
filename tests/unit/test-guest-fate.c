#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "core/guest-fate.h"
#include "harness/test.h"

static const char *log_of(const char *text)
{
    static char path[256];

    (void)snprintf(path, sizeof(path), "%s/log", test_tmpdir());
    ASSERT_OK(file_write_atomic(path, text, strlen(text), 0600, NULL));
    return path;
}

TEST(panic_is_told_with_its_line)
{
    struct error err = {0};

    ASSERT_FALSE(guest_fate_ended(
        "sandbox 'x'",
        log_of("[1.0] booting\n[2.0] Kernel panic - not syncing: oops\n[2.1] more\n"), "exit 0",
        &err));
    ASSERT_EQ(err.code, ERR_GUEST_PANIC);
    ASSERT_TRUE(strstr(err.text, "'Kernel panic - not syncing: oops'"));
}

TEST(panic_for_want_of_memory_is_out_of_memory)
{
    struct error err = {0};

    ASSERT_FALSE(guest_fate_ended(
        "sandbox 'x'", log_of("[2.0] Kernel panic - not syncing: Out of memory: compulsory\n"), "x",
        &err));
    ASSERT_EQ(err.code, ERR_GUEST_OUT_OF_MEMORY);
}

TEST(reason_of_init_goes_before_its_power_off)
{
    struct error err = {0};

    ASSERT_FALSE(guest_fate_ended("sandbox 'x'",
                                  log_of("hearth-init: fatal: no disk\n[3.0] reboot: Power down\n"),
                                  "x", &err));
    ASSERT_EQ(err.code, ERR_GUEST_GONE);
    ASSERT_TRUE(strstr(err.text, "no disk"));
}

TEST(power_off_is_no_failure)
{
    struct error err = {0};

    ASSERT_TRUE(guest_fate_ended("x", log_of("[3.0] reboot: Power down\n"), "exit 0", &err));
    ASSERT_EQ(err.errnum, 0);
}

TEST(anything_else_is_gone_with_the_last_line)
{
    struct error err = {0};

    ASSERT_FALSE(guest_fate_ended("x", log_of("one\ntwo \033[31m\n\n"), "signal 9", &err));
    ASSERT_EQ(err.code, ERR_GUEST_GONE);
    ASSERT_TRUE(strstr(err.text, "signal 9"));
    ASSERT_TRUE(strstr(err.text, "'two ?[31m'"));
    ASSERT_FALSE(guest_fate_ended("x", "/nonexistent", "signal 9", &err));
    ASSERT_EQ(err.code, ERR_GUEST_GONE);
}

TEST(silence_is_explained_by_what_the_kernel_said)
{
    struct error err = {0};

    (void)error_set_code(&err, ERR_GUEST_UNRESPONSIVE, "no answer");
    guest_fate_explain("the guest", log_of("waiting for root\n"), &err);
    ASSERT_EQ(err.code, ERR_GUEST_UNRESPONSIVE);
    ASSERT_TRUE(strstr(err.text, "no answer"));
    ASSERT_TRUE(strstr(err.text, "waiting for root"));
    guest_fate_explain("the guest", log_of("Kernel panic - not syncing: x\n"), &err);
    ASSERT_EQ(err.code, ERR_GUEST_PANIC);
}

TEST(long_and_binary_logs_are_bounded)
{
    static char text[200000];
    struct error err = {0};

    memset(text, 'a', sizeof(text) - 1);
    ASSERT_FALSE(guest_fate_ended("x", log_of(text), "y", &err));
    ASSERT_TRUE(strlen(err.text) < 400);
}
