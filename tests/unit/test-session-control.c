#include <errno.h>
#include <string.h>

#include "harness/test.h"
#include "host/session-control.h"
#include "host/session-script.h"

/* The decoder of the shell's private pipe, and the texts that go the other way. */

static void put_record(struct buf *b, uint64_t out, uint64_t err, const char *data, size_t size)
{
    uint8_t header[SESSION_RECORD_HEADER] = {0};

    for (unsigned i = 0; i < 4; i++)
        header[i] = (uint8_t)(size >> (8 * i));
    for (unsigned i = 0; i < 8; i++) {
        header[8 + i] = (uint8_t)(out >> (8 * i));
        header[16 + i] = (uint8_t)(err >> (8 * i));
    }
    ASSERT_OK(buf_append(b, header, sizeof(header)));
    ASSERT_OK(buf_append(b, data, size));
}

struct messages {
    struct session_message list[8];
    char text[8][64];
    size_t count;
};

static void take(struct session_control *c, const uint8_t *data, size_t size, struct messages *to)
{
    struct session_message m;
    struct error err = {0};

    while (size > 0) {
        size_t used = 0;
        int r = session_control_take(c, c->offset, data, size, &used, &m, &err);

        ASSERT_OK(r);
        ASSERT_TRUE(used > 0 && used <= size);
        if (r > 0) {
            ASSERT_TRUE(to->count < 8);
            to->list[to->count] = m;
            memcpy(to->text[to->count], m.text, MIN(m.size + 1, sizeof(to->text[0])));
            to->count++;
        }
        data += used;
        size -= used;
    }
}

TEST(messages_are_found_however_they_are_split)
{
    static const char first[] = "T trap -- 'x' EXIT\n\0E 7 13";
    static const char second[] = "0 /a b\nc\0garbage\0E 8 0 \0P 9\0X 8 3 /";
    static const char third[] = "tmp\0export A='1'\n\0";
    _cleanup_buf_ struct buf b = {0};

    buf_init(&b, 4096);
    put_record(&b, 5, 6, first, sizeof(first) - 1);
    put_record(&b, 50, 60, second, sizeof(second) - 1);
    put_record(&b, 500, 600, third, sizeof(third) - 1);
    for (size_t split = 0; split <= b.size; split++) {
        struct session_control c;
        struct messages m = {0};

        session_control_init(&c);
        take(&c, buf_data(&b), split, &m);
        take(&c, buf_data(&b) + split, b.size - split, &m);
        ASSERT_EQ(m.count, 6);
        ASSERT_EQ(m.list[0].kind, SESSION_MESSAGE_TRAPS);
        ASSERT_STREQ(m.text[0], "trap -- 'x' EXIT\n");
        ASSERT_EQ(m.list[1].kind, SESSION_MESSAGE_END);
        ASSERT_EQ(m.list[1].number, 7);
        ASSERT_EQ(m.list[1].status, 130);
        ASSERT_STREQ(m.text[1], "/a b\nc");
        ASSERT_EQ(m.list[1].offset[1], 50);
        ASSERT_EQ(m.list[1].offset[2], 60);
        ASSERT_EQ(m.list[2].number, 8);
        ASSERT_STREQ(m.text[2], "");
        ASSERT_EQ(m.list[3].kind, SESSION_MESSAGE_ANSWER);
        ASSERT_EQ(m.list[3].number, 9);
        ASSERT_EQ(m.list[4].kind, SESSION_MESSAGE_EXIT);
        ASSERT_STREQ(m.text[4], "/tmp");
        ASSERT_EQ(m.list[5].kind, SESSION_MESSAGE_STATE);
        ASSERT_STREQ(m.text[5], "export A='1'\n");
        ASSERT_EQ(m.list[5].offset[1], 500);
        ASSERT_EQ(session_control_resume(&c), b.size);
        session_control_done(&c);
    }
}

