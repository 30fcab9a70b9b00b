#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness/test.h"
#include "session-seen.h"

/* Views: input, attaching, queueing, flow; and the session under a new daemon. */

static void attach(struct fixture *f, struct seen_view *seen, uint64_t command,
                   const uint64_t from[3])
{
    struct error err = {0};

    seen_view_init(seen);
    if (session_attach(f->session, command, from, &seen_view_callbacks, seen, &seen->v, &err) < 0)
        test_fail(__FILE__, __LINE__, "session_attach: %s", err.text);
}

static void write_all(struct fixture *f, struct seen_view *seen, const void *data, size_t size)
{
    const uint8_t *p = data;

    while (size > 0) {
        size_t n;

        GUEST_WAIT(&f->guest, session_view_writable(seen->v) > 0);
        n = MIN(session_view_writable(seen->v), size);
        ASSERT_OK(session_view_write(seen->v, p, n));
        p += n;
        size -= n;
    }
}

/* ---- input ---- */

TEST(stdin_is_fed_and_ended)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct seen_view seen;

        fixture_start(&f, shell, NULL);
        run_start(&f, &seen, "read a; echo \"<$a>\"; cat", 0, true);
        write_all(&f, &seen, "one\ntwo\nthree", 13);
        ASSERT_OK(session_view_close_stdin(seen.v));
        run_wait(&f, &seen);
        ASSERT_STREQ(buf_string(&seen.out[1]), "<one>\ntwo\nthree");
        ASSERT_ERR(session_view_write(seen.v, "x", 1), EPIPE);
        seen_view_done(&seen);
        EXPECT(&f, "cat; read x; echo $?", "1\n", 0);
        fixture_stop(&f);
    }
}

TEST(stdin_leaves_no_file_behind)
{
    struct fixture f;
    struct seen_view seen;
    char path[64];

    fixture_start(&f, NULL, NULL);
    run_start(&f, &seen, "readlink /proc/self/fd/0", 0, true);
    run_wait(&f, &seen);
    ASSERT_TRUE(seen.out[1].size > 0);
    (void)snprintf(path, sizeof(path), "%.*s", (int)strcspn(buf_string(&seen.out[1]), " \n"),
                   buf_string(&seen.out[1]));
    ASSERT_TRUE(strstr(path, "/hearth-stdin-"));
    GUEST_WAIT(&f.guest, LIST_EMPTY(&f.session->removals));
    ASSERT_TRUE(access(path, F_OK) < 0);
    seen_view_done(&seen);
    fixture_stop(&f);
}

TEST(stdin_may_be_large)
{
    struct fixture f;
    struct seen_view seen;
    size_t size = 3u << 20;
    uint8_t *data = malloc(size);

    ASSERT_TRUE(data);
    for (size_t i = 0; i < size; i++)
        data[i] = (uint8_t)(i * 31 >> 7);
    fixture_start(&f, NULL, NULL);
    run_start(&f, &seen, "cat", 0, true);
    write_all(&f, &seen, data, size);
    ASSERT_OK(session_view_close_stdin(seen.v));
    run_wait(&f, &seen);
    ASSERT_EQ(seen.out[1].size, size);
    ASSERT_MEMEQ(buf_data(&seen.out[1]), data, size);
    seen_view_done(&seen);
    fixture_stop(&f);
    free(data);
}

TEST(stdin_nobody_reads_does_not_hold_up_the_end)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct seen_view seen;

        fixture_start(&f, shell, NULL);
        run_start(&f, &seen, "echo done", 0, true);
        run_wait(&f, &seen);
        ASSERT_STREQ(buf_string(&seen.out[1]), "done\n");
        seen_view_done(&seen);
        run_start(&f, &seen, "head -c 3; sleep 0.1", 0, true);
        ASSERT_OK(session_view_close_stdin(seen.v));
        run_wait(&f, &seen);
        ASSERT_EQ(seen.out[1].size, 0);
        seen_view_done(&seen);
        EXPECT(&f, "echo next", "next\n", 0);
        fixture_stop(&f);
    }
}

