#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "core-fixture.h"

struct gone {
    bool called;
    struct error reason;
};

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct gone *gone = userdata;

    (void)sb;
    ASSERT_FALSE(gone->called);
    gone->called = true;
    gone->reason = *reason;
}

TEST(guest_that_breaks_the_protocol_fails_alone)
{
    struct fixture f;
    struct sandbox *bad, *good;
    struct sandbox_watch *watch = NULL;
    struct gone gone = {0};
    struct error err = {0};
    char id[32];

    fixture_begin(&f);
    good = fixture_sandbox(&f, NULL, NULL);
    bad = fixture_sandbox(&f, NULL, NULL);
    (void)snprintf(id, sizeof(id), "%s", sandbox_id(bad));
    ASSERT_OK(sandbox_watch_new(bad, on_gone, &gone, &watch));
    ASSERT_EQ(kill(sandbox_pid(bad), SIGUSR1), 0);
    fixture_wait_state(&f, id, SANDBOX_FAILED);
    ASSERT_TRUE(gone.called);
    ASSERT_EQ(gone.reason.code, ERR_GUEST_PROTOCOL);
    ASSERT_TRUE(!sandbox_console(bad, &err));
    ASSERT_EQ(err.code, ERR_SANDBOX_FAILED);
    watch = sandbox_watch_free(watch);
    fixture_ping(&f, good);
    fixture_end(&f);
}

TEST(dropped_connection_is_made_again_once)
{
    struct fixture f;
    struct sandbox *sb;
    struct sandbox_watch *watch = NULL;
    struct gone gone = {0};
    char id[32];
    uint64_t end;

    fixture_begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    (void)snprintf(id, sizeof(id), "%s", sandbox_id(sb));
    ASSERT_OK(sandbox_watch_new(sb, on_gone, &gone, &watch));
    ASSERT_EQ(kill(sandbox_pid(sb), SIGUSR2), 0);
    fixture_wait(&f, &gone.called);
    watch = sandbox_watch_free(watch);
    for (end = clock_now_usec() + 5 * USEC_PER_SEC; !sandbox_console(sb, NULL);) {
        ASSERT_TRUE(clock_now_usec() < end);
        ASSERT_OK(loop_run_once(f.loop, 10 * USEC_PER_MSEC));
    }
    ASSERT_EQ(sandbox_get_state(sb), SANDBOX_RUNNING);
    fixture_ping(&f, sb);
    ASSERT_EQ(kill(sandbox_pid(sb), SIGUSR2), 0); /* too soon after the first */
    fixture_wait_state(&f, id, SANDBOX_FAILED);
    fixture_end(&f);
}

TEST(killed_vmm_is_noticed)
{
    struct fixture f;
    struct sandbox *sb;
    struct error err = {0};
    char id[32];

    fixture_begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    (void)snprintf(id, sizeof(id), "%s", sandbox_id(sb));
    ASSERT_EQ(kill(sandbox_pid(sb), SIGKILL), 0);
    fixture_wait_state(&f, id, SANDBOX_FAILED);
    ASSERT_TRUE(!sandbox_console(sb, &err));
    ASSERT_TRUE(strstr(err.text, "its VMM ended"));
    fixture_end(&f);
}

static void on_powered_off(struct console *c, const struct error *err, void *userdata)
{
    (void)c;
    (void)err;
    (void)userdata;
}

TEST(guest_that_powers_off_is_stopped)
{
    struct fixture f;
    struct sandbox *sb;
    struct error err = {0};
    char id[32];

    fixture_begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    (void)snprintf(id, sizeof(id), "%s", sandbox_id(sb));
    ASSERT_OK(console_power_off(sandbox_console(sb, NULL), 100, clock_now_usec() + 5 * USEC_PER_SEC,
                                on_powered_off, NULL));
    fixture_wait_state(&f, id, SANDBOX_STOPPED);
    ASSERT_TRUE(!sandbox_console(sb, &err));
    ASSERT_EQ(err.code, ERR_SANDBOX_NOT_RUNNING);
    fixture_end(&f);
}

TEST(removal_tells_those_who_watch)
{
    struct fixture f;
    struct sandbox *sb;
    struct sandbox_watch *watch = NULL;
    struct gone gone = {0};

    fixture_begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    ASSERT_OK(sandbox_watch_new(sb, on_gone, &gone, &watch));
    fixture_remove(&f, sb);
    ASSERT_TRUE(gone.called);
    watch = sandbox_watch_free(watch);
    fixture_end(&f);
}
