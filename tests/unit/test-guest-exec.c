#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest-client.h"
#include "harness/test.h"

/* guest_serve() as a real server, spoken to by a small host. */

static const struct guest_options open_options = {.thawed_from_start = true, .fake_identity = true};

static void assert_text(const struct buf *b, const char *text)
{
    ASSERT_STREQ(buf_string(b), text);
}

TEST(streams_stay_apart_and_status_comes_back)
{
    struct client c;
    struct run *r;

    client_start(&c, &open_options);
    ASSERT_TRUE(c.thawed);
    r = client_sh(&c, "echo out; echo err >&2; exit 7");
    CLIENT_WAIT(&c, r->closed);
    ASSERT_TRUE(r->started && r->exited);
    ASSERT_EQ(r->status, 7);
    ASSERT_EQ(r->signal, 0);
    assert_text(&r->out[1], "out\n");
    assert_text(&r->out[2], "err\n");
    ASSERT_EQ(r->end[1], 4);
    ASSERT_EQ(r->end[2], 4);
    client_stop(&c);
}

TEST(death_by_signal_is_told)
{
    struct client c;
    struct run *r;

    client_start(&c, &open_options);
    r = client_sh(&c, "kill -SEGV $$");
    CLIENT_WAIT(&c, r->closed);
    ASSERT_EQ(r->signal, SIGSEGV);
    client_stop(&c);
}

static struct run *exec_simple(struct client *c, const char *const *argv, const char *cwd,
                               const char *user)
{
    struct exec_args a;

    exec_args_init(&a, argv);
    a.exec.cwd = bytes_of(cwd);
    a.exec.user = (char *)(uintptr_t)user;
    return client_exec(c, &a, 65536);
}

TEST(what_cannot_start_is_named)
{
    static const char *const missing[] = {"no-such-command", NULL};
    static const char *const missing_path[] = {"/no/such/command", NULL};
    static const char *const directory[] = {"/etc", NULL};
    static const char *const plain[] = {"/etc/passwd", NULL};
    static const char *const fine[] = {"true", NULL};
    struct client c;
    struct run *r;

    client_start(&c, &open_options);
    r = exec_simple(&c, missing, "", "");
    CLIENT_WAIT(&c, r->failed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_COMMAND_NOT_FOUND);
    ASSERT_TRUE(strstr(r->message, "no-such-command") != NULL);
    r = exec_simple(&c, missing_path, "", "");
    CLIENT_WAIT(&c, r->failed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_COMMAND_NOT_FOUND);
    r = exec_simple(&c, directory, "", "");
    CLIENT_WAIT(&c, r->failed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_COMMAND_NOT_EXECUTABLE);
    r = exec_simple(&c, plain, "", "");
    CLIENT_WAIT(&c, r->failed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_COMMAND_NOT_EXECUTABLE);
    r = exec_simple(&c, fine, "/no/such/dir", "");
    CLIENT_WAIT(&c, r->failed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_CWD);
    ASSERT_TRUE(strstr(r->message, "/no/such/dir") != NULL);
    r = exec_simple(&c, fine, "", "nobody-knows-them");
    CLIENT_WAIT(&c, r->failed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_USER);
    ASSERT_TRUE(strstr(r->message, "nobody-knows-them") != NULL);
    r = exec_simple(&c, fine, "", "");
    CLIENT_WAIT(&c, r->closed);
    ASSERT_EQ(r->status, 0);
    client_stop(&c);
}

TEST(too_long_and_malformed_requests_get_errors)
{
    static const char *const argv[] = {"/bin/true", "x", NULL};
    static const char *const none[] = {NULL};
    size_t size = 300 * 1024;
    char *big = malloc(size);
    struct exec_args a;
    struct client c;
    struct run *r;

    ASSERT_TRUE(big != NULL);
    memset(big, 'a', size);
    client_start(&c, &open_options);
    exec_args_init(&a, argv);
    a.argv[1] = (ProtobufCBinaryData){.data = (uint8_t *)big, .len = size};
    r = client_exec(&c, &a, 0);
    CLIENT_WAIT(&c, r->failed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_ARGUMENTS_TOO_LONG);
    exec_args_init(&a, argv);
    a.argv[1] = (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t) "a\0b", .len = 3};
    r = client_exec(&c, &a, 0);
    CLIENT_WAIT(&c, r->failed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_INVALID);
    exec_args_init(&a, argv);
    exec_args_env(&a, "NOVALUE");
    r = client_exec(&c, &a, 0);
    CLIENT_WAIT(&c, r->failed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_INVALID);
    exec_args_init(&a, none);
    r = client_exec(&c, &a, 0);
    CLIENT_WAIT(&c, r->failed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_INVALID);
    exec_args_init(&a, argv);
    exec_args_stream(&a, 9, false, false);
    r = client_exec(&c, &a, 0);
    CLIENT_WAIT(&c, r->failed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_INVALID);
    free(big);
    client_stop(&c);
}

