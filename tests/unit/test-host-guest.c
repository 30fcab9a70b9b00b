#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "exec-seen.h"
#include "harness/test.h"
#include "host-guest.h"
#include "host/exec.h"

/* The console against the real server of the guest: processes. */

static void run(struct guest *g, struct seen *s, char *const *argv, const struct exec_spec *base)
{
    struct exec_spec spec = base ? *base : (struct exec_spec){.close_stdin = true};
    struct error err = {0};

    spec.argv = argv;
    seen_init(s);
    ASSERT_OK(exec_start(g->console, &spec, &seen_callbacks, s, &s->e, &err));
}

static void run_shell(struct guest *g, struct seen *s, const char *text,
                      const struct exec_spec *base)
{
    char sh[] = "/bin/sh", c[] = "-c";
    char *copy = strdup(text);
    char *argv[] = {sh, c, copy, NULL};

    run(g, s, argv, base);
    free(copy);
}

static uint64_t soon(void)
{
    return clock_now_usec() + 10 * USEC_PER_SEC;
}

TEST(streams_stay_apart_and_the_exit_code_comes_back)
{
    struct guest g;
    struct seen s;

    guest_start(&g, true);
    run_shell(&g, &s, "echo out; echo err >&2; exit 7", NULL);
    GUEST_WAIT(&g, s.closed);
    ASSERT_STREQ(buf_string(&s.out[1]), "out\n");
    ASSERT_STREQ(buf_string(&s.out[2]), "err\n");
    ASSERT_EQ(exec_exit_code(&s.exit), 7);
    ASSERT_EQ(s.exit.end[1], 4);
    ASSERT_EQ(s.ends, 2);
    ASSERT_EQ(s.reason.code, ERR_NONE);
    ASSERT_TRUE(s.exit.wall_usec > 0);
    seen_done(&s);
    guest_stop(&g);
}

TEST(what_cannot_start_says_why)
{
    static char missing[] = "/no/such/program", dir[] = "/tmp", name[] = "true";
    static char *a_missing[] = {missing, NULL}, *a_dir[] = {dir, NULL}, *a_true[] = {name, NULL};
    struct exec_spec cwd = {.cwd = "/no/such/dir"}, user = {.user = "nobody-of-that-name"};
    struct guest g;
    struct seen s;

    guest_start(&g, true);
    run(&g, &s, a_missing, NULL);
    GUEST_WAIT(&g, s.closed);
    ASSERT_EQ(s.reason.code, ERR_COMMAND_NOT_FOUND);
    ASSERT_TRUE(strstr(s.reason.text, "/no/such/program"));
    seen_done(&s);
    run(&g, &s, a_dir, NULL);
    GUEST_WAIT(&g, s.closed);
    ASSERT_EQ(s.reason.code, ERR_COMMAND_NOT_EXECUTABLE);
    seen_done(&s);
    run(&g, &s, a_true, &cwd);
    GUEST_WAIT(&g, s.closed);
    ASSERT_EQ(s.reason.code, ERR_CWD_NOT_FOUND);
    seen_done(&s);
    run(&g, &s, a_true, &user);
    GUEST_WAIT(&g, s.closed);
    ASSERT_EQ(s.reason.code, ERR_USER_NOT_FOUND);
    seen_done(&s);
    guest_stop(&g);
}