TEST(a_successor_misses_no_message)
{
    static const char first[] = "E 1 0 /\0E 2 0", second[] = " /x\0";
    _cleanup_buf_ struct buf b = {0};
    struct messages m = {0}, again = {0};
    struct session_control c;
    uint64_t at;

    buf_init(&b, 4096);
    put_record(&b, 1, 0, first, sizeof(first) - 1);
    put_record(&b, 2, 0, second, sizeof(second) - 1);
    session_control_init(&c);
    take(&c, buf_data(&b), b.size - 1, &m);
    ASSERT_EQ(m.count, 1);
    at = session_control_resume(&c);
    session_control_reset(&c, at);
    take(&c, buf_data(&b) + at, b.size - at, &again);
    ASSERT_EQ(again.list[again.count - 1].number, 2);
    ASSERT_STREQ(again.text[again.count - 1], "/x");
    session_control_done(&c);
}

TEST(broken_records_and_wrong_messages)
{
    static const char *const wrong[] = {"E",         "E ",       "E x 0 /",
                                        "E 1 256 /", "E 1 -1 /", "E 1",
                                        "P -1",      "Z 1 2 3",  "E 99999999999999999999 0 /",
                                        ""};
    static const uint8_t zero[SESSION_RECORD_HEADER] = {0};
    uint8_t large[SESSION_RECORD_HEADER] = {0, 0, 0, 0x7f};
    struct session_control c;
    struct session_message message;
    struct error err = {0};
    size_t used;

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        _cleanup_buf_ struct buf b = {0};
        struct messages m = {0};

        buf_init(&b, 4096);
        put_record(&b, 0, 0, wrong[i], strlen(wrong[i]) + 1);
        session_control_init(&c);
        take(&c, buf_data(&b), b.size, &m);
        ASSERT_EQ(m.count, 0);
        session_control_done(&c);
    }
    session_control_init(&c);
    ASSERT_ERR(session_control_take(&c, 0, zero, sizeof(zero), &used, &message, &err), EPROTO);
    session_control_reset(&c, 0);
    ASSERT_ERR(session_control_take(&c, 0, large, sizeof(large), &used, &message, &err), EPROTO);
    session_control_done(&c);
}

TEST(state_that_is_too_long_is_cut_and_what_follows_is_read)
{
    static const char end[] = "X 1 0 /\0", after[] = "\0E 2 0 /\0";
    static char filler[4096];
    _cleanup_buf_ struct buf b = {0};
    struct session_control c;
    struct messages m = {0};

    memset(filler, 'x', sizeof(filler));
    buf_init(&b, 1u << 20);
    put_record(&b, 0, 0, end, sizeof(end) - 1);
    for (size_t i = 0; i <= SESSION_STATE_MAX / sizeof(filler); i++)
        put_record(&b, 0, 0, filler, sizeof(filler));
    put_record(&b, 0, 0, after, sizeof(after) - 1);
    session_control_init(&c);
    take(&c, buf_data(&b), b.size, &m);
    ASSERT_EQ(m.count, 3);
    ASSERT_EQ(m.list[1].kind, SESSION_MESSAGE_STATE);
    ASSERT_TRUE(m.list[1].cut);
    ASSERT_EQ(m.list[2].number, 2);
    session_control_done(&c);
}

/* ---- texts ---- */

TEST(lines_are_one_line)
{
    _cleanup_buf_ struct buf b = {0};

    buf_init(&b, 4096);
    ASSERT_OK(session_script_run(&b, SESSION_TAKES_LINES, 5, NULL, false, "a'b\nc", 5));
    ASSERT_STREQ(buf_string(&b), "r 5 - 0 1 'a'\\''b'\"$2\"'c' .\n");
    buf_clear(&b);
    ASSERT_OK(session_script_run(&b, SESSION_TAKES_LINES, 6, "/run/x", true, "cat <<E\nE", 9));
    ASSERT_STREQ(buf_string(&b), "r 6 /run/x 1 0 'cat <<E'\"$2\"'E' .\n");
    buf_clear(&b);
    ASSERT_OK(
        session_script_run(&b, SESSION_TAKES_LINES, 7, NULL, false, "set -euo pipefail; x", 20));
    ASSERT_STREQ(buf_string(&b), "r 7 - 0 2 'set -euo pipefail; x' .\n");
    buf_clear(&b);
    ASSERT_OK(session_script_run(&b, SESSION_TAKES_LINES, 8, NULL, false, "set -ex; x", 10));
    ASSERT_STREQ(buf_string(&b), "r 8 - 0 0 'set -ex; x' .\n");
    buf_clear(&b);
    ASSERT_OK(session_script_run(&b, SESSION_TAKES_LINES, 9, NULL, false, "echo \\", 6));
    ASSERT_STREQ(buf_string(&b), "r 9 - 0 0 'echo \\' .\n");
}