TEST(environment_and_defaults_reach_the_process)
{
    static const char *const argv[] = {"/bin/sh", "-c", "echo $A:$HOME:$USER:$PATH; pwd", NULL};
    struct exec_args a;
    struct client c;
    struct run *r;

    client_start(&c, &open_options);
    exec_args_init(&a, argv);
    exec_args_env(&a, "A=1 2");
    exec_args_env(&a, "HOME=/tmp");
    a.exec.cwd = bytes_of("/usr");
    r = client_exec(&c, &a, 65536);
    CLIENT_WAIT(&c, r->closed);
    ASSERT_TRUE(strncmp(buf_string(&r->out[1]), "1 2:/tmp:root:/usr/local/sbin", 29) == 0 ||
                geteuid() != 0);
    ASSERT_TRUE(strstr(buf_string(&r->out[1]), "/usr\n") != NULL);
    client_stop(&c);
}

TEST(stdin_is_fed_and_ends)
{
    static const char *const argv[] = {"/bin/cat", NULL};
    size_t size = 3 * 1024 * 1024;
    uint8_t *data = malloc(size);
    struct exec_args a;
    struct client c;
    struct run *r;

    ASSERT_TRUE(data != NULL);
    for (size_t i = 0; i < size; i++)
        data[i] = (uint8_t)(i * 7 + i / 251);
    client_start(&c, &open_options);
    exec_args_init(&a, argv);
    r = client_exec(&c, &a, 256 * 1024);
    CLIENT_WAIT(&c, r->started);
    run_write(&c, r, 0, data, size);
    run_close(&c, r, 0);
    CLIENT_WAIT(&c, r->closed);
    ASSERT_EQ(r->out[1].size, size);
    ASSERT_MEMEQ(buf_data(&r->out[1]), data, size);
    exec_args_init(&a, argv);
    a.exec.close_stdin = true;
    r = client_exec(&c, &a, 65536);
    CLIENT_WAIT(&c, r->closed);
    ASSERT_EQ(r->status, 0);
    ASSERT_FALSE(r->present[0]);
    free(data);
    client_stop(&c);
}

TEST(output_stops_at_the_window_and_stalls_only_itself)
{
    static const char *const argv[] = {"/bin/sh", "-c", "exec cat /dev/zero", NULL};
    struct exec_args a;
    struct client c;
    struct run *r, *other;

    client_start(&c, &open_options);
    exec_args_init(&a, argv);
    r = client_exec(&c, &a, 0);
    CLIENT_WAIT(&c, r->started);
    run_window(&c, r, 1, 1000);
    CLIENT_WAIT(&c, r->out[1].size == 1000);
    other = client_sh(&c, "echo fine");
    CLIENT_WAIT(&c, other->closed);
    assert_text(&other->out[1], "fine\n");
    ASSERT_EQ(r->out[1].size, 1000);
    /* Far more than the ring holds flows as the window moves. */
    r->window = 100000;
    r->discard = true;
    run_window(&c, r, 1, 200000);
    CLIENT_WAIT(&c, r->total[1] > 8 * 1024 * 1024);
    run_signal(&c, r, SIGKILL, HEARTH__V1__SIGNAL__SCOPE__TREE);
    CLIENT_WAIT(&c, r->closed);
    ASSERT_EQ(r->signal, SIGKILL);
    client_stop(&c);
}