TEST(signals_reach_what_the_command_started)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct seen_view seen;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "sleep 60 & job=$!", "", 0);
        run_start(&f, &seen, "sh -c 'echo up; exec sleep 100'", 0, false);
        GUEST_WAIT(&f.guest, seen.out[1].size == 3);
        ASSERT_OK(session_view_signal(seen.v, SIGTERM));
        run_wait(&f, &seen);
        ASSERT_EQ(seen.result.exit_code, 143);
        ASSERT_FALSE(seen.result.timed_out);
        ASSERT_ERR(session_view_signal(seen.v, SIGTERM), ESRCH);
        seen_view_done(&seen);
        run_start(&f, &seen, "sh -c 'echo up; exec sleep 100'", 0, false);
        GUEST_WAIT(&f.guest, seen.out[1].size == 3);
        ASSERT_OK(session_view_signal(seen.v, SIGKILL));
        run_wait(&f, &seen);
        ASSERT_EQ(seen.result.exit_code, 137);
        ASSERT_FALSE(seen.result.shell_exited);
        seen_view_done(&seen);
        EXPECT(&f, "kill $job && echo alive", "alive\n", 0);
        fixture_stop(&f);
    }
}

TEST(an_interrupt_ends_the_whole_command)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct seen_view seen;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "v=kept; cd /usr; f() { sh -c 'echo up; exec sleep 100'; echo never; }", "", 0);
        run_start(&f, &seen, "for i in 1 2; do f; done; echo never\necho never", 0, false);
        GUEST_WAIT(&f.guest, seen.out[1].size == 3);
        ASSERT_OK(session_view_signal(seen.v, SIGINT));
        run_wait(&f, &seen);
        ASSERT_STREQ(buf_string(&seen.out[1]), "up\n");
        ASSERT_EQ(seen.out[2].size, 0);
        ASSERT_EQ(seen.result.exit_code, 130);
        ASSERT_FALSE(seen.result.timed_out || seen.result.state_lost);
        seen_view_done(&seen);
        EXPECT(&f, "echo $v; pwd; echo err >&2", "kept\n/usr\n", 0);
        fixture_stop(&f);
    }
}

/* ---- queue ---- */

TEST(commands_wait_in_a_bounded_queue)
{
    struct session_run_options options = {.text = "n=$((n+1)); echo $n"};
    static struct seen_view seen[SESSION_QUEUE_MAX + 1];
    struct error err = {0};
    struct fixture f;

    fixture_start(&f, NULL, NULL);
    for (size_t i = 0; i < SESSION_QUEUE_MAX; i++) {
        seen_view_init(&seen[i]);
        ASSERT_OK(
            session_run(f.session, &options, &seen_view_callbacks, &seen[i], &seen[i].v, &err));
    }
    seen_view_init(&seen[SESSION_QUEUE_MAX]);
    ASSERT_ERR(session_run(f.session, &options, &seen_view_callbacks, &seen[SESSION_QUEUE_MAX],
                           &seen[SESSION_QUEUE_MAX].v, &err),
               EAGAIN);
    ASSERT_EQ(err.code, ERR_TOO_MANY);
    for (size_t i = 0; i < SESSION_QUEUE_MAX; i++) {
        char want[16];

        run_wait(&f, &seen[i]);
        (void)snprintf(want, sizeof(want), "%zu\n", i + 1);
        ASSERT_STREQ(buf_string(&seen[i].out[1]), want);
        ASSERT_EQ(session_view_command(seen[i].v), i + 1);
        seen_view_done(&seen[i]);
    }
    fixture_stop(&f);
}

TEST(a_queued_command_runs_after_the_shell_was_replaced)
{
    struct fixture f;
    struct seen_view a, b, c;

    fixture_start(&f, NULL, NULL);
    run_start(&f, &a, "export Z=9; exit 2", 0, false);
    run_start(&f, &b, "echo $Z; exec true", 0, false);
    run_start(&f, &c, "echo end", 0, false);
    run_wait(&f, &a);
    run_wait(&f, &b);
    run_wait(&f, &c);
    ASSERT_EQ(a.result.exit_code, 2);
    ASSERT_STREQ(buf_string(&b.out[1]), "9\n");
    ASSERT_STREQ(buf_string(&c.out[1]), "end\n");
    seen_view_done(&a);
    seen_view_done(&b);
    seen_view_done(&c);
    fixture_stop(&f);
}