TEST(megabytes_go_in_and_come_back_the_same)
{
    enum { TOTAL = 5 << 20 };
    static char cat[] = "cat";
    static char *argv[] = {cat, NULL};
    struct exec_spec spec = {0};
    uint8_t *data = malloc(TOTAL);
    size_t sent = 0;
    struct guest g;
    struct seen s;

    for (size_t i = 0; i < TOTAL; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    guest_start(&g, true);
    run(&g, &s, argv, &spec);
    while (sent < TOTAL) {
        size_t n;

        GUEST_WAIT(&g, exec_writable(s.e, 0) > 0);
        n = exec_writable(s.e, 0);
        n = n < TOTAL - sent ? n : TOTAL - sent;
        ASSERT_OK(exec_write(s.e, 0, data + sent, n));
        sent += n;
    }
    ASSERT_OK(exec_close_stream(s.e, 0));
    GUEST_WAIT(&g, s.exited);
    ASSERT_EQ(s.out[1].size, TOTAL);
    ASSERT_MEMEQ(buf_data(&s.out[1]), data, TOTAL);
    ASSERT_EQ(exec_exit_code(&s.exit), 0);
    free(data);
    seen_done(&s);
    guest_stop(&g);
}

/* Counts only, so that the host's own memory can be looked at. */
static void count_output(struct exec *e, uint8_t stream, uint64_t offset, const uint8_t *data,
                         size_t size, void *userdata)
{
    struct seen *s = userdata;

    (void)data;
    ASSERT_EQ(offset, s->next[stream]);
    s->next[stream] += size;
    exec_consumed(e, stream, size);
}

TEST(hundreds_of_megabytes_of_output_use_no_memory)
{
    static char sh[] = "/bin/sh", c[] = "-c", text[] = "head -c 268435456 /dev/zero";
    static char *argv[] = {sh, c, text, NULL};
    struct exec_callbacks cb = seen_callbacks;
    struct exec_spec spec = {.argv = argv, .close_stdin = true};
    struct error err = {0};
    struct rusage before, after;
    struct guest g;
    struct seen s;

    cb.on_output = count_output;
    guest_start(&g, true);
    seen_init(&s);
    ASSERT_OK(getrusage(RUSAGE_SELF, &before));
    ASSERT_OK(exec_start(g.console, &spec, &cb, &s, &s.e, &err));
    GUEST_WAIT(&g, s.exited);
    ASSERT_OK(getrusage(RUSAGE_SELF, &after));
    ASSERT_EQ(s.next[1], 256u << 20);
    ASSERT_TRUE(after.ru_maxrss - before.ru_maxrss < 8 * 1024);
    seen_done(&s);
    guest_stop(&g);
}

TEST(reader_that_stops_stalls_only_itself)
{
    struct guest g;
    struct seen slow, fast;

    guest_start(&g, true);
    run_shell(&g, &slow, "yes", NULL);
    slow.hold = true;
    GUEST_WAIT(&g, slow.out[1].size == EXEC_WINDOW);
    for (int i = 0; i < 20; i++) {
        run_shell(&g, &fast, "head -c 1000000 /dev/zero", NULL);
        GUEST_WAIT(&g, fast.closed);
        ASSERT_EQ(fast.out[1].size, 1000000);
        seen_done(&fast);
    }
    ASSERT_EQ(slow.out[1].size, EXEC_WINDOW);
    /* And goes on when it reads again. */
    slow.hold = false;
    exec_consumed(slow.e, 1, EXEC_WINDOW);
    GUEST_WAIT(&g, slow.out[1].size > 4 * EXEC_WINDOW);
    ASSERT_OK(exec_signal(slow.e, SIGTERM, EXEC_SIGNAL_TREE));
    GUEST_WAIT(&g, slow.exited);
    ASSERT_EQ(slow.exit.signal, SIGTERM);
    ASSERT_EQ(exec_exit_code(&slow.exit), 128 + SIGTERM);
    seen_done(&slow);
    guest_stop(&g);
}

TEST(time_out_is_told_from_a_natural_end)
{
    struct exec_spec spec = {.timeout_msec = 250, .kill_grace_msec = 50, .close_stdin = true};
    struct guest g;
    struct seen s;

    guest_start(&g, true);
    for (;;) { /* longer, when a busy machine did not let it come to its trap */
        run_shell(&g, &s, "trap '' TERM; echo begun; while :; do sleep 10; done", &spec);
        GUEST_WAIT(&g, s.exited);
        ASSERT_TRUE(s.exit.timed_out);
        if (s.out[1].size > 0 || spec.timeout_msec > 8000)
            break;
        spec.timeout_msec *= 2;
        seen_done(&s);
    }
    ASSERT_EQ(s.exit.signal, SIGKILL);
    ASSERT_STREQ(buf_string(&s.out[1]), "begun\n");
    seen_done(&s);
    guest_stop(&g);
}

TEST(new_console_attaches_and_misses_nothing)
{
    uint64_t from[EXEC_STREAMS_MAX] = {0};
    struct exec_spec spec = {0};
    struct error err = {0};
    struct guest g;
    struct seen s, again;
    uint64_t id;

    guest_start(&g, true);
    run_shell(&g, &s, "echo one; read x; echo two $x; read y; echo three $y; exit 3", &spec);
    GUEST_WAIT(&g, s.out[1].size == 4 && s.writable);
    ASSERT_OK(exec_write(s.e, 0, "A\n", 2));
    GUEST_WAIT(&g, s.out[1].size == 10);
    id = exec_process_id(s.e);
    /* The host dies with a half frame on its way. */
    ASSERT_EQ(write(g.fd, "\x40\0\0\0\x01\0\x48\x7e", 8), 8);
    guest_reconnect(&g);
    ASSERT_EQ(s.closed, 0);
    seen_done(&s);

    seen_init(&again);
    from[1] = again.next[1] = 4;
    ASSERT_OK(exec_attach(g.console, id, from, &seen_callbacks, &again, &again.e, &err));
    GUEST_WAIT(&g, again.out[1].size == 6 && again.writable);
    ASSERT_STREQ(buf_string(&again.out[1]), "two A\n");
    ASSERT_EQ(again.ranges[1].end, 10);
    ASSERT_OK(exec_write(again.e, 0, "B\n", 2));
    GUEST_WAIT(&g, again.closed);
    ASSERT_STREQ(buf_string(&again.out[1]), "two A\nthree B\n");
    ASSERT_EQ(again.exit.status, 3);
    seen_done(&again);

    /* It can be looked at after its end too, until it is released. */
    seen_init(&again);
    ASSERT_OK(exec_attach(g.console, id, NULL, &seen_callbacks, &again, &again.e, &err));
    GUEST_WAIT(&g, again.closed);
    ASSERT_STREQ(buf_string(&again.out[1]), "one\ntwo A\nthree B\n");
    ASSERT_EQ(again.exit.status, 3);
    seen_done(&again);
    guest_stop(&g);
}

TEST(second_attachment_takes_the_first_ones_output)
{
    struct error err = {0};
    struct exec_spec spec = {0};
    struct guest g;
    struct seen first, second;

    guest_start(&g, true);
    run_shell(&g, &first, "echo hi; read x; echo $x", &spec);
    GUEST_WAIT(&g, first.out[1].size == 3);
    seen_init(&second);
    ASSERT_OK(exec_attach(g.console, exec_process_id(first.e), NULL, &seen_callbacks, &second,
                          &second.e, &err));
    GUEST_WAIT(&g, first.closed && second.out[1].size == 3 && second.writable);
    ASSERT_EQ(first.reason.code, ERR_CONFLICT);
    ASSERT_OK(exec_write(second.e, 0, "bye\n", 4));
    GUEST_WAIT(&g, second.closed);
    ASSERT_STREQ(buf_string(&second.out[1]), "hi\nbye\n");
    ASSERT_EQ(first.out[1].size, 3);
    seen_done(&first);
    seen_done(&second);
    guest_stop(&g);
}

struct answers {
    unsigned done, lists;
    enum error_code code;
    size_t count;
    struct exec_info last;
    struct console_stats stats;
};

static void on_done(struct console *c, const struct error *err, void *userdata)
{
    struct answers *a = userdata;

    (void)c;
    a->done++;
    a->code = err ? err->code : ERR_NONE;
}

static void on_list(struct console *c, const struct exec_info *infos, size_t count,
                    const struct error *err, void *userdata)
{
    struct answers *a = userdata;

    (void)c;
    ASSERT_TRUE(!err);
    a->lists++;
    a->count = count;
    if (count > 0)
        a->last = infos[count - 1];
}

static void on_stats(struct console *c, const struct console_stats *stats, const struct error *err,
                     void *userdata)
{
    struct answers *a = userdata;

    (void)c;
    ASSERT_TRUE(!err);
    a->done++;
    a->stats = *stats;
}

TEST(detached_process_is_listed_signalled_and_released)
{
    struct exec_spec spec = {.close_stdin = true, .label = "background", .drop_when_full = true};
    struct answers a = {0};
    struct guest g;
    struct seen s;
    uint64_t id;

    guest_start(&g, true);
    run_shell(&g, &s, "yes", &spec);
    GUEST_WAIT(&g, s.started);
    id = exec_process_id(s.e);
    s.e = exec_free(s.e);
    ASSERT_OK(exec_list(g.console, soon(), on_list, &a));
    GUEST_WAIT(&g, a.lists == 1);
    ASSERT_EQ(a.count, 1);
    ASSERT_EQ(a.last.process_id, id);
    ASSERT_TRUE(a.last.running);
    ASSERT_STREQ(a.last.label, "background");
    ASSERT_STREQ(a.last.command, "/bin/sh -c yes");
    ASSERT_OK(exec_release(g.console, id, soon(), on_done, &a));
    GUEST_WAIT(&g, a.done == 1);
    ASSERT_TRUE(a.code != ERR_NONE); /* it runs */
    ASSERT_OK(exec_signal_process(g.console, id, SIGKILL, EXEC_SIGNAL_TREE, soon(), on_done, &a));
    GUEST_WAIT(&g, a.done == 2);
    ASSERT_EQ(a.code, ERR_NONE);
    while (a.last.running) {
        unsigned before = a.lists;

        ASSERT_OK(exec_list(g.console, soon(), on_list, &a));
        GUEST_WAIT(&g, a.lists > before);
    }
    ASSERT_EQ(a.last.exit.signal, SIGKILL);
    ASSERT_OK(exec_release(g.console, id, soon(), on_done, &a));
    GUEST_WAIT(&g, a.done == 3);
    ASSERT_EQ(a.code, ERR_NONE);
    ASSERT_OK(exec_release(g.console, id, soon(), on_done, &a));
    GUEST_WAIT(&g, a.done == 4);
    ASSERT_EQ(a.code, ERR_PROCESS_NOT_FOUND);
    seen_done(&s);
    guest_stop(&g);
}

TEST(stalled_reader_of_a_dropping_process_goes_on_with_a_gap)
{
    struct exec_spec spec = {.close_stdin = true, .drop_when_full = true, .ring_bytes = 65536};
    struct guest g;
    struct seen s;

    guest_start(&g, true);
    run_shell(&g, &s, "head -c 8000000 /dev/zero; echo end; exec sleep 100", &spec);
    s.hold = s.gaps = true;
    GUEST_WAIT(&g, s.out[1].size == EXEC_WINDOW);
    /* The process is not held up: it gets to its last line. */
    for (;;) {
        struct answers a = {0};

        ASSERT_OK(exec_list(g.console, soon(), on_list, &a));
        GUEST_WAIT(&g, a.lists == 1);
        if (a.last.ranges[1].end == 8000004)
            break;
    }
    s.hold = false;
    exec_consumed(s.e, 1, EXEC_WINDOW);
    GUEST_WAIT(&g, s.next[1] == 8000004);
    ASSERT_TRUE(s.out[1].size < 8000004);
    ASSERT_MEMEQ(buf_data(&s.out[1]) + s.out[1].size - 4, "end\n", 4);
    ASSERT_OK(exec_signal(s.e, SIGKILL, EXEC_SIGNAL_TREE));
    GUEST_WAIT(&g, s.closed);
    seen_done(&s);
    guest_stop(&g);
}

TEST(terminal_has_a_size_that_changes)
{
    struct exec_spec spec = {.tty = true, .rows = 33, .cols = 99};
    struct guest g;
    struct seen s;

    guest_start(&g, true);
    run_shell(&g, &s, "trap 'stty size; exit 5' WINCH; stty size; while :; do sleep 0.05; done",
              &spec);
    GUEST_WAIT(&g, strstr(buf_string(&s.out[1]), "33 99"));
    ASSERT_OK(exec_resize(s.e, 44, 111));
    GUEST_WAIT(&g, s.exited);
    ASSERT_TRUE(strstr(buf_string(&s.out[1]), "44 111"));
    ASSERT_EQ(exec_exit_code(&s.exit), 5);
    seen_done(&s);
    guest_stop(&g);
}

TEST(extra_streams_reach_the_process_and_marked_ones_tell_offsets)
{
    static const struct exec_stream streams[] = {{.fd = 3, .to_guest = true},
                                                 {.fd = 4, .marked = true}};
    struct exec_spec spec = {.close_stdin = true, .streams = streams, .n_streams = 2};
    const uint8_t *record;
    struct guest g;
    struct seen s;

    guest_start(&g, true);
    run_shell(&g, &s, "read x <&3; echo got $x; echo done >&4", &spec);
    GUEST_WAIT(&g, s.writable);
    ASSERT_OK(exec_write(s.e, 3, "it\n", 3));
    GUEST_WAIT(&g, s.closed);
    ASSERT_STREQ(buf_string(&s.out[1]), "got it\n");
    ASSERT_EQ(s.out[4].size, 24 + 5);
    record = buf_data(&s.out[4]);
    ASSERT_TRUE(record);
    ASSERT_EQ(record[0], 5);
    ASSERT_EQ(record[8], 7); /* stdout had so much */
    ASSERT_MEMEQ(record + 24, "done\n", 5);
    seen_done(&s);
    guest_stop(&g);
}

TEST(identity_freeze_figures_and_power_off)
{
    static const struct console_identity identity = {
        .hostname = "box",
        .machine_id = "0123456789abcdef0123456789abcdef",
        .boot_id = "01234567-89ab-cdef-0123-456789abcdef",
    };
    struct answers a = {0};
    struct guest g;
    struct seen s;

    guest_start(&g, false);
    ASSERT_FALSE(console_get_info(g.console)->thawed);
    run_shell(&g, &s, "true", NULL);
    GUEST_WAIT(&g, s.closed);
    ASSERT_EQ(s.reason.code, ERR_UNAVAILABLE);
    seen_done(&s);
    ASSERT_OK(console_thaw(g.console, &identity, soon(), on_done, &a));
    GUEST_WAIT(&g, a.done == 1);
    ASSERT_EQ(a.code, ERR_NONE);
    run_shell(&g, &s, "true", NULL);
    GUEST_WAIT(&g, s.exited);
    seen_done(&s);
    ASSERT_OK(console_ping(g.console, soon(), on_done, &a));
    GUEST_WAIT(&g, a.done == 2);
    ASSERT_OK(console_stats(g.console, soon(), on_stats, &a));
    GUEST_WAIT(&g, a.done == 3);
    ASSERT_TRUE(a.stats.memory_total > 0 && a.stats.cpus > 0 && a.stats.uptime_usec > 0);
    ASSERT_OK(console_power_off(g.console, 0, soon(), on_done, &a));
    GUEST_WAIT(&g, a.done == 4);
    ASSERT_EQ(a.code, ERR_NONE);
    guest_stop(&g);
}

TEST(hundred_processes_at_once)
{
    struct guest g;
    struct seen s[100];

    guest_start(&g, true);
    for (size_t i = 0; i < ARRAY_SIZE(s); i++)
        run_shell(&g, &s[i], "echo $$; exit 4", NULL);
    for (size_t i = 0; i < ARRAY_SIZE(s); i++) {
        GUEST_WAIT(&g, s[i].closed);
        ASSERT_EQ(s[i].exit.status, 4);
        ASSERT_TRUE(s[i].out[1].size > 1);
        seen_done(&s[i]);
    }
    guest_stop(&g);
}