TEST(attach_replays_from_an_offset_and_closes_the_old_channel)
{
    struct client c;
    struct run *r, *again, *ended;
    uint64_t from[CLIENT_STREAMS] = {0};

    client_start(&c, &open_options);
    r = client_sh(&c, "echo one; read x; echo two; read x; exit 3");
    CLIENT_WAIT(&c, r->out[1].size == 4);
    from[1] = 2;
    again = client_attach(&c, r->process_id, from, 65536);
    CLIENT_WAIT(&c, again->started && r->closed && again->out[1].size == 2);
    ASSERT_EQ(again->first[1], 2);
    ASSERT_EQ(again->range_end[1], 4);
    run_write(&c, again, 0, "\n", 1);
    CLIENT_WAIT(&c, again->out[1].size == 6);
    assert_text(&again->out[1], "e\ntwo\n");
    run_write(&c, again, 0, "\n", 1);
    CLIENT_WAIT(&c, again->closed);
    ASSERT_EQ(again->status, 3);
    /* An ended one is still there, whole. */
    ended = client_attach(&c, r->process_id, NULL, 65536);
    CLIENT_WAIT(&c, ended->closed);
    assert_text(&ended->out[1], "one\ntwo\n");
    ASSERT_EQ(ended->status, 3);
    client_stop(&c);
}

TEST(processes_survive_a_new_conversation)
{
    struct client c;
    struct run *r, *again;

    client_start(&c, &open_options);
    r = client_sh(&c, "echo a; read x; echo b");
    CLIENT_WAIT(&c, r->out[1].size == 2);
    /* Half a frame and a flush, as a host does that found the guest out of step. */
    client_raw(&c, "\x10\x20\x00\x00\x01", 5);
    {
        uint8_t *zeros = calloc(1, FRAME_FLUSH_SIZE);

        ASSERT_TRUE(zeros != NULL);
        client_raw(&c, zeros, FRAME_FLUSH_SIZE);
        free(zeros);
    }
    client_hello(&c);
    again = client_attach(&c, r->process_id, NULL, 65536);
    CLIENT_WAIT(&c, again->started && again->out[1].size == 2);
    run_write(&c, again, 0, "\n", 1);
    CLIENT_WAIT(&c, again->closed);
    assert_text(&again->out[1], "a\nb\n");
    ASSERT_FALSE(r->closed);
    client_stop(&c);
}

TEST(marked_records_tell_how_far_output_had_come)
{
    static const char *const argv[] = {
        "/bin/sh", "-c",
        "i=0; while read x <&3; do printf \"$x$x\"; echo -n $x >&2; echo $x >&4; done", NULL};
    struct exec_args a;
    struct client c;
    struct run *r;
    size_t expected1 = 0, expected2 = 0, at = 0;

    client_start(&c, &open_options);
    exec_args_init(&a, argv);
    exec_args_stream(&a, 3, true, false);
    exec_args_stream(&a, 4, false, true);
    r = client_exec(&c, &a, 65536);
    CLIENT_WAIT(&c, r->started);
    for (int i = 0; i < 200; i++) {
        char line[16];
        const uint8_t *p;
        uint64_t off1 = 0, off2 = 0;
        int n = snprintf(line, sizeof(line), "%d\n", i);

        run_write(&c, r, 3, line, (size_t)n);
        expected1 += 2 * (size_t)(n - 1);
        expected2 += (size_t)(n - 1);
        CLIENT_WAIT(&c, r->out[4].size >= at + 24 + (size_t)n);
        p = buf_data(&r->out[4]) + at;
        ASSERT_EQ(p[0], n);
        for (unsigned b = 0; b < 8; b++) {
            off1 |= (uint64_t)p[8 + b] << (8 * b);
            off2 |= (uint64_t)p[16 + b] << (8 * b);
        }
        ASSERT_EQ(off1, expected1);
        ASSERT_EQ(off2, expected2);
        ASSERT_MEMEQ(p + 24, line, (size_t)n);
        at += 24 + (size_t)n;
    }
    run_close(&c, r, 3);
    CLIENT_WAIT(&c, r->closed);
    ASSERT_EQ(r->out[1].size, expected1);
    client_stop(&c);
}

TEST(recent_signal_spares_the_shell_and_older_children)
{
    static const char *const argv[] = {
        "/bin/sh", "-c",
        "trap 'echo shell >&4' USR1; sleep 100 & echo $! >&4; while read x <&3; do sleep 100; echo "
        "rc $? >&4; kill -0 $! && echo old lives >&4; done; kill -9 $!",
        NULL};
    struct exec_args a;
    struct client c;
    struct run *r;

    client_start(&c, &open_options);
    exec_args_init(&a, argv);
    exec_args_stream(&a, 3, true, false);
    exec_args_stream(&a, 4, false, false);
    r = client_exec(&c, &a, 65536);
    CLIENT_WAIT(&c, r->out[4].size > 0);
    buf_clear(&r->out[4]);
    run_write(&c, r, 3, "go\n", 3);
    /* The child begins a little later: repeat until it is hit. */
    while (r->out[4].size == 0) {
        run_signal(&c, r, SIGTERM, HEARTH__V1__SIGNAL__SCOPE__RECENT);
        (void)client_try(&c, 20);
    }
    CLIENT_WAIT(&c, strstr(buf_string(&r->out[4]), "old lives"));
    ASSERT_TRUE(strstr(buf_string(&r->out[4]), "rc 143") != NULL);
    run_close(&c, r, 3);
    CLIENT_WAIT(&c, r->exited);
    ASSERT_EQ(r->signal, 0);
    client_stop(&c);
}

