#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness/test.h"
#include "session-seen.h"

/* The session under a new daemon, and on a terminal. */

static void attach(struct fixture *f, struct seen_view *seen)
{
    struct error err = {0};

    seen_view_init(seen);
    if (session_attach(f->session, 0, NULL, &seen_view_callbacks, seen, &seen->v, &err) < 0)
        test_fail(__FILE__, __LINE__, "session_attach: %s", err.text);
}

static void start_and_leave(struct fixture *f, const char *text, uint64_t timeout_msec)
{
    uint64_t last = f->record.command;
    struct seen_view seen;

    run_start(f, &seen, text, timeout_msec, false);
    GUEST_WAIT(&f->guest, f->record.command > last && f->record.started_wall_usec != 0);
    seen_view_done(&seen);
}

TEST(a_running_command_goes_on_under_a_new_daemon)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct seen_view seen;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "x=kept; cd /usr", "", 0);
        start_and_leave(&f, "echo before; sleep 0.5; echo after; (exit 3)", 0);
        fixture_adopt(&f, NULL);
        attach(&f, &seen);
        run_wait(&f, &seen);
        ASSERT_STREQ(buf_string(&seen.out[1]), "before\nafter\n");
        ASSERT_EQ(seen.result.exit_code, 3);
        ASSERT_EQ(seen.result.command, 2);
        ASSERT_STREQ(seen.cwd, "/usr");
        seen_view_done(&seen);
        EXPECT(&f, "echo $? $x", "3 kept\n", 0);
        fixture_stop(&f);
    }
}

TEST(a_command_that_ended_meanwhile_is_found)
{
    struct fixture f;
    struct seen_view seen;

    fixture_start(&f, NULL, NULL);
    start_and_leave(&f, "sleep 0.2; echo done; (exit 4)", 0);
    f.session = session_free(f.session);
    for (uint64_t end = clock_now_usec() + USEC_PER_SEC / 2; clock_now_usec() < end;)
        guest_turn(&f.guest);
    fixture_adopt(&f, NULL);
    GUEST_WAIT(&f.guest, f.state == SESSION_IDLE);
    attach(&f, &seen);
    run_wait(&f, &seen);
    ASSERT_STREQ(buf_string(&seen.out[1]), "done\n");
    ASSERT_EQ(seen.result.exit_code, 4);
    seen_view_done(&seen);
    fixture_stop(&f);
}

TEST(an_idle_session_is_adopted_again_and_again)
{
    struct fixture f;

    fixture_start(&f, NULL, NULL);
    EXPECT(&f, "n=1; echo $n", "1\n", 0);
    for (int i = 2; i < 6; i++) {
        char want[16];

        fixture_adopt(&f, NULL);
        (void)snprintf(want, sizeof(want), "%d\n", i);
        EXPECT(&f, "n=$((n+1)); echo $n", want, 0);
        ASSERT_EQ(f.record.command, i);
    }
    fixture_stop(&f);
}

TEST(the_timeout_goes_on_under_a_new_daemon)
{
    struct fixture f;
    struct seen_view seen;

    fixture_start(&f, NULL, NULL);
    start_and_leave(&f, "echo part; sleep 100", 400);
    fixture_adopt(&f, NULL);
    attach(&f, &seen);
    run_wait(&f, &seen);
    ASSERT_TRUE(seen.result.timed_out);
    ASSERT_STREQ(buf_string(&seen.out[1]), "part\n");
    ASSERT_TRUE(seen.result.duration_usec >= 400 * USEC_PER_MSEC);
    seen_view_done(&seen);
    fixture_stop(&f);
}

