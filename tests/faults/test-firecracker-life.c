#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/page-source.h"
#include "base/strv.h"
#include "faults/fc-bench.h"

/* VMs from their start to their end, and what a daemon that died leaves. */
TEST(a_refusal_carries_firecrackers_own_words)
{
    struct seen seen;
    struct bench b;

    plan(3, "error-400");
    bench_begin(&b);
    boot(&b, GOOD_USEC, &seen);
    ASSERT_TRUE(strstr(seen.err.text, "no such VM"));
    ASSERT_TRUE(strstr(seen.err.text, "/boot-source"));
    bench_end(&b);
}

TEST(a_start_that_fails_is_told_with_the_programs_last_words)
{
    struct seen seen;
    struct bench b;

    plan(0, "start-die");
    bench_begin(&b);
    boot(&b, GOOD_USEC, &seen);
    ASSERT_EQ(seen.err.code, ERR_BACKEND_FAILED);
    ASSERT_TRUE(strstr(seen.err.text, "told to die"));
    bench_end(&b);
    plan(0, "start-hang");
    bench_begin(&b);
    boot(&b, HANG_USEC, &seen);
    ASSERT_EQ(seen.err.code, ERR_TIMEOUT);
    bench_end(&b);
}

TEST(old_and_strange_versions_are_refused)
{
    static const char *const kinds[] = {"version-old", "version-rubbish"};

    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct seen seen;
        struct bench b;

        plan(0, kinds[i]);
        bench_begin(&b);
        boot(&b, GOOD_USEC, &seen);
        ASSERT_EQ(seen.err.code, ERR_BACKEND_UNAVAILABLE);
        ASSERT_TRUE(i > 0 || strstr(seen.err.text, "1.16.1 or newer"));
        bench_end(&b);
    }
}

TEST(a_kill_ends_a_verb_at_any_call)
{
    for (int call = 1; call <= BOOT_CALLS; call++) {
        struct seen seen = {0}, killed = {0};
        struct bench b;
        uint64_t asked;

        plan(call, "hang-before");
        bench_begin(&b);
        ASSERT_OK(
            b.backend->ops->boot(b.backend, &b.spec, clock_now_usec() + GOOD_USEC, on_vm, &seen));
        for (int turn = 0; turn < 3 * call; turn++) /* somewhere on the way */
            (void)loop_run_once(b.loop, 10 * USEC_PER_MSEC);
        asked = clock_now_usec();
        ASSERT_OK(b.backend->ops->kill(b.backend, "vm-1", on_done, &killed));
        wait_for(&b, &killed.calls, 1);
        ASSERT_TRUE(clock_now_usec() - asked < GOOD_USEC / 2); /* not at the verb's deadline */
        ASSERT_EQ(seen.calls, 1);
        ASSERT_EQ(seen.err.errnum, ECANCELED);
        ASSERT_EQ(killed.err.errnum, 0);
        bench_end(&b);
    }
}

TEST(a_stopped_process_is_given_up_at_the_deadline)
{
    struct seen seen;
    struct bench b;

    plan(99, "slow");
    bench_begin(&b);
    boot(&b, GOOD_USEC, &seen);
    ASSERT_EQ(seen.err.errnum, 0);
    ASSERT_OK(kill(seen.vm.pid, SIGSTOP));
    save(&b, HANG_USEC, &seen);
    ASSERT_EQ(seen.err.code, ERR_TIMEOUT);
    bench_end(&b);
}

TEST(a_vm_whose_process_is_stopped_is_ended)
{
    struct seen seen;
    struct bench b;

    plan(99, "slow");
    bench_begin(&b);
    boot(&b, GOOD_USEC, &seen);
    ASSERT_OK(kill(seen.vm.pid, SIGSTOP));
    wait_for(&b, &gone_seen.gone, 1);
    ASSERT_TRUE(strstr(gone_seen.err.text, "stopped"));
    bench_end(&b);
}