/* ---- attaching ---- */

TEST(a_second_view_sees_all_from_the_start)
{
    struct fixture f;
    struct seen_view a, b, c;
    uint64_t from[3] = {0};

    fixture_start(&f, NULL, NULL);
    EXPECT(&f, "echo earlier; echo e >&2", "earlier\n", 0);
    run_start(&f, &a, "echo one; echo err >&2; read x; echo two", 0, true);
    GUEST_WAIT(&f.guest, a.out[1].size == 4 && a.out[2].size == 4);
    attach(&f, &b, 0, NULL);
    from[1] = a.start[1] + 2;
    attach(&f, &c, 2, from);
    GUEST_WAIT(&f.guest, b.out[1].size == 4 && b.out[2].size == 4);
    write_all(&f, &a, "\n", 1);
    run_wait(&f, &a);
    run_wait(&f, &b);
    run_wait(&f, &c);
    ASSERT_STREQ(buf_string(&a.out[1]), "one\ntwo\n");
    ASSERT_STREQ(buf_string(&b.out[1]), "one\ntwo\n");
    ASSERT_STREQ(buf_string(&b.out[2]), "err\n");
    ASSERT_STREQ(buf_string(&c.out[1]), "e\ntwo\n");
    ASSERT_EQ(b.result.exit_code, 0);
    seen_view_done(&a);
    seen_view_done(&b);
    seen_view_done(&c);
    fixture_stop(&f);
}

struct in_the_middle {
    struct seen_view first; /* the callbacks' userdata */
    struct seen_view second;
    struct fixture *f; /* weak */
};

static void attach_in_the_middle(struct session_view *v, int stream, uint64_t offset,
                                 const uint8_t *data, size_t size, void *userdata)
{
    struct in_the_middle *m = userdata;

    seen_view_callbacks.on_output(v, stream, offset, data, size, &m->first);
    if (!m->second.v && strstr(buf_string(&m->first.out[1]), "two"))
        attach(m->f, &m->second, 0, NULL);
}

/* The feed is in the midst of handing out bytes, and the view wants those before them. */
TEST(a_view_that_comes_with_output_sees_all_before_it)
{
    struct session_run_options options = {.text = "echo one; read x; echo two; read x; echo three",
                                          .with_stdin = true};
    struct session_view_callbacks cb = seen_view_callbacks;
    struct in_the_middle m = {0};
    struct error err = {0};
    struct fixture f;

    fixture_start(&f, NULL, NULL);
    m.f = &f;
    cb.on_output = attach_in_the_middle;
    seen_view_init(&m.first);
    ASSERT_OK(session_run(f.session, &options, &cb, &m, &m.first.v, &err));
    GUEST_WAIT(&f.guest, m.first.out[1].size == 4);
    write_all(&f, &m.first, "\n", 1);
    GUEST_WAIT(&f.guest, m.second.out[1].size == 8);
    write_all(&f, &m.first, "\n", 1);
    run_wait(&f, &m.first);
    run_wait(&f, &m.second);
    ASSERT_STREQ(buf_string(&m.first.out[1]), "one\ntwo\nthree\n");
    ASSERT_STREQ(buf_string(&m.second.out[1]), "one\ntwo\nthree\n");
    ASSERT_FALSE(m.first.gap || m.second.gap);
    seen_view_done(&m.first);
    seen_view_done(&m.second);
    fixture_stop(&f);
}