TEST(exit_seen_only_by_the_new_daemon)
{
    struct fixture f;
    struct seen_view seen;

    fixture_start(&f, NULL, NULL);
    EXPECT(&f, "x=kept", "", 0);
    start_and_leave(&f, "sleep 0.2; echo bye; exit 9", 0);
    fixture_adopt(&f, NULL);
    attach(&f, &seen);
    run_wait(&f, &seen);
    ASSERT_STREQ(buf_string(&seen.out[1]), "bye\n");
    ASSERT_EQ(seen.result.exit_code, 9);
    ASSERT_TRUE(seen.result.shell_exited);
    ASSERT_FALSE(seen.result.state_lost);
    seen_view_done(&seen);
    EXPECT(&f, "echo $x", "kept\n", 0);
    fixture_stop(&f);
}

TEST(a_shell_that_is_gone_is_replaced_and_told)
{
    struct fixture f;
    struct seen_view seen;

    fixture_start(&f, NULL, NULL);
    EXPECT(&f, "x=1", "", 0);
    GUEST_WAIT(&f.guest, !f.record.running);
    f.record.process_id = 4711;
    f.record.running = true;
    fixture_adopt(&f, NULL);
    attach(&f, &seen);
    run_wait(&f, &seen);
    ASSERT_EQ(seen.err.code, ERR_SESSION_DEAD);
    seen_view_done(&seen);
    EXPECT(&f, "echo \"<$x>\"", "<>\n", 0);
    fixture_stop(&f);
}

/* The old daemon died before the shell had the line, or in the middle of it. */
TEST(a_command_that_never_reached_the_shell_is_told)
{
    static const char *const sent[] = {"", "r 2 - 0 0 'echo half", "r 2 - 0 0 'echo a .'",
                                       ",0002      ", ",0002          \nr 2 - 0 ",
                                       /* What blocks may look like half-way. */
                                       " x=2;exit", " x=2", ":000", ":000400000"};

    FOR_EACH_SHELL(shell)
    {
        for (size_t i = 0; i < ARRAY_SIZE(sent); i++) {
            struct fixture f;
            struct seen_view seen;

            fixture_start(&f, shell, NULL);
            EXPECT(&f, "x=1", "", 0);
            GUEST_WAIT(&f.guest, !f.record.running);
            ASSERT_OK(exec_write(f.session->feed->exec, 3, sent[i], strlen(sent[i])));
            f.record.command = 2;
            f.record.running = true;
            f.record.started_wall_usec = 0;
            fixture_adopt(&f, NULL);
            attach(&f, &seen);
            run_wait(&f, &seen);
            ASSERT_EQ(seen.err.code, ERR_CANCELLED);
            seen_view_done(&seen);
            EXPECT(&f, "echo $x", "1\n", 0);
            fixture_stop(&f);
        }
    }
}

/* A VMM drops what a daemon sent just before it died: the next one sends the rest, once. */
TEST(the_rest_of_a_line_that_was_cut_off_is_sent)
{
    FOR_EACH_SHELL(shell)
    {
        bool bash = shell->list[0].bash;
        struct buf line;

        buf_init(&line, 4096);
        ASSERT_OK(session_script_run(&line, bash ? SESSION_TAKES_BLOCKS : SESSION_TAKES_LINES, 2,
                                     NULL, false, "x=$((x+1)); echo $x", 19));
        for (size_t cut = 0; cut <= line.size; cut += cut + 6 > line.size ? 1 : 6) {
            struct fixture f;
            struct seen_view seen;

            fixture_start(&f, shell, NULL);
            EXPECT(&f, "x=1", "", 0);
            GUEST_WAIT(&f.guest, !f.record.running);
            f.record.command = 2;
            f.record.running = true;
            f.record.started_wall_usec = clock_wall_usec();
            f.record.line = buf_data(&line);
            f.record.line_size = line.size;
            f.record.line_start = f.session->feed->written;
            ASSERT_OK(exec_write(f.session->feed->exec, 3, buf_data(&line), cut));
            fixture_adopt(&f, NULL);
            attach(&f, &seen);
            run_wait(&f, &seen);
            ASSERT_STREQ(buf_string(&seen.out[1]), "2\n");
            ASSERT_EQ(seen.result.exit_code, 0);
            seen_view_done(&seen);
            EXPECT(&f, "echo $x", "2\n", 0);
            fixture_stop(&f);
        }
        buf_done(&line);
    }
}