TEST(an_end_by_itself_is_told_once)
{
    struct seen seen;
    struct bench b;

    plan(99, "slow");
    bench_begin(&b);
    boot(&b, GOOD_USEC, &seen);
    ASSERT_OK(kill(seen.vm.pid, SIGKILL));
    wait_for(&b, &gone_seen.gone, 1);
    ASSERT_TRUE(strstr(gone_seen.err.text, "signal 9"));
    ASSERT_EQ(gone_seen.gone, 1);
    bench_end(&b);
}

TEST(a_saved_vm_leaves_its_files_and_nothing_else)
{
    struct seen seen;
    struct stat st;
    struct bench b;

    plan(99, "slow");
    bench_begin(&b);
    boot(&b, GOOD_USEC, &seen);
    save(&b, GOOD_USEC, &seen);
    ASSERT_EQ(seen.err.errnum, 0);
    ASSERT_OK(stat(b.file[4], &st));
    ASSERT_EQ(st.st_size, 8192);
    ASSERT_OK(stat(b.file[5], &st));
    ASSERT_EQ(st.st_size, 8192);
    bench_end(&b);
}

TEST(a_vm_cannot_be_paused_and_lives_on)
{
    struct seen seen, paused = {0};
    struct bench b;

    plan(99, "slow");
    bench_begin(&b);
    boot(&b, GOOD_USEC, &seen);
    ASSERT_OK(b.backend->ops->pause(b.backend, "vm-1", on_done, &paused));
    wait_for(&b, &paused.calls, 1);
    ASSERT_EQ(paused.err.code, ERR_UNSUPPORTED);
    ASSERT_EQ(count_living(), 1);
    kill_vm(&b);
    bench_end(&b);
}

TEST(a_vm_can_be_saved_again_and_again)
{
    struct seen seen;
    struct bench b;

    plan(99, "slow");
    bench_begin(&b);
    restore(&b, GOOD_USEC, &seen);
    for (int i = 0; i < 3; i++) {
        snapshot(&b, GOOD_USEC, &seen);
        ASSERT_EQ(seen.err.errnum, 0);
        ASSERT_ERR(
            b.backend->ops->snapshot(b.backend, "vm-1", "/a", "/b", USEC_INFINITY, on_done, &seen),
            EBUSY); /* it is paused */
        resume(&b, 0, &seen);
        ASSERT_EQ(seen.err.errnum, 0);
        ASSERT_ERR(b.backend->ops->resume(b.backend, "vm-1", on_done, &seen), EBUSY);
    }
    kill_vm(&b);
    bench_end(&b);
}

TEST(a_snapshot_that_cannot_be_copied_lets_the_vm_run)
{
    struct seen seen = {0};
    struct bench b;

    plan(99, "slow");
    bench_begin(&b);
    restore(&b, GOOD_USEC, &seen);
    seen = (struct seen){0};
    ASSERT_OK(b.backend->ops->snapshot(b.backend, "vm-1", "/nonexistent/state", "/nonexistent/m",
                                       clock_now_usec() + GOOD_USEC, on_done, &seen));
    wait_for(&b, &seen.calls, 1);
    ASSERT_EQ(seen.err.errnum, ENOENT);
    snapshot(&b, GOOD_USEC, &seen); /* only a VM that runs takes this */
    ASSERT_EQ(seen.err.errnum, 0);
    kill_vm(&b);
    bench_end(&b);
}

TEST(a_vm_that_was_left_paused_runs_when_it_is_adopted)
{
    struct seen seen, adopted = {0};
    struct bench b;

    plan(99, "slow");
    bench_begin(&b);
    restore_and_snapshot(&b, GOOD_USEC, &seen);
    close_backend(&b);
    open_backend(&b);
    ASSERT_OK(b.backend->ops->adopt(b.backend, &b.spec, on_vm, &adopted));
    wait_for(&b, &adopted.calls, 1);
    ASSERT_EQ(adopted.err.errnum, 0);
    snapshot(&b, GOOD_USEC, &seen); /* only a VM that runs takes this */
    ASSERT_EQ(seen.err.errnum, 0);
    kill_vm(&b);
    bench_end(&b);
}

/* Pages at 4096 (of 2s) and 12288 (zeros). */
struct two_pages {
    struct page_source base;
    int next;
    bool broken;
    uint8_t data[PAGE_BYTES];
};