/* As a shell that forks: its child takes a signal for the shell's own until it is a program. */
TEST(interrupt_reaches_a_child_that_was_not_yet_a_program)
{
    static const char *const argv[] = {
        "/bin/sh", "-c",
        "trap : INT; read x <&3; (trap 'echo told >&4' INT; echo up >&4; sleep 0.05; exec sleep "
        "100); echo rc $? >&4",
        NULL};
    struct exec_args a;
    struct client c;
    struct run *r;

    client_start(&c, &open_options);
    exec_args_init(&a, argv);
    exec_args_stream(&a, 3, true, false);
    exec_args_stream(&a, 4, false, false);
    r = client_exec(&c, &a, 65536);
    run_write(&c, r, 3, "go\n", 3);
    CLIENT_WAIT(&c, r->out[4].size > 0);
    run_signal(&c, r, SIGINT, HEARTH__V1__SIGNAL__SCOPE__RECENT);
    CLIENT_WAIT(&c, r->exited);
    ASSERT_STREQ(buf_string(&r->out[4]), "up\ntold\nrc 130\n");
    client_stop(&c);
}

TEST(time_out_ends_the_tree_and_is_told)
{
    static const char *const argv[] = {
        "/bin/sh", "-c", "trap '' TERM; sleep 100 & echo up; while :; do sleep 100; done", NULL};
    struct exec_args a;
    struct client c;
    struct run *r;

    client_start(&c, &open_options);
    exec_args_init(&a, argv);
    a.exec.timeout_msec = 200;
    a.exec.kill_grace_msec = 100;
    r = client_exec(&c, &a, 65536);
    CLIENT_WAIT(&c, r->closed);
    ASSERT_TRUE(r->timed_out);
    ASSERT_EQ(r->signal, SIGKILL);
    assert_text(&r->out[1], "up\n");
    client_stop(&c);
}

TEST(exit_does_not_wait_for_background_children)
{
    struct client c;
    struct run *r;

    client_start(&c, &open_options);
    r = client_sh(&c, "{ sleep 0.3; echo late; } & echo early");
    CLIENT_WAIT(&c, r->exited);
    ASSERT_EQ(r->end[1], 6);
    ASSERT_FALSE(r->ended[1]);
    CLIENT_WAIT(&c, r->closed);
    assert_text(&r->out[1], "early\nlate\n");
    client_stop(&c);
}

TEST(drop_when_full_keeps_the_newest)
{
    static const char *const argv[] = {
        "/bin/sh", "-c", "head -c 1000000 /dev/zero; echo; echo last; echo x >&2", NULL};
    struct exec_args a;
    struct client c;
    struct run *r, *again;

    client_start(&c, &open_options);
    exec_args_init(&a, argv);
    a.exec.ring_size = 65536;
    a.exec.drop_when_full = true;
    r = client_exec(&c, &a, 0);
    CLIENT_WAIT(&c, r->started);
    /* Nothing is granted on stdout, yet it comes to its end. */
    run_window(&c, r, 2, 100);
    CLIENT_WAIT(&c, r->ended[2]);
    again = client_attach(&c, r->process_id, NULL, 0);
    CLIENT_WAIT(&c, again->started);
    ASSERT_EQ(again->range_end[1], 1000006);
    /* Looking for the end of file takes the room of one byte. */
    ASSERT_TRUE(again->range_start[1] <= 1000006 - 65535);
    run_window(&c, again, 1, again->range_end[1]);
    run_window(&c, again, 2, 100);
    CLIENT_WAIT(&c, again->closed);
    ASSERT_TRUE(again->out[1].size >= 65535);
    ASSERT_STREQ((char *)buf_data(&again->out[1]) + again->out[1].size - 6, "\nlast\n");
    client_stop(&c);
}

