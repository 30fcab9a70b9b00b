#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness/test.h"
#include "session-seen.h"

/* Ends of the shell, and what is left after them. */

static void expect_exit(struct fixture *f, const char *text, int exit_code, bool lost)
{
    struct seen_view seen;

    run(f, &seen, text);
    if (seen.result.exit_code != exit_code || !seen.result.shell_exited ||
        seen.result.state_lost != lost)
        test_fail(__FILE__, __LINE__, "'%s' gave %d, exited %d, lost %d ('%s', '%s')", text,
                  seen.result.exit_code, seen.result.shell_exited, seen.result.state_lost,
                  buf_string(&seen.out[1]), buf_string(&seen.out[2]));
    seen_view_done(&seen);
}

TEST(exit_ends_the_shell_and_the_next_goes_on)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "export A='a  b\nc'; B=\"it's\"; cd /usr; umask 027; IFS=,", "", 0);
        EXPECT(&f, "g() { echo \"$B\"; }; p=$$", "", 0);
        expect_exit(&f, "exit 7", 7, false);
        EXPECT(&f, "echo \"$A\"; echo \"$B$IFS\"; pwd; umask; test $p != $$",
               "a  b\nc\nit's,\n/usr\n0027\n", 0);
        EXPECT(&f, "sh -c 'echo \"$A\"'; env | grep -c __hearth", "a  b\nc\n0\n", 1);
        if (shell->list[0].bash)
            EXPECT(&f, "g", "it's\n", 0);
        expect_exit(&f, "exit", shell->list[0].bash ? 0 : 1, false);
        EXPECT(&f, "echo \"$B\"", "it's\n", 0);
        fixture_stop(&f);
    }
}

TEST(exit_inside_functions_and_loops_keeps_the_state)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "x=kept; f() { exit 3; }", "", 0);
        expect_exit(&f, "f", 3, false);
        EXPECT(&f, "f() { for i in 1 2; do eval 'exit 4'; done; }", "", 0);
        expect_exit(&f, "while :; do { f; } >/dev/null; done", 4, false);
        EXPECT(&f, "echo $x", "kept\n", 0);
        fixture_stop(&f);
    }
}

TEST(exit_in_the_middle_keeps_the_output_before)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct seen_view seen;

        fixture_start(&f, shell, NULL);
        run(&f, &seen, "echo before; exit 3; echo after");
        ASSERT_STREQ(buf_string(&seen.out[1]), "before\n");
        ASSERT_EQ(seen.result.exit_code, 3);
        seen_view_done(&seen);
        EXPECT(&f, "(exit 9); echo $?", "9\n", 0);
        EXPECT(&f, "echo one", "one\n", 0);
        fixture_stop(&f);
    }
}

TEST(errexit_ends_the_shell_at_the_failing_command)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "set -e; x=5; f() { false; echo notreached; }", "", 0);
        EXPECT(&f, "true; ! true", "", 1);
        EXPECT(&f, "false || echo or", "or\n", 0);
        EXPECT(&f, "false && true", "", 1);
        EXPECT(&f, "if false; then :; fi; echo fine", "fine\n", 0);
        expect_exit(&f, "f; echo no", 1, false);
        EXPECT(&f, "false; echo $x", "5\n", 0);
        expect_exit(&f, "set -e; (exit 33); echo no", 33, false);
        EXPECT(&f, "set -e; false && true", "", 1);
        fixture_stop(&f);
    }
}

TEST(unset_variables_under_nounset_are_reported)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct seen_view seen;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "set -u; x=5", "", 0);
        run(&f, &seen, "echo $nope; echo no");
        ASSERT_TRUE(seen.result.exit_code != 0);
        ASSERT_TRUE(strstr(buf_string(&seen.out[2]), "nope"));
        ASSERT_FALSE(seen.result.state_lost);
        seen_view_done(&seen);
        EXPECT(&f, "echo $x", "5\n", 0);
        fixture_stop(&f);
    }
}

TEST(exec_replaces_the_shell_and_loses_its_state)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct seen_view seen;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "x=1; cd /usr", "", 0);
        run(&f, &seen, "exec sh -c 'echo replaced; exit 5'");
        ASSERT_STREQ(buf_string(&seen.out[1]), "replaced\n");
        ASSERT_EQ(seen.result.exit_code, 5);
        ASSERT_TRUE(seen.result.shell_exited && seen.result.state_lost);
        seen_view_done(&seen);
        EXPECT(&f, "echo \"<$x>\"; pwd", "<>\n/usr\n", 0);
        fixture_stop(&f);
    }
}