TEST(a_finished_command_can_be_seen_again)
{
    struct error err = {0};
    struct fixture f;
    struct seen_view seen;

    fixture_start(&f, NULL, NULL);
    EXPECT(&f, "echo first; (exit 5)", "first\n", 5);
    EXPECT(&f, "echo second; exit 6", "second\n", 6);
    EXPECT(&f, "echo third", "third\n", 0);
    attach(&f, &seen, 2, NULL);
    run_wait(&f, &seen);
    ASSERT_STREQ(buf_string(&seen.out[1]), "second\n");
    ASSERT_EQ(seen.result.exit_code, 6);
    ASSERT_TRUE(seen.result.shell_exited);
    seen_view_done(&seen);
    attach(&f, &seen, 1, NULL);
    run_wait(&f, &seen);
    ASSERT_STREQ(buf_string(&seen.out[1]), "first\n");
    ASSERT_EQ(seen.result.exit_code, 5);
    seen_view_done(&seen);
    attach(&f, &seen, 0, NULL);
    run_wait(&f, &seen);
    ASSERT_STREQ(buf_string(&seen.out[1]), "third\n");
    seen_view_done(&seen);
    EXPECT(&f, "echo fourth", "fourth\n", 0);
    seen_view_init(&seen);
    ASSERT_ERR(session_attach(f.session, 99, NULL, &seen_view_callbacks, &seen, &seen.v, &err),
               ENOENT);
    seen_view_done(&seen);
    fixture_stop(&f);
}

TEST(output_without_a_view_waits_in_the_guest)
{
    struct fixture f;
    struct seen_view seen;

    fixture_start(&f, NULL, NULL);
    run_start(&f, &seen, "head -c 700000 /dev/zero; echo end", 0, false);
    GUEST_WAIT(&f.guest, seen.started);
    seen_view_done(&seen);
    GUEST_WAIT(&f.guest, f.state == SESSION_IDLE);
    attach(&f, &seen, 0, NULL);
    run_wait(&f, &seen);
    ASSERT_EQ(seen.out[1].size, 700004);
    ASSERT_FALSE(seen.gap);
    seen_view_done(&seen);
    fixture_stop(&f);
}

TEST(a_command_behind_one_without_a_view_gets_its_turn)
{
    struct fixture f;
    struct seen_view seen;

    fixture_start(&f, NULL, NULL);
    run_start(&f, &seen, "head -c 9000000 /dev/zero; echo end", 0, false);
    GUEST_WAIT(&f.guest, seen.started);
    seen_view_done(&seen);
    EXPECT(&f, "echo next", "next\n", 0);
    fixture_stop(&f);
}

TEST(a_slow_view_stalls_the_command_and_loses_nothing)
{
    struct fixture f;
    struct seen_view slow, fast;

    fixture_start(&f, NULL, NULL);
    run_start(&f, &slow, "head -c 5000000 /dev/zero; echo end", 0, false);
    slow.hold = true;
    GUEST_WAIT(&f.guest, slow.out[1].size == EXEC_WINDOW);
    attach(&f, &fast, 0, NULL);
    GUEST_WAIT(&f.guest, fast.out[1].size == EXEC_WINDOW);
    for (int i = 0; i < 5; i++)
        guest_turn(&f.guest);
    ASSERT_EQ(fast.out[1].size, EXEC_WINDOW);
    slow.hold = false;
    session_view_consumed(slow.v, 1, slow.out[1].size);
    run_wait(&f, &slow);
    run_wait(&f, &fast);
    ASSERT_EQ(slow.out[1].size, 5000004);
    ASSERT_EQ(fast.out[1].size, 5000004);
    ASSERT_FALSE(slow.gap || fast.gap);
    seen_view_done(&slow);
    seen_view_done(&fast);
    fixture_stop(&f);
}

TEST(views_and_sessions_may_be_freed_inside_callbacks)
{
    struct fixture f;
    struct seen_view a, b;

    fixture_start(&f, NULL, NULL);
    run_start(&f, &a, "echo a", 0, false);
    a.free_in_output = true;
    run_start(&f, &b, "echo b", 0, false);
    b.free_in_result = true;
    run_wait(&f, &b);
    ASSERT_FALSE(a.v);
    ASSERT_FALSE(b.v);
    ASSERT_EQ(a.done, 0);
    seen_view_done(&a);
    seen_view_done(&b);
    fixture_stop(&f);
}