TEST(dropped_output_uses_up_no_window)
{
    static const char *const argv[] = {
        "/bin/sh", "-c", "head -c 500000 /dev/zero; echo x >&2; read x; echo end", NULL};
    struct exec_args a;
    struct client c;
    struct run *r;

    client_start(&c, &open_options);
    exec_args_init(&a, argv);
    a.exec.ring_size = 65536;
    a.exec.drop_when_full = true;
    r = client_exec(&c, &a, 0);
    CLIENT_WAIT(&c, r->started);
    run_window(&c, r, 2, 100);
    CLIENT_WAIT(&c, r->out[2].size > 0);
    /* The grant is below what was dropped: it counts from the gap on. */
    r->window = 65536;
    run_window(&c, r, 1, 65536);
    CLIENT_WAIT(&c, r->offset[1] == 500000);
    ASSERT_TRUE(r->first[1] >= 65536);
    run_write(&c, r, 0, "\n", 1);
    CLIENT_WAIT(&c, r->closed);
    ASSERT_EQ(r->end[1], 500004);
    client_stop(&c);
}

TEST(terminal_is_a_terminal)
{
    static const char *const argv[] = {
        "/bin/sh", "-c", "test -t 0 && test -t 1 && test -t 2 && stty size; cat; echo end", NULL};
    struct exec_args a;
    struct client c;
    struct run *r;

    client_start(&c, &open_options);
    exec_args_init(&a, argv);
    a.tty.rows = 33;
    a.tty.cols = 99;
    a.exec.tty = &a.tty;
    r = client_exec(&c, &a, 65536);
    CLIENT_WAIT(&c, strstr(buf_string(&r->out[1]), "33 99\r\n"));
    run_write(&c, r, 0, "hello", 5);
    run_close(&c, r, 0);
    CLIENT_WAIT(&c, r->closed);
    ASSERT_EQ(r->status, 0);
    ASSERT_TRUE(strstr(buf_string(&r->out[1]), "end\r\n") != NULL);
    ASSERT_FALSE(r->present[2]);
    client_stop(&c);
}

TEST(foreground_signal_reaches_the_terminals_job)
{
    static const char *const argv[] = {"/bin/sh", "-c",
                                       "trap 'echo got' INT; echo up; read x; echo done", NULL};
    struct exec_args a;
    struct client c;
    struct run *r;

    client_start(&c, &open_options);
    exec_args_init(&a, argv);
    a.exec.tty = &a.tty;
    r = client_exec(&c, &a, 65536);
    CLIENT_WAIT(&c, strstr(buf_string(&r->out[1]), "up"));
    run_signal(&c, r, SIGINT, HEARTH__V1__SIGNAL__SCOPE__FOREGROUND);
    CLIENT_WAIT(&c, strstr(buf_string(&r->out[1]), "got"));
    run_signal(&c, r, SIGKILL, HEARTH__V1__SIGNAL__SCOPE__TREE);
    CLIENT_WAIT(&c, r->exited);
    client_stop(&c);
}

TEST(list_release_ping_and_stats)
{
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    Hearth__V1__List list = HEARTH__V1__LIST__INIT;
    Hearth__V1__Release release = HEARTH__V1__RELEASE__INIT;
    Hearth__V1__Stats stats = HEARTH__V1__STATS__INIT;
    Hearth__V1__Ping ping = HEARTH__V1__PING__INIT;
    struct client c;
    struct run *r, *q;

    client_start(&c, &open_options);
    r = client_sh(&c, "read x; exit 5");
    CLIENT_WAIT(&c, r->started);
    request.op_case = HEARTH__V1__REQUEST__OP_RELEASE;
    request.release = &release;
    release.process_id = r->process_id;
    q = client_request(&c, &request);
    CLIENT_WAIT(&c, q->failed);
    run_close(&c, r, 0);
    CLIENT_WAIT(&c, r->closed);
    request.op_case = HEARTH__V1__REQUEST__OP_LIST;
    request.list = &list;
    q = client_request(&c, &request);
    CLIENT_WAIT(&c, q->done);
    ASSERT_EQ(q->last->list->n_processes, 1);
    ASSERT_EQ(q->last->list->processes[0]->exit->status, 5);
    ASSERT_FALSE(q->last->list->processes[0]->running);
    request.op_case = HEARTH__V1__REQUEST__OP_RELEASE;
    request.release = &release;
    q = client_request(&c, &request);
    CLIENT_WAIT(&c, q->done);
    q = client_request(&c, &request);
    CLIENT_WAIT(&c, q->failed);
    ASSERT_EQ(q->code, HEARTH__V1__CODE__CODE_NO_PROCESS);
    request.op_case = HEARTH__V1__REQUEST__OP_PING;
    request.ping = &ping;
    ping.payload = bytes_of("hi");
    q = client_request(&c, &request);
    CLIENT_WAIT(&c, q->done);
    ASSERT_EQ(q->last->pong->payload.len, 2);
    request.op_case = HEARTH__V1__REQUEST__OP_STATS;
    request.stats = &stats;
    q = client_request(&c, &request);
    CLIENT_WAIT(&c, q->done);
    ASSERT_TRUE(q->last->stats->memory_total > 0 && q->last->stats->cpus > 0);
    client_stop(&c);
}

