#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "exec-seen.h"
#include "harness/test.h"
#include "host-guest.h"
#include "host/exec.h"

/* A conversation that stands still and goes on over another connection, with the real server. */

static const struct console_identity identity = {
    .hostname = "guest",
    .machine_id = "0123456789abcdef0123456789abcdef",
    .boot_id = "01234567-89ab-4def-8123-456789abcdef",
};

struct told {
    unsigned times;
    struct error err;
};

static void on_done(struct console *c, const struct error *err, void *userdata)
{
    struct told *t = userdata;

    (void)c;
    t->times++;
    t->err = err ? *err : (struct error){0};
}

static uint64_t soon(void)
{
    return clock_now_usec() + 20 * USEC_PER_SEC;
}

static void start(struct guest *g, struct seen *s, const char *text)
{
    char sh[] = "/bin/sh", c[] = "-c", *copy = strdup(text);
    char *argv[] = {sh, c, copy, NULL};
    struct exec_spec spec = {.argv = argv};
    struct error err = {0};

    seen_init(s);
    ASSERT_OK(exec_start(g->console, &spec, &seen_callbacks, s, &s->e, &err));
    free(copy);
}

static void freeze(struct guest *g)
{
    struct told t = {0};

    ASSERT_OK(console_freeze(g->console, soon(), on_done, &t));
    GUEST_WAIT(g, t.times);
    ASSERT_EQ(t.err.errnum, 0);
}

static void thaw(struct guest *g)
{
    struct told t = {0};

    ASSERT_OK(console_thaw(g->console, &identity, soon(), on_done, &t));
    GUEST_WAIT(g, t.times);
    ASSERT_EQ(t.err.errnum, 0);
}

static void continue_on(struct guest *g, int fd, struct told *t)
{
    *t = (struct told){0};
    ASSERT_OK(console_continue_consume(g->console, fd, soon(), on_done, t));
    GUEST_WAIT(g, t->times);
}

TEST(what_is_said_meanwhile_comes_after_the_thaw)
{
    struct told pong = {0};
    struct guest g;
    struct seen s;

    guest_start(&g, true);
    start(&g, &s, "read a; echo \"$a\"; read b; echo \"$b\"");
    ASSERT_TRUE(exec_writable(s.e, 0) == 0);
    GUEST_WAIT(&g, exec_writable(s.e, 0) > 0);
    ASSERT_OK(exec_write(s.e, 0, "one\n", 4));
    GUEST_WAIT(&g, s.out[1].size == 4);
    freeze(&g);
    ASSERT_OK(exec_write(s.e, 0, "two\n", 4));
    ASSERT_OK(console_ping(g.console, soon(), on_done, &pong));
    ASSERT_TRUE(console_queued(g.console) > 0);
    ASSERT_EQ(console_freeze(g.console, soon(), on_done, &pong), -EBUSY);
    thaw(&g);
    GUEST_WAIT(&g, s.closed);
    ASSERT_EQ(pong.times, 1);
    ASSERT_EQ(pong.err.errnum, 0);
    ASSERT_STREQ(buf_string(&s.out[1]), "one\ntwo\n");
    seen_done(&s);
    guest_stop(&g);
}

TEST(only_what_stands_still_is_parked)
{
    struct guest g;

    guest_start_listening(&g);
    ASSERT_EQ(console_park(g.console), -EBUSY);
    freeze(&g);
    ASSERT_OK(console_park(g.console));
    ASSERT_EQ(console_park(g.console), -ENOTCONN);
    guest_stop(&g);
}