static void run_line(struct buf *b, enum session_takes takes, uint64_t number, const char *text)
{
    buf_clear(b);
    ASSERT_OK(session_script_run(b, takes, number, NULL, false, text, strlen(text)));
}

TEST(bash_takes_blocks)
{
    /* Every one may be taken for more than words and operators: not run as it comes. */
    static const char *const hard[] = {"echo 'a'", "if",     "a &", "a ;; b", "a &&", "& a",
                                       "a |",      "a > b",  "(a)", "{ a",    "a\nb", "a # b",
                                       "time a",   "a |& b", "! a", "a `b",   "[[ a", "a;",
                                       "a\tb",     ";",      " "};
    static const char *const lines[] = {"a <<E\nE",   "a \\",      "set -e",      "set -x",
                                        "a \xc3\xa4", "builtin x", "set -o posix"};
    _cleanup_buf_ struct buf b = {0};
    char text[5000];

    buf_init(&b, 65536);
    run_line(&b, SESSION_TAKES_BLOCKS, 12, "ls|wc; $x");
    ASSERT_STREQ(buf_string(&b), " ls|wc; $x #0012");
    ASSERT_EQ(b.size, SESSION_BLOCK);
    run_line(&b, SESSION_TAKES_BLOCKS, 10012, ":");
    ASSERT_STREQ(buf_string(&b), " : #000000000012");
    run_line(&b, SESSION_TAKES_BLOCKS, 12, "ls|wc; $xy");
    ASSERT_STREQ(buf_string(&b), ":001000000000012ls|wc; $xy");
    for (size_t i = 0; i < ARRAY_SIZE(hard); i++) {
        run_line(&b, SESSION_TAKES_BLOCKS, 3, hard[i]);
        ASSERT_EQ(b.size, SESSION_BLOCK + strlen(hard[i]));
        ASSERT_MEMEQ(buf_data(&b), ":00", 3);
        ASSERT_MEMEQ(buf_data(&b) + SESSION_BLOCK - 4, "0003", 4);
        ASSERT_MEMEQ(buf_data(&b) + SESSION_BLOCK, hard[i], strlen(hard[i]));
    }
    for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
        run_line(&b, SESSION_TAKES_BLOCKS, 100000004, lines[i]);
        ASSERT_MEMEQ(buf_data(&b), ",0004", 5);
        ASSERT_EQ(buf_data(&b)[SESSION_BLOCK - 1], '\n');
        ASSERT_MEMEQ(buf_data(&b) + SESSION_BLOCK, "r 100000004 - 0 ", 16);
    }
    memset(text, 'x', sizeof(text));
    text[1000] = '\0';
    run_line(&b, SESSION_TAKES_BLOCKS, 5, text);
    ASSERT_EQ(b.size, SESSION_BLOCK + 1000);
    ASSERT_MEMEQ(buf_data(&b), ":100000000000005xxx", 19);
    text[1000] = 'x';
    text[4999] = '\0';
    run_line(&b, SESSION_TAKES_BLOCKS, 5, text);
    ASSERT_EQ(b.size, SESSION_BLOCK + strlen("r 5 - 0 1 '' .\n") + 4999);
}