static int two_pages_next(struct page_source *s, uint64_t *ret_offset, const void **ret_data,
                          size_t *ret_size, struct error *err)
{
    struct two_pages *two = (struct two_pages *)(void *)s;

    if (two->next == 2)
        return two->broken ? error_set_code(err, ERR_SNAPSHOT_INVALID, "a flipped bit") : 0;
    *ret_offset = two->next == 0 ? 4096 : 12288;
    *ret_data = two->next == 0 ? two->data : NULL;
    *ret_size = PAGE_BYTES;
    two->next++;
    return 1;
}

static const struct page_source_ops two_pages_ops = {.next = two_pages_next};

static void restore_pages(struct bench *b, bool broken, struct seen *seen)
{
    struct two_pages two = {.base = {.ops = &two_pages_ops}, .broken = broken};
    const struct vm_saved saved = {
        .memory_file = b->file[4], .state_file = b->file[5], .pages = &two.base};
    char memory[16384];

    memset(memory, 1, sizeof(memory));
    memset(two.data, 2, sizeof(two.data));
    ASSERT_OK(file_write_atomic(b->file[4], memory, sizeof(memory), 0644, NULL));
    *seen = (struct seen){0};
    ASSERT_OK(b->backend->ops->restore(b->backend, &b->spec, &saved, clock_now_usec() + GOOD_USEC,
                                       on_vm, seen));
    wait_for(b, &seen->calls, 1);
}

TEST(pages_lie_over_a_copy_of_the_memory)
{
    static const uint8_t expected[] = {1, 2, 1, 0};
    _cleanup_free_ char *text = NULL;
    char path[300];
    struct seen seen;
    struct bench b;
    size_t size;

    plan(99, "slow");
    bench_begin(&b);
    restore_pages(&b, false, &seen);
    ASSERT_EQ(seen.err.errnum, 0);
    (void)snprintf(path, sizeof(path), "/proc/%d/cwd/memory", (int)seen.vm.pid);
    ASSERT_OK(file_read(path, 1u << 20, &text, &size, NULL));
    ASSERT_EQ(size, 16384);
    for (size_t i = 0; i < size; i++)
        ASSERT_EQ((uint8_t)text[i], expected[i / 4096]);
    kill_vm(&b);
    restore_pages(&b, true, &seen);
    ASSERT_EQ(seen.err.code, ERR_SNAPSHOT_INVALID);
    bench_end(&b);
}

TEST(a_vm_outlives_the_backend_and_is_adopted)
{
    struct seen seen, adopted = {0};
    _cleanup_strv_ char **ids = NULL;
    struct bench b;

    plan(99, "slow");
    bench_begin(&b);
    boot(&b, GOOD_USEC, &seen);
    close_backend(&b);
    ASSERT_EQ(count_living(), 1);
    open_backend(&b);
    ASSERT_OK(b.backend->ops->list(b.backend, &ids, NULL));
    ASSERT_EQ(strv_length(ids), 1);
    ASSERT_OK(b.backend->ops->adopt(b.backend, &b.spec, on_vm, &adopted));
    wait_for(&b, &adopted.calls, 1);
    ASSERT_EQ(adopted.err.errnum, 0);
    ASSERT_EQ(adopted.vm.pid, seen.vm.pid);
    ASSERT_STREQ(adopted.vm.console_path, seen.vm.console_path);
    kill_vm(&b);
    bench_end(&b);
}

TEST(a_vm_that_ended_while_nobody_watched_is_not_adopted_and_can_be_killed)
{
    struct seen seen, adopted = {0};
    struct bench b;

    plan(99, "slow");
    bench_begin(&b);
    boot(&b, GOOD_USEC, &seen);
    close_backend(&b);
    ASSERT_OK(kill(seen.vm.pid, SIGKILL));
    (void)waitpid(seen.vm.pid, NULL, 0);
    open_backend(&b);
    ASSERT_OK(b.backend->ops->adopt(b.backend, &b.spec, on_vm, &adopted));
    wait_for(&b, &adopted.calls, 1);
    ASSERT_EQ(adopted.err.errnum, ESRCH);
    kill_vm(&b);
    bench_end(&b);
}

