#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness/test.h"
#include "session-seen.h"

/* A command that takes too long, in all its stubbornness. */

static void expect_timeout(struct fixture *f, const char *text, const char *out, bool exited,
                           bool lost)
{
    struct seen_view seen;

    run_start(f, &seen, text, 200, false);
    run_wait(f, &seen);
    if (!seen.result.timed_out || seen.result.exit_code != 124 ||
        seen.result.shell_exited != exited || seen.result.state_lost != lost ||
        strcmp(buf_string(&seen.out[1]), out) != 0)
        test_fail(__FILE__, __LINE__, "'%s': timed out %d, code %d, exited %d, lost %d, '%s' '%s'",
                  text, seen.result.timed_out, seen.result.exit_code, seen.result.shell_exited,
                  seen.result.state_lost, buf_string(&seen.out[1]), buf_string(&seen.out[2]));
    seen_view_done(&seen);
}

/* bash ends with an interrupt and is replaced; dash and ash go on. Neither loses its state. */
TEST(timeout_interrupts_and_keeps_the_state)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        bool bash = shell->list[0].bash;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "x=kept; f() { echo f; }; sleep 60 & job=$!", "", 0);
        EXPECT(&f, "set -u; set -- a 'b c'; trap 'echo usr1' USR1", "", 0);
        expect_timeout(&f, "echo part; sleep 100; echo never", "part\n", bash, false);
        EXPECT(&f, "f; echo $x \"$2\"; kill -0 $job && echo alive", "f\nkept b c\nalive\n", 0);
        EXPECT(&f, "kill -USR1 $$; case $- in *u*) echo u;; esac", "usr1\nu\n", 0);
        expect_timeout(&f, "sh -c 'trap \"\" INT; echo deaf; sleep 100'\necho never", "deaf\n",
                       bash, false);
        EXPECT(&f, "echo $x; kill -0 $job && echo alive; kill $job", "kept\nalive\n", 0);
        EXPECT(&f, "(exit 124)", "", 124);
        fixture_stop(&f);
    }
}

TEST(timeout_of_a_shell_loop_keeps_the_state)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "x=kept; cd /usr; trap 'echo bye' EXIT", "", 0);
        expect_timeout(&f, "echo spin; while :; do :; done; echo never", "spin\n",
                       shell->list[0].bash, false);
        EXPECT(&f, "echo $x; pwd", "kept\n/usr\n", 0);
        EXPECT(&f, "exit 3", "bye\n", 3);
        fixture_stop(&f);
    }
}

TEST(timeout_of_a_deaf_shell_kills_it)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;

        fixture_start(&f, shell, NULL);
        expect_timeout(&f, "trap '' INT; while :; do sleep 100; done", "", true, true);
        EXPECT(&f, "echo back", "back\n", 0);
        fixture_stop(&f);
    }
}

TEST(timeout_of_a_replaced_shell)
{
    struct fixture f;

    fixture_start(&f, NULL, NULL);
    expect_timeout(&f, "exec sleep 100", "", true, true);
    EXPECT(&f, "echo back", "back\n", 0);
    fixture_stop(&f);
}

TEST(timeout_of_a_command_whose_output_nobody_takes)
{
    struct fixture f;
    struct seen_view seen;

    fixture_start(&f, NULL, NULL);
    run_start(&f, &seen, "yes", 300, false);
    seen.hold = true;
    GUEST_WAIT(&f.guest, f.state == SESSION_RUNNING);
    GUEST_WAIT(&f.guest, f.state == SESSION_IDLE);
    seen.hold = false;
    session_view_consumed(seen.v, 1, seen.out[1].size);
    run_wait(&f, &seen);
    ASSERT_TRUE(seen.result.timed_out);
    ASSERT_TRUE(seen.out[1].size >= EXEC_WINDOW);
    ASSERT_EQ(seen.out[1].size, seen.result.end[1] - seen.result.start[1]);
    seen_view_done(&seen);
    EXPECT(&f, "echo next", "next\n", 0);
    fixture_stop(&f);
}

TEST(timeout_of_a_command_without_a_view)
{
    struct fixture f;
    struct seen_view seen;

    fixture_start(&f, NULL, NULL);
    run_start(&f, &seen, "yes", 300, false);
    GUEST_WAIT(&f.guest, seen.started);
    seen_view_done(&seen);
    GUEST_WAIT(&f.guest, f.state == SESSION_IDLE);
    ASSERT_EQ(f.record.command, 1);
    GUEST_WAIT(&f.guest, !f.record.running);
    EXPECT(&f, "echo next", "next\n", 0);
    fixture_stop(&f);
}