/* What does not know of blocks sees lines that mean nothing. */
TEST(a_shell_of_an_earlier_daemon_gets_what_all_understand)
{
    _cleanup_buf_ struct buf b = {0};

    buf_init(&b, 4096);
    run_line(&b, SESSION_TAKES_UNKNOWN, 7, ":");
    ASSERT_EQ((const char *)memchr(buf_data(&b), '\n', b.size) - buf_string(&b), SESSION_BLOCK - 1);
    ASSERT_STREQ(buf_string(&b) + SESSION_BLOCK, "r 7 - 0 1 ':' .\n");
}

TEST(ends_of_blocks)
{
    static const struct {
        const char *text, *cwd;
        uint64_t number;
        int status;
    } good[] = {
        {"B0  ls|wc; $x #0012/a b", "/a b", 12, 0}, {"B0 .ls|wc; $x #0012/a b", "/a b", 12, 0},
        {"B255 :000300000000034/", "/", 34, 255},   {"B7 .000300000000034/", "/", 34, 7},
        {"B1 ,0000-----------", "", 0, 1},
    };
    static const char *const wrong[] = {"B",
                                        "B0",
                                        "B0 ",
                                        "B0 :0001",
                                        "B256 :000300000000034/",
                                        "Bx :000300000000034/",
                                        "B0 :00030000000003x/",
                                        "B0 ,000x-----------/",
                                        "B0  ls|wc; $x #001x/"};

    for (size_t i = 0; i < ARRAY_SIZE(good) + ARRAY_SIZE(wrong); i++) {
        const char *text = i < ARRAY_SIZE(good) ? good[i].text : wrong[i - ARRAY_SIZE(good)];
        _cleanup_buf_ struct buf b = {0};
        struct messages m = {0};
        struct session_control c;

        buf_init(&b, 4096);
        put_record(&b, 7, 8, text, strlen(text) + 1);
        session_control_init(&c);
        take(&c, buf_data(&b), b.size, &m);
        ASSERT_EQ(m.count, i < ARRAY_SIZE(good) ? 1 : 0);
        if (m.count > 0) {
            ASSERT_EQ(m.list[0].kind, SESSION_MESSAGE_END);
            ASSERT_TRUE(m.list[0].blocks);
            ASSERT_EQ(m.list[0].number, good[i].number);
            ASSERT_EQ(m.list[0].status, good[i].status);
            ASSERT_EQ(m.list[0].offset[1], 7);
            ASSERT_STREQ(m.text[0], good[i].cwd);
        }
        session_control_done(&c);
    }
}

TEST(foreign_traps_are_told_from_ours)
{
    static const char *const lists[] = {"trap -- 'echo it'\\''s' EXIT\n",
                                        "trap -- 'echo it'\"'\"'s' EXIT\n",
                                        "trap -- 'a\nb EXIT\n' EXIT\ntrap -- 'exit 130' INT\n"};
    static const char *const words[] = {"'echo it'\\''s'", "'echo it'\"'\"'s'", "'a\nb EXIT\n'"};
    const char *word;
    size_t size;

    for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
        ASSERT_EQ(session_script_foreign_trap(lists[i], strlen(lists[i]), &word, &size), 1);
        ASSERT_EQ(size, strlen(words[i]));
        ASSERT_MEMEQ(word, words[i], size);
    }
    ASSERT_EQ(session_script_foreign_trap("", 0, &word, &size), 1);
    ASSERT_EQ(size, 0);
    ASSERT_EQ(session_script_foreign_trap("trap -- 'x", 10, &word, &size), 1);
    ASSERT_EQ(size, 0);
}

TEST(texts_that_may_set_traps_are_recognised)
{
    ASSERT_TRUE(session_script_may_trap("trap x EXIT"));
    ASSERT_TRUE(session_script_may_trap(". ./env"));
    ASSERT_TRUE(session_script_may_trap("a;. ./env"));
    ASSERT_TRUE(session_script_may_trap("source env"));
    ASSERT_FALSE(session_script_may_trap("echo a. b"));
    ASSERT_FALSE(session_script_may_trap("set -e; set +x"));
    ASSERT_TRUE(session_script_may_trap("set -ex"));
    ASSERT_TRUE(session_script_may_trap("f() { set -x; }"));
    ASSERT_TRUE(session_script_may_trap("set -o xtrace"));
}
