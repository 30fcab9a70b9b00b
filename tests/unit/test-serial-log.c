#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "backend/serial-log.h"
#include "base/file.h"
#include "harness/test.h"

static const char *log_with(const void *data, size_t size)
{
    static char path[512];

    (void)snprintf(path, sizeof(path), "%s/serial.log", test_tmpdir());
    ASSERT_OK(file_write_atomic(path, data, size, 0600, NULL));
    return path;
}

static const siginfo_t exited = {.si_pid = 1, .si_code = CLD_EXITED};

TEST(leaves_a_small_log_alone)
{
    const char *path = log_with("hello", 5);
    struct stat st;

    serial_trim(path);
    ASSERT_OK(stat(path, &st));
    ASSERT_EQ(st.st_size, 5);
}

TEST(keeps_the_tail_of_a_large_log)
{
    size_t size = SERIAL_MAX_BYTES + 4096;
    char *data = malloc(size), *back = NULL;
    const char *path;
    size_t n;

    ASSERT_TRUE(data != NULL);
    memset(data, 'a', size);
    memcpy(data + size - 4, "last", 4);
    path = log_with(data, size);
    serial_trim(path);
    ASSERT_OK(file_read(path, SERIAL_MAX_BYTES, &back, &n, NULL));
    ASSERT_EQ(n, SERIAL_KEEP_BYTES);
    ASSERT_STREQ(back + n - 4, "last");
    free(back);
    free(data);
}

TEST(survives_a_log_that_is_not_there)
{
    char text[256];

    serial_trim("/nonexistent/serial.log");
    serial_reason("/nonexistent/serial.log", &exited, "QEMU", text, sizeof(text));
    ASSERT_STREQ(text, "the guest powered off or rebooted");
}

TEST(tells_a_panic)
{
    static const char words[] = "[ 1.0] boot\n[ 2.0] Kernel panic - not syncing: Attempted to kill "
                                "init!\x1b[2J\n[ 2.1] CPU: 0\n";
    char text[256];

    serial_reason(log_with(words, sizeof(words) - 1), &exited, "QEMU", text, sizeof(text));
    ASSERT_STREQ(text, "the guest ended: Kernel panic - not syncing: Attempted to kill init!?[2J");
}

TEST(tells_a_fatal_error_of_init_rather_than_the_panic_after_it)
{
    static const char words[] = "hearth-init: fatal: no drive 0\n\0Kernel panic - not syncing\n";
    char text[256];

    serial_reason(log_with(words, sizeof(words) - 1), &exited, "QEMU", text, sizeof(text));
    ASSERT_STREQ(text, "the guest ended: hearth-init: fatal: no drive 0");
}

TEST(tells_how_the_process_ended)
{
    siginfo_t killed = {.si_code = CLD_KILLED}, failed = {.si_code = CLD_EXITED};
    siginfo_t unknown = {0};
    const char *path = log_with("", 0);
    char text[256];

    killed.si_pid = failed.si_pid = 1;
    killed.si_status = SIGKILL;
    failed.si_status = 1;
    serial_reason(path, &killed, "QEMU", text, sizeof(text));
    ASSERT_STREQ(text, "QEMU was killed by signal 9 (by hand, or out of memory)");
    serial_reason(path, &failed, "QEMU", text, sizeof(text));
    ASSERT_STREQ(text, "QEMU exited with status 1");
    serial_reason(path, &unknown, "QEMU", text, sizeof(text));
    ASSERT_STREQ(text, "QEMU ended");
}

TEST(cuts_long_last_words)
{
    char words[4096], text[256];

    memset(words, 'x', sizeof(words));
    memcpy(words, "Kernel panic", 12);
    serial_reason(log_with(words, sizeof(words)), &exited, "QEMU", text, sizeof(text));
    ASSERT_TRUE(strlen(text) < 200);
}