TEST(a_view_outlives_its_session_and_is_told)
{
    struct fixture f;
    struct seen_view a;

    fixture_start(&f, NULL, NULL);
    run_start(&f, &a, "sleep 100", 0, false);
    GUEST_WAIT(&f.guest, a.started);
    f.session = session_free(f.session);
    run_wait(&f, &a);
    ASSERT_EQ(a.err.code, ERR_SESSION_DEAD);
    ASSERT_EQ(session_view_writable(a.v), 0);
    ASSERT_ERR(session_view_signal(a.v, SIGINT), ESRCH);
    seen_view_done(&a);
    fixture_stop(&f);
}

/* ---- life ---- */

static void on_killed(struct console *c, const struct error *err, void *userdata)
{
    struct fixture *f = userdata;

    (void)c;
    ASSERT_FALSE(err);
    f->killed++;
    f->session = session_free(f->session);
}

TEST(kill_ends_the_shell_and_all_it_started)
{
    struct fixture f;
    struct seen_view seen;
    char path[32];
    int pid;

    fixture_start(&f, NULL, NULL);
    run(&f, &seen, "sleep 100 & echo $!");
    pid = (int)strtol(buf_string(&seen.out[1]), NULL, 10);
    ASSERT_TRUE(pid > 1);
    seen_view_done(&seen);
    run_start(&f, &seen, "yes", 0, false);
    seen.hold = true;
    GUEST_WAIT(&f.guest, seen.out[1].size > EXEC_WINDOW / 2);
    ASSERT_OK(session_kill(f.session, on_killed, &f));
    GUEST_WAIT(&f.guest, f.killed);
    ASSERT_EQ(f.state, SESSION_DEAD);
    ASSERT_EQ(f.record.process_id, 0);
    run_wait(&f, &seen);
    seen_view_done(&seen);
    (void)snprintf(path, sizeof(path), "/proc/%d/cmdline", pid);
    GUEST_WAIT(&f.guest, access(path, F_OK) != 0 || kill(pid, 0) == 0);
    fixture_stop(&f);
}

TEST(an_image_without_a_shell_is_told)
{
    static const struct shell_choice none = {.name = "none",
                                             .list = {{.path = "/nonexistent/sh"}, {.path = NULL}}};
    struct session_run_options options = {.text = "echo"};
    struct error err = {0};
    struct fixture f;
    struct seen_view seen;

    fixture_start(&f, &none, NULL);
    run_start(&f, &seen, "echo", 0, false);
    run_wait(&f, &seen);
    ASSERT_EQ(seen.err.code, ERR_NO_SHELL);
    ASSERT_EQ(f.state, SESSION_DEAD);
    ASSERT_EQ(f.err.code, ERR_NO_SHELL);
    seen_view_done(&seen);
    ASSERT_ERR(session_run(f.session, &options, &seen_view_callbacks, &seen, &seen.v, &err), EPIPE);
    fixture_stop(&f);
}

TEST(a_shell_that_does_not_work_is_passed_over)
{
    static const struct session_shell list[] = {{.path = "/bin/false"},
                                                {.path = "/nonexistent/bash", .bash = true},
                                                {.path = "/bin/sh"},
                                                {.path = NULL}};
    struct fixture f;

    fixture_start(&f, NULL, NULL);
    f.session->shells = list;
    f.session = session_free(f.session);
    session_set_shells_for_test(list);
    fixture_adopt(&f, NULL);
    EXPECT(&f, "echo works", "works\n", 0);
    fixture_stop(&f);
}

TEST(a_session_of_an_unknown_user_or_place_is_refused)
{
    struct session_spec user = {.name = "u", .user = "no-such-user"};
    struct session_spec cwd = {.name = "c", .cwd = "/no/such/place"};
    struct fixture f;

    fixture_start(&f, NULL, &user);
    GUEST_WAIT(&f.guest, f.state == SESSION_DEAD);
    ASSERT_EQ(f.err.code, ERR_USER_NOT_FOUND);
    fixture_stop(&f);
    fixture_start(&f, NULL, &cwd);
    GUEST_WAIT(&f.guest, f.state == SESSION_DEAD);
    ASSERT_EQ(f.err.code, ERR_CWD_NOT_FOUND);
    fixture_stop(&f);
}
