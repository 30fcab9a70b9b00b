#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness/test.h"
#include "session-seen.h"

/* What a shell keeps and survives from one command to the next. */

TEST(state_persists)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "cd /tmp; export X=1; y='a  b'; f() { echo \"$X$y\"; }; umask 027", "", 0);
        EXPECT(&f, "f; pwd; umask; sh -c 'echo $X'", "1a  b\n/tmp\n0027\n1\n", 0);
        EXPECT(&f, "alias ll='echo LL'", "", 0);
        EXPECT(&f, "ll", "LL\n", 0);
        EXPECT(&f, "set -- a b c", "", 0);
        EXPECT(&f, "echo $# $3", "3 c\n", 0);
        EXPECT(&f, "p=$$", "", 0);
        EXPECT(&f, "test $p = $$ && echo same", "same\n", 0);
        EXPECT(&f, "exec 5>&1", "", 0);
        EXPECT(&f, "echo five >&5", "five\n", 0);
        fixture_stop(&f);
    }
}

TEST(status_of_the_last_command_is_seen_by_the_next)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "false", "", 1);
        EXPECT(&f, "echo $?", "1\n", 0);
        EXPECT(&f, "(exit 42)", "", 42);
        EXPECT(&f, "echo $?", "42\n", 0);
        EXPECT(&f, "exit_with() { return $1; }; exit_with 255", "", 255);
        EXPECT(&f, "sh -c 'kill -9 $$'", "", 137);
        EXPECT(&f, "(exit 124)", "", 124);
        EXPECT(&f, "nosuchcommand", "", 127);
        EXPECT(&f, "/etc/passwd", "", 126);
        fixture_stop(&f);
    }
}

TEST(every_status_is_told)
{
    struct fixture f;

    fixture_start(&f, NULL, NULL);
    for (int i = 0; i < 256; i++) {
        char text[32];

        (void)snprintf(text, sizeof(text), "(exit %d)", i);
        EXPECT(&f, text, "", i);
    }
    fixture_stop(&f);
}

TEST(streams_stay_apart_and_exact)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct seen_view seen;

        fixture_start(&f, shell, NULL);
        run(&f, &seen, "printf 'o\\0\\377'; printf 'e\\200' >&2; printf p");
        ASSERT_EQ(seen.out[1].size, 4);
        ASSERT_MEMEQ(buf_data(&seen.out[1]), "o\0\377p", 4);
        ASSERT_EQ(seen.out[2].size, 2);
        ASSERT_MEMEQ(buf_data(&seen.out[2]), "e\200", 2);
        ASSERT_EQ(seen.result.end[1] - seen.result.start[1], 4);
        ASSERT_EQ(seen.result.end[2] - seen.result.start[2], 2);
        seen_view_done(&seen);
        fixture_stop(&f);
    }
}

TEST(syntax_errors_do_not_end_the_shell)
{
    static const char *const bad[] = {"if",       "echo \"a",   "echo 'a\nb", "(",     ")",
                                      "fi",       "echo $(",    "case x in",  "a() {", "&& b",
                                      "echo a |", "echo \\\n|", "`"};

    FOR_EACH_SHELL(shell)
    {
        struct fixture f;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "x=kept", "", 0);
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
            struct seen_view seen;

            run(&f, &seen, bad[i]);
            ASSERT_TRUE(seen.result.exit_code > 0);
            ASSERT_FALSE(seen.result.shell_exited);
            ASSERT_TRUE(seen.out[2].size > 0);
            seen_view_done(&seen);
        }
        EXPECT(&f, "echo $x", "kept\n", 0);
        fixture_stop(&f);
    }
}

TEST(texts_of_any_form_arrive_unchanged)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "", "", 0);
        EXPECT(&f, "\n\n", "", 0);
        EXPECT(&f, "# only a comment", "", 0);
        EXPECT(&f, "echo a # b\necho c", "a\nc\n", 0);
        EXPECT(&f, "cat <<E\nhello $((1+1))\nE", "hello 2\n", 0);
        EXPECT(&f, "cat <<'E'\n'$x' \"`\\\nE\necho end", "'$x' \"`\\\nend\n", 0);
        EXPECT(&f, "printf '%s.' \"it's\" 'a\"b' c\\\\d \"\t\"", "it's.a\"b.c\\d.\t.", 0);
        EXPECT(&f, "printf %s 'a\nb\n\nc'", "a\nb\n\nc", 0);
        EXPECT(&f, "echo a \\\nb", "a b\n", 0);
        EXPECT(&f, "echo ' .'; echo 'r 1 - 0 0 '", " .\nr 1 - 0 0 \n", 0);
        EXPECT(&f, "set -e; cat <<E\nx\nE", "x\n", 0);
        fixture_stop(&f);
    }
}