TEST(a_killed_shell_is_replaced)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;

        fixture_start(&f, shell, NULL);
        expect_exit(&f, "kill -9 $$; sleep 5", 137, true);
        EXPECT(&f, "echo back", "back\n", 0);
        fixture_stop(&f);
    }
}

TEST(a_shell_that_dies_between_commands_is_told_by_the_next)
{
    struct fixture f;
    struct seen_view seen;

    fixture_start(&f, NULL, NULL);
    EXPECT(&f, "(sleep 0.2; kill -9 $$) & :", "", 0);
    GUEST_WAIT(&f.guest, f.state == SESSION_STARTING);
    run(&f, &seen, "echo on");
    ASSERT_STREQ(buf_string(&seen.out[1]), "on\n");
    ASSERT_TRUE(seen.result.state_lost);
    ASSERT_FALSE(seen.result.shell_exited);
    seen_view_done(&seen);
    run(&f, &seen, "echo on");
    ASSERT_FALSE(seen.result.state_lost);
    seen_view_done(&seen);
    fixture_stop(&f);
}

TEST(the_users_exit_trap_runs_and_state_is_kept)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct seen_view seen;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "x=kept; trap 'echo \"bye it'\\''s $?\"\n echo two' EXIT", "", 0);
        run(&f, &seen, "exit 4");
        ASSERT_STREQ(buf_string(&seen.out[1]), "bye it's 4\ntwo\n");
        ASSERT_EQ(seen.result.exit_code, 4);
        ASSERT_FALSE(seen.result.state_lost);
        seen_view_done(&seen);
        EXPECT(&f, "echo $x", "kept\n", 0);
        /* It ran once: the new shell has none. */
        EXPECT(&f, "trap 'echo no' EXIT", "", 0);
        EXPECT(&f, "trap - EXIT", "", 0);
        expect_exit(&f, "exit 6", 6, false);
        EXPECT(&f, "echo $x", "kept\n", 0);
        /* Set and used in one command: it runs, the state is lost and said to be. */
        run(&f, &seen, "trap 'echo bye' EXIT; exit 3");
        ASSERT_STREQ(buf_string(&seen.out[1]), "bye\n");
        ASSERT_EQ(seen.result.exit_code, 3);
        ASSERT_TRUE(seen.result.state_lost);
        seen_view_done(&seen);
        fixture_stop(&f);
    }
}

TEST(state_over_the_limit_is_lost_and_said_to_be)
{
    struct fixture f;

    fixture_start(&f, NULL, NULL);
    EXPECT(&f, "x=$(head -c 300000 /dev/zero | tr '\\0' x); echo ${#x}", "300000\n", 0);
    expect_exit(&f, "exit 1", 1, true);
    EXPECT(&f, "echo ${#x}", "0\n", 0);
    fixture_stop(&f);
}

/* ---- background ---- */

TEST(background_children_do_not_delay_the_end)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        uint64_t before = clock_now_usec();

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "sleep 30 & echo started", "started\n", 0);
        EXPECT(&f, "setsid sleep 30 & :", "", 0);
        EXPECT(&f, "kill $!; echo next", "next\n", 0);
        ASSERT_TRUE(clock_now_usec() - before < 10 * USEC_PER_SEC);
        fixture_stop(&f);
    }
}

TEST(output_of_the_background_belongs_to_the_next_command)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct session_feed *feed;
        struct seen_view seen;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "d=$(mktemp -d); mkfifo $d/p; { read x < $d/p; echo late; } & :", "", 0);
        EXPECT(&f, "{ sleep 0.1; echo > $d/p; } & :", "", 0);
        /* It has come, and nobody was there to take it. */
        feed = f.session->feed;
        GUEST_WAIT(&f.guest, feed->received[1] > f.session->mark[1]);
        ASSERT_EQ(feed->acked[1], f.session->mark[1]);
        run(&f, &seen, "rm -r $d; echo now");
        ASSERT_STREQ(buf_string(&seen.out[1]), "late\nnow\n");
        ASSERT_FALSE(seen.gap);
        seen_view_done(&seen);
        fixture_stop(&f);
    }
}