/* ---- pool ---- */

static void wait_for_living(struct bench *b, unsigned wanted)
{
    uint64_t until = clock_now_usec() + GOOD_USEC;

    while (count_living() != wanted) {
        if (clock_now_usec() > until)
            test_fail(__FILE__, __LINE__, "%u live, expected %u", count_living(), wanted);
        ASSERT_OK(loop_run_once(b->loop, 20 * USEC_PER_MSEC));
    }
}

TEST(idle_processes_are_used_refilled_and_end_with_the_backend)
{
    struct seen seen;
    struct bench b;

    plan(99, "slow");
    (void)setenv("HEARTH_FC_POOL", "2", 1);
    bench_begin(&b);
    boot(&b, GOOD_USEC, &seen); /* the pool is filled from then on */
    wait_for_living(&b, 3);
    kill_vm(&b);
    wait_for_living(&b, 2);
    restore(&b, GOOD_USEC, &seen); /* one of the two */
    ASSERT_EQ(seen.err.errnum, 0);
    wait_for_living(&b, 3);
    kill_vm(&b);
    close_backend(&b);
    ASSERT_EQ(count_living(), 0);
    (void)setenv("HEARTH_FC_POOL", "0", 1);
    open_backend(&b);
    bench_end(&b);
}

/* The one of the living that is not `other`, or 0. */
static pid_t some_living(pid_t other)
{
    _cleanup_free_ char *text = NULL;
    char path[200], *rest, *line;
    pid_t found = 0;

    in_tmp("pids", path, sizeof(path));
    ASSERT_OK(file_read(path, 1u << 20, &text, NULL, NULL));
    for (rest = text; (line = strsep(&rest, "\n")) != NULL;) {
        pid_t pid = (pid_t)strtol(line, NULL, 10);

        if (pid > 0 && pid != other && kill(pid, 0) == 0)
            found = pid;
    }
    return found;
}

TEST(idle_processes_that_die_or_stand_still_are_replaced)
{
    static const int signals[] = {SIGKILL, SIGSTOP};
    struct seen seen;
    struct bench b;

    plan(99, "slow");
    (void)setenv("HEARTH_FC_POOL", "1", 1);
    bench_begin(&b);
    boot(&b, GOOD_USEC, &seen);
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++) {
        pid_t idle;

        wait_for_living(&b, 2);
        idle = some_living(seen.vm.pid);
        ASSERT_TRUE(idle > 0);
        ASSERT_OK(kill(idle, signals[i]));
        while (some_living(seen.vm.pid) == idle || some_living(seen.vm.pid) == 0)
            ASSERT_OK(loop_run_once(b.loop, 100 * USEC_PER_MSEC));
    }
    kill_vm(&b);
    close_backend(&b);
    (void)setenv("HEARTH_FC_POOL", "0", 1);
    open_backend(&b);
    bench_end(&b);
}

TEST(idle_processes_of_a_daemon_that_was_killed_are_removed)
{
    struct bench b;
    pid_t child;

    install_stand_in();
    plan(99, "slow");
    (void)setenv("HEARTH_FC_POOL", "2", 1);
    child = fork();
    ASSERT_OK(child);
    if (child == 0) {
        struct seen seen;

        bench_begin(&b);
        boot(&b, GOOD_USEC, &seen);
        wait_for_living(&b, 3);
        (void)kill(getpid(), SIGKILL);
    }
    ASSERT_EQ(waitpid(child, NULL, 0), child);
    (void)setenv("HEARTH_FC_POOL", "0", 1);
    b = (struct bench){.fds = count_entries("/proc/self/fd")};
    in_tmp("s", b.state, sizeof(b.state));
    (void)snprintf(b.vm_dir, sizeof(b.vm_dir), "%s/vm", b.state);
    make_files(&b);
    ASSERT_EQ(count_living(), 3);
    open_backend(&b);
    wait_for_living(&b, 1); /* the VM stays */
    kill_vm(&b);
    bench_end(&b);
}