TEST(every_byte_but_nul_can_be_in_a_text)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct seen_view seen;
        char text[600] = "printf %s '";
        uint8_t want[255];
        size_t n = strlen(text), w = 0;

        for (int i = 1; i < 256; i++) {
            want[w++] = (uint8_t)i;
            if (i == '\'')
                n += (size_t)snprintf(text + n, sizeof(text) - n, "'\\''");
            else
                text[n++] = (char)i;
        }
        text[n++] = '\'';
        text[n] = '\0';
        fixture_start(&f, shell, NULL);
        run(&f, &seen, text);
        ASSERT_EQ(seen.out[1].size, 255);
        ASSERT_MEMEQ(buf_data(&seen.out[1]), want, 255);
        seen_view_done(&seen);
        fixture_stop(&f);
    }
}

TEST(a_large_text_arrives)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        _cleanup_buf_ struct buf text;

        buf_init(&text, 1u << 20);
        ASSERT_OK(buf_append_string(&text, "x='"));
        while (text.size < 200 * 1024)
            ASSERT_OK(buf_append_string(&text, "0123456789abcde\n"));
        ASSERT_OK(buf_append_string(&text, "'; echo ${#x}"));
        fixture_start(&f, shell, NULL);
        EXPECT(&f, buf_string(&text), "204800\n", 0);
        EXPECT(&f, "echo ${#x}", "204800\n", 0);
        fixture_stop(&f);
    }
}

/* Around the lengths at which it goes to the shell in another way. */
TEST(texts_of_every_length_arrive)
{
    static const size_t ranges[][2] = {{1, 60}, {3985, 4002}};

    FOR_EACH_SHELL(shell)
    {
        struct fixture f;

        fixture_start(&f, shell, NULL);
        for (size_t k = 0; k < 2 * ARRAY_SIZE(ranges); k++) {
            const char *quote = k % 2 ? "'" : "";

            for (size_t n = ranges[k / 2][0]; n <= ranges[k / 2][1]; n++) {
                char text[4200], want[4200], word[4200];

                memset(word, 'x', n);
                word[n] = '\0';
                (void)snprintf(text, sizeof(text), "echo %s%.4100s%s", quote, word, quote);
                (void)snprintf(want, sizeof(want), "%.4100s\n", word);
                EXPECT(&f, text, want, 0);
            }
        }
        fixture_stop(&f);
    }
}

/* Whatever the state of the shell is, the next command finds it unchanged and is told right. */
TEST(commands_in_every_state_of_the_shell)
{
    static const char *const states[] = {
        ":",
        "false",
        "set -e",
        "set -a",
        "set -u",
        "set -f",
        "TMOUT=1",
        "set -o posix",
        "eval 'set -a'",
        "s=set; $s -a",
        "s=set; $s -e",
        "(exit 3)",
        "x='a b'\ntrue",
        "echo() { printf 'f\\n'; }; false",
    };

    FOR_EACH_SHELL(shell)
    {
        for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
            int status = strstr(states[i], "false") ? 1 : strstr(states[i], "exit") ? 3 : 0;
            char want[16];
            struct fixture f;
            struct seen_view seen;

            if (strstr(states[i], "posix") && !shell->list[0].bash)
                continue;
            fixture_start(&f, shell, NULL);
            EXPECT(&f, states[i], "", status);
            (void)snprintf(want, sizeof(want), "%d\n", status);
            EXPECT(&f, "printf '%s\\n' $?", want, 0);
            EXPECT(&f, ":", "", 0);
            EXPECT(&f, "y=1; f() { return 4; }", "", 0);
            EXPECT(&f, "f || printf '%s\\n' $y$?", "14\n", 0);
            EXPECT(&f, "break; continue", "", 0);
            EXPECT(&f, "env | grep -c __hearth || :", "0\n", 0);
            run(&f, &seen, "echo (");
            ASSERT_TRUE(seen.result.exit_code > 0);
            ASSERT_EQ(seen.result.shell_exited, strstr(states[i], "-e") != NULL);
            ASSERT_FALSE(strstr(buf_string(&seen.out[2]), "#0"));
            seen_view_done(&seen);
            EXPECT(&f, "printf '%s\\n' $y", "1\n", 0);
            fixture_stop(&f);
        }
    }
}

TEST(a_limit_for_input_does_not_end_an_idle_shell)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "TMOUT=1; f() { echo $TMOUT; }", "", 0);
        EXPECT(&f, ":", "", 0);
        for (uint64_t end = clock_now_usec() + 3 * USEC_PER_SEC / 2; clock_now_usec() < end;)
            guest_turn(&f.guest);
        EXPECT(&f, "f", "1\n", 0);
        EXPECT(&f, "f 'x'", "1\n", 0);
        fixture_stop(&f);
    }
}

TEST(a_text_over_the_limit_is_refused)
{
    struct session_run_options options = {0};
    struct seen_view seen;
    struct fixture f;
    struct error err = {0};
    char *text = malloc(SESSION_TEXT_MAX + 2);

    ASSERT_TRUE(text);
    memset(text, ' ', SESSION_TEXT_MAX + 1);
    text[SESSION_TEXT_MAX + 1] = '\0';
    options.text = text;
    fixture_start(&f, NULL, NULL);
    seen_view_init(&seen);
    ASSERT_ERR(session_run(f.session, &options, &seen_view_callbacks, &seen, &seen.v, &err), E2BIG);
    ASSERT_EQ(err.code, ERR_LIMIT_EXCEEDED);
    seen_view_done(&seen);
    fixture_stop(&f);
    free(text);
}