/* Without cgroups nothing is really frozen: the process goes on writing all the time. */
TEST(no_byte_is_lost_or_repeated_over_many_connections)
{
    enum { MOVES = 20, LAST = 20000 };
    struct told t, pong = {0};
    const char *at;
    struct guest g;
    struct seen s;

    guest_start_listening(&g);
    start(&g, &s, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo $i; done; cat >&2");
    GUEST_WAIT(&g, s.out[1].size > 0);
    for (unsigned i = 0; i < MOVES; i++) {
        char text[16];
        int n = snprintf(text, sizeof(text), "%u\n", i);

        freeze(&g);
        if (i % 2)
            ASSERT_OK(exec_write(s.e, 0, text, (size_t)n));
        ASSERT_OK(console_park(g.console));
        if (i % 2 == 0)
            ASSERT_OK(exec_write(s.e, 0, text, (size_t)n));
        ASSERT_OK(console_ping(g.console, soon(), on_done, &pong));
        continue_on(&g, guest_connect(&g), &t);
        ASSERT_EQ(t.err.errnum, 0);
        thaw(&g);
        GUEST_WAIT(&g, pong.times == i + 1);
        ASSERT_EQ(pong.err.errnum, 0);
    }
    ASSERT_OK(exec_close_stream(s.e, 0));
    GUEST_WAIT(&g, s.closed);
    at = buf_string(&s.out[1]);
    for (unsigned i = 1; i <= LAST; i++) {
        char *end;

        ASSERT_EQ(strtoul(at, &end, 10), i);
        ASSERT_EQ(*end, '\n');
        at = end + 1;
    }
    ASSERT_EQ(*at, '\0');
    ASSERT_STREQ(buf_string(&s.out[2]),
                 "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n17\n18\n19\n");
    seen_done(&s);
    guest_stop(&g);
}

TEST(a_connection_that_fails_leaves_it_parked)
{
    struct told t = {0};
    struct guest g;
    struct seen s;
    int ends[2];

    guest_start_listening(&g);
    start(&g, &s, "read a; echo \"$a\"");
    GUEST_WAIT(&g, exec_writable(s.e, 0) > 0);
    freeze(&g);
    ASSERT_OK(console_park(g.console));
    ASSERT_OK(exec_write(s.e, 0, "kept\n", 5));
    /* Ends before anybody answers. */
    ASSERT_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
    ASSERT_OK(console_continue_consume(g.console, ends[0], soon(), on_done, &t));
    ASSERT_EQ(console_continue_consume(g.console, dup(ends[1]), soon(), on_done, &t), -EALREADY);
    close(ends[1]);
    GUEST_WAIT(&g, t.times);
    ASSERT_EQ(t.err.code, ERR_GUEST_GONE);
    /* The guest takes it up, and it ends before the thaw. */
    continue_on(&g, guest_connect(&g), &t);
    ASSERT_EQ(t.err.errnum, 0);
    ASSERT_OK(console_park(g.console));
    continue_on(&g, guest_connect(&g), &t);
    ASSERT_EQ(t.err.errnum, 0);
    thaw(&g);
    GUEST_WAIT(&g, s.closed);
    ASSERT_STREQ(buf_string(&s.out[1]), "kept\n");
    seen_done(&s);
    guest_stop(&g);
}

static void ignore_broken(struct console *c, const struct error *reason, void *userdata)
{
    (void)c;
    (void)reason;
    (void)userdata;
}

TEST(a_guest_that_has_begun_another_does_not_go_on)
{
    struct console *other;
    struct told t = {0};
    struct guest g;
    struct seen s;

    guest_start_listening(&g);
    start(&g, &s, "read a");
    GUEST_WAIT(&g, s.started);
    freeze(&g);
    ASSERT_OK(console_park(g.console));
    ASSERT_OK(console_new(g.loop, "other", ignore_broken, NULL, &other));
    ASSERT_OK(console_open_consume(other, guest_connect(&g), soon(), on_done, &t));
    GUEST_WAIT(&g, t.times);
    ASSERT_FALSE(console_get_info(other)->thawed);
    continue_on(&g, guest_connect(&g), &t);
    ASSERT_EQ(t.err.code, ERR_GUEST_PROTOCOL);
    ASSERT_TRUE(strstr(t.err.text, "does not go on"));
    console_free(other);
    seen_done(&s);
    guest_stop(&g);
}