TEST(nothing_is_served_before_thaw)
{
    static const struct guest_options closed = {.fake_identity = true};
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    Hearth__V1__Thaw thaw = HEARTH__V1__THAW__INIT;
    Hearth__V1__Freeze freeze = HEARTH__V1__FREEZE__INIT;
    uint8_t entropy[32] = {1};
    struct client c;
    struct run *r, *no;

    client_start(&c, &closed);
    ASSERT_FALSE(c.thawed);
    r = client_sh(&c, "echo no");
    CLIENT_WAIT(&c, r->failed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_NOT_THAWED);
    request.op_case = HEARTH__V1__REQUEST__OP_THAW;
    request.thaw = &thaw;
    r = client_request(&c, &request);
    CLIENT_WAIT(&c, r->failed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_INVALID);
    thaw.entropy = (ProtobufCBinaryData){.data = entropy, .len = sizeof(entropy)};
    thaw.realtime_nsec = 1;
    thaw.hostname = (char *)(uintptr_t) "box";
    thaw.machine_id = (char *)(uintptr_t) "0123456789abcdef0123456789abcdef";
    thaw.boot_id = (char *)(uintptr_t) "01234567-89ab-cdef-0123-456789abcdef";
    r = client_request(&c, &request);
    CLIENT_WAIT(&c, r->done);
    r = client_sh(&c, "echo yes");
    CLIENT_WAIT(&c, r->closed);
    assert_text(&r->out[1], "yes\n");
    request.op_case = HEARTH__V1__REQUEST__OP_FREEZE;
    request.freeze = &freeze;
    r = client_request(&c, &request);
    CLIENT_WAIT(&c, r->done);
    /* Frozen, it says nothing, not even no. */
    no = client_sh(&c, "echo no");
    ASSERT_FALSE(client_try(&c, 100));
    thaw.hostname = (char *)(uintptr_t) "";
    request.op_case = HEARTH__V1__REQUEST__OP_THAW;
    request.thaw = &thaw;
    r = client_request(&c, &request);
    CLIENT_WAIT(&c, no->failed && r->failed);
    ASSERT_EQ(no->code, HEARTH__V1__CODE__CODE_NOT_THAWED);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_INVALID);
    client_stop(&c);
}

TEST(garbage_gets_an_error_or_silence_never_a_crash)
{
    uint8_t frame[FRAME_HEADER_SIZE + 8];
    struct client c;
    struct run *r;

    client_start(&c, &open_options);
    /* A request that does not decode, data for nobody, an unknown kind. */
    memset(frame, 0xff, sizeof(frame));
    frame_encode_header(frame, FRAME_CONTROL, 0, 77, 0, 8);
    client_raw(&c, frame, sizeof(frame));
    frame_encode_header(frame, FRAME_DATA, 200, 78, 5, 8);
    client_raw(&c, frame, sizeof(frame));
    r = client_sh(&c, "read x; echo $x");
    CLIENT_WAIT(&c, r->started && r->granted[0] > 0);
    /* Input at a wrong offset ends the attachment, not the process. */
    frame_encode_header(frame, FRAME_DATA, 0, r->channel, 1000, 8);
    client_raw(&c, frame, sizeof(frame));
    CLIENT_WAIT(&c, r->failed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_INVALID);
    frame[4] = 9;
    client_raw(&c, frame, sizeof(frame));
    client_hello(&c);
    r = client_sh(&c, "echo alive");
    CLIENT_WAIT(&c, r->closed);
    assert_text(&r->out[1], "alive\n");
    client_stop(&c);
}