TEST(options_and_variables_do_not_break_the_loop)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "set -f; IFS=:; PS1=x PS2=y PS4=z", "", 0);
        EXPECT(&f, "echo a b; printf '%s' \"$IFS\"", "a b\n:", 0);
        EXPECT(&f, "IFS=\"'0123456789 \t\"", "", 0);
        EXPECT(&f, "echo ok", "ok\n", 0);
        EXPECT(&f, "unset IFS; set +f; set -C; TMOUT=1; OPTIND=9; LC_ALL=C", "", 0);
        EXPECT(&f, "CDPATH=/usr; cd /; cd bin; pwd", "/usr/bin\n/usr/bin\n", 0);
        EXPECT(&f, "cd /; unset PWD", "", 0);
        EXPECT(&f, "echo ok", "ok\n", 0);
        EXPECT(&f, "trap 'echo usr1' USR1; kill -USR1 $$; :", "usr1\n", 0);
        EXPECT(&f, "break; echo no", "", 0);
        EXPECT(&f, "continue; echo no", "", 0);
        EXPECT(&f, "set -a; Q=1", "", 0);
        EXPECT(&f, "env | grep -c __hearth; env | grep ^Q=", "0\nQ=1\n", 0);
        EXPECT(&f, "set +a; read a b; echo \"<$a>\"", "<>\n", 0);
        fixture_stop(&f);
    }
}

TEST(functions_named_like_builtins_do_not_break_the_loop)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        bool bash = shell->list[0].bash;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "read() { echo R; }; printf() { echo P; }; cd() { echo C; }", "", 0);
        EXPECT(&f, "read; printf; cd", "R\nP\nC\n", 0);
        EXPECT(&f, "command() { echo N; }; umask() { echo U; }; true() { false; }", "", 0);
        EXPECT(&f, "echo ok; pwd >/dev/null", "ok\n", 0);
        if (bash) {
            EXPECT(&f, "eval() { :; }; set() { :; }; trap() { :; }; unset() { :; }", "", 0);
            EXPECT(&f, "return() { :; }; exit() { :; }; export() { :; }", "", 0);
            EXPECT(&f, "echo ok2", "ok2\n", 0);
        }
        fixture_stop(&f);
    }
}

TEST(trace_shows_the_users_commands_only)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct seen_view seen;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "set -x", "", 0);
        run(&f, &seen, "echo traced");
        ASSERT_TRUE(strstr(buf_string(&seen.out[2]), "echo traced"));
        ASSERT_FALSE(strstr(buf_string(&seen.out[2]), "hearth"));
        seen_view_done(&seen);
        EXPECT(&f, "if", "", 2);
        run(&f, &seen, "echo again");
        ASSERT_TRUE(strstr(buf_string(&seen.out[2]), "echo again"));
        ASSERT_FALSE(strstr(buf_string(&seen.out[2]), "hearth"));
        seen_view_done(&seen);
        EXPECT(&f, "set +x", "", 0);
        run(&f, &seen, "echo quiet");
        ASSERT_EQ(seen.out[2].size, 0);
        seen_view_done(&seen);
        fixture_stop(&f);
    }
}

TEST(control_pipes_are_closed_for_commands)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;

        fixture_start(&f, shell, NULL);
        EXPECT(&f, "(echo x >&3) 2>/dev/null || (echo x >&4) 2>/dev/null || echo none", "none\n",
               0);
        EXPECT(&f,
               "sh -c 'for i in /proc/$$/fd/*; do case ${i##*/} in 0|1|2) ;; "
               "*) readlink $i; esac; done' | grep -c pipe:",
               "0\n", 1);
        fixture_stop(&f);
    }
}

TEST(cwd_is_told)
{
    FOR_EACH_SHELL(shell)
    {
        struct fixture f;
        struct seen_view seen;

        fixture_start(&f, shell, NULL);
        run(&f, &seen, "cd /usr/bin");
        ASSERT_STREQ(seen.cwd, "/usr/bin");
        seen_view_done(&seen);
        run(&f, &seen, "d=$(mktemp -d); mkdir \"$d/a\nb\"; cd \"$d/a\nb\"; pwd");
        ASSERT_TRUE(strstr(seen.cwd, "/a\nb"));
        seen_view_done(&seen);
        run(&f, &seen, "rmdir \"$d/a\nb\"; rmdir $d");
        ASSERT_TRUE(strstr(seen.cwd, "/a\nb"));
        seen_view_done(&seen);
        EXPECT(&f, "echo still here", "still here\n", 0);
        EXPECT(&f, "cd /; pwd", "/\n", 0);
        fixture_stop(&f);
    }
}

TEST(session_starts_where_and_as_it_was_told)
{
    static char var[] = "GREETING=hello there";
    static char *env[] = {var, NULL};
    struct session_spec spec = {.name = "s", .cwd = "/usr", .env = env};
    struct fixture f;

    fixture_start(&f, NULL, &spec);
    EXPECT(&f, "pwd; echo $GREETING; echo $0", "/usr\nhello there\nbash\n", 0);
    fixture_stop(&f);
}