TEST(a_broken_console_ends_the_session_and_its_views)
{
    struct fixture f;
    struct seen_view seen;

    fixture_start(&f, NULL, NULL);
    run_start(&f, &seen, "sleep 3", 0, false);
    GUEST_WAIT(&f.guest, seen.started);
    ASSERT_OK(kill(f.guest.pid, SIGKILL));
    while (!seen.done)
        guest_turn(&f.guest);
    ASSERT_EQ(seen.err.code, ERR_GUEST_GONE);
    ASSERT_EQ(f.state, SESSION_DEAD);
    seen_view_done(&seen);
    f.session = session_free(f.session);
    f.guest.console = console_free(f.guest.console);
    f.guest.loop = loop_free(f.guest.loop);
    f.guest.fd = fd_close(f.guest.fd);
    ASSERT_EQ(waitpid(f.guest.pid, NULL, 0), f.guest.pid);
}

/* ---- terminal ---- */

static const struct session_spec tty = {.name = "t", .kind = SESSION_TTY, .rows = 30, .cols = 90};

TEST(a_terminal_session_keeps_state_and_has_a_terminal)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;

        fixture_start(&f, shell, &tty);
        EXPECT(&f, "x=1; cd /usr; test -t 0 && test -t 1 && echo tty", "tty\r\n", 0);
        EXPECT(&f, "echo $x; pwd; stty size", "1\r\n/usr\r\n30 90\r\n", 0);
        ASSERT_OK(session_resize(f.session, 40, 100));
        EXPECT(&f, "stty size", "40 100\r\n", 0);
        EXPECT(&f, "echo err >&2; (exit 5)", "err\r\n", 5);
        EXPECT(&f, "exit 3", "", 3);
        EXPECT(&f, "echo $x", "1\r\n", 0);
        fixture_stop(&f);
    }
}

TEST(input_of_a_terminal_session_reaches_the_command)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct seen_view seen;

        fixture_start(&f, shell, &tty);
        run_start(&f, &seen, "stty -echo; printf 'name? '; read n; echo \"<$n>\"", 0, false);
        GUEST_WAIT(&f.guest, strstr(buf_string(&seen.out[1]), "name? "));
        ASSERT_OK(session_view_write(seen.v, "joe\n", 4));
        run_wait(&f, &seen);
        ASSERT_STREQ(buf_string(&seen.out[1]), "name? <joe>\r\n");
        seen_view_done(&seen);
        fixture_stop(&f);
    }
}

TEST(interrupt_on_a_terminal_ends_the_command_not_the_shell)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct seen_view seen;

        fixture_start(&f, shell, &tty);
        EXPECT(&f, "x=1; stty -echo", "", 0);
        run_start(&f, &seen, "sh -c 'echo up; exec sleep 100'", 0, false);
        GUEST_WAIT(&f.guest, seen.out[1].size >= 4);
        ASSERT_OK(session_view_write(seen.v, "\3", 1));
        run_wait(&f, &seen);
        if (seen.result.exit_code != 130)
            test_fail(__FILE__, __LINE__, "%s: %d '%s'", shell->name, seen.result.exit_code,
                      buf_string(&seen.out[1]));
        seen_view_done(&seen);
        EXPECT(&f, "echo $x", "1\r\n", 0);
        run_start(&f, &seen, "sleep 100", 200, false);
        run_wait(&f, &seen);
        ASSERT_TRUE(seen.result.timed_out);
        ASSERT_FALSE(seen.result.state_lost);
        seen_view_done(&seen);
        EXPECT(&f, "echo $x", "1\r\n", 0);
        fixture_stop(&f);
    }
}
