#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/firecracker/firecracker.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"
#include "base/worker.h"
#include "harness/test.h"

/*
 * Every fault of the stand-in at every API call of every verb: the answer is typed and in time, and
 * nothing is left: no process, no jail, no record, no descriptor.
 */
#define HANG_USEC (300 * USEC_PER_MSEC) /* deadline of verbs that will hang */
#define GOOD_USEC (20 * USEC_PER_SEC)
#define LATE_USEC (1 * USEC_PER_SEC)
#define BOOT_CALLS 9
#define RESTORE_CALLS 2
#define SAVE_CALLS 2

struct bench {
    struct loop *loop;
    struct workers *workers;
    struct backend *backend;
    char state[128];
    char vm_dir[160];
    char file[6][200]; /* image, disk, kernel, initramfs, memory, state */
    struct vm_spec spec;
    unsigned fds; /* open before */
};

struct seen {
    unsigned calls;
    struct error err;
    struct backend_vm vm;
    unsigned gone;
};

static struct seen gone_seen;

static void on_gone(const char *id, const char *reason, void *userdata)
{
    (void)id;
    (void)userdata;
    gone_seen.gone++;
    (void)snprintf(gone_seen.err.text, sizeof(gone_seen.err.text), "%s", reason);
}

static void on_vm(const struct backend_vm *vm, const struct error *err, void *userdata)
{
    struct seen *seen = userdata;

    seen->calls++;
    if (err)
        seen->err = *err;
    else
        seen->vm = *vm;
}

static void on_done(const struct error *err, void *userdata)
{
    struct seen *seen = userdata;

    seen->calls++;
    if (err)
        seen->err = *err;
}

static void in_tmp(const char *name, char *path, size_t size)
{
    (void)snprintf(path, size, "%s/%s", test_tmpdir(), name);
}

static void plan(int call, const char *fault)
{
    char path[200], text[64];

    in_tmp("plan", path, sizeof(path));
    (void)snprintf(text, sizeof(text), "%d %s\n", call, fault);
    ASSERT_OK(file_write_atomic(path, text, strlen(text), 0600, NULL));
}

static void install_stand_in(void)
{
    static bool done;
    char path[200];

    if (done)
        return;
    done = true;
    log_set_level(getenv("HEARTH_TEST_LOG") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
    in_tmp("firecracker", path, sizeof(path));
    ASSERT_OK(file_copy_sparse(STAND_IN, path, 0755, NULL));
    (void)setenv("HEARTH_FIRECRACKER", path, 1);
    (void)setenv("HEARTH_JAILER", "/nonexistent", 1);
    (void)setenv("HEARTH_FC_POOL", "0", 0);
    ASSERT_OK(prctl(PR_SET_CHILD_SUBREAPER, 1));
}

static void make_files(struct bench *b)
{
    static const char *const names[] = {"image", "disk", "kernel", "initramfs", "memory", "state"};

    for (int i = 0; i < 6; i++) {
        (void)snprintf(b->file[i], sizeof(b->file[i]), "%s/f-%s", b->state, names[i]);
        ASSERT_OK(file_write_atomic(b->file[i], "x", 1, 0644, NULL));
    }
    b->spec = (struct vm_spec){
        .id = "vm-1",
        .dir = b->vm_dir,
        .cpus = 1,
        .memory_mib = 128,
        .image = b->file[0],
        .disk = b->file[1],
        .kernel = b->file[2],
        .initramfs = b->file[3],
        .memory_file = b->file[4],
    };
}

static void open_backend(struct bench *b)
{
    struct backend_env env = {.state_dir = b->state, .gone = on_gone};
    struct error err = {0};

    ASSERT_OK(loop_new(&b->loop));
    ASSERT_OK(workers_new(b->loop, "w", 2, 64, &b->workers));
    env.loop = b->loop;
    env.workers = b->workers;
    if (backend_firecracker_new(&env, &b->backend, &err) < 0)
        test_fail(__FILE__, __LINE__, "backend: %s", err.text);
}

static void close_backend(struct bench *b)
{
    b->backend->ops->quiesce(b->backend);
    b->workers = workers_free(b->workers);
    for (int i = 0; i < 2; i++)
        (void)loop_run_once(b->loop, 0);
    b->backend = b->backend->ops->free(b->backend);
    b->loop = loop_free(b->loop);
}

static unsigned count_entries(const char *path)
{
    unsigned n = 0;
    struct dirent *e;
    DIR *d = opendir(path);

    while (d && (e = readdir(d)))
        n += e->d_name[0] != '.';
    if (d)
        (void)closedir(d);
    return n;
}

static void bench_begin(struct bench *b)
{
    char pids[200];

    install_stand_in();
    *b = (struct bench){.fds = count_entries("/proc/self/fd")};
    memset(&gone_seen, 0, sizeof(gone_seen));
    in_tmp("pids", pids, sizeof(pids));
    (void)unlink(pids);
    in_tmp("s", b->state, sizeof(b->state));
    (void)snprintf(b->vm_dir, sizeof(b->vm_dir), "%s/vm", b->state);
    ASSERT_OK(dir_create(b->vm_dir, 0700, NULL));
    make_files(b);
    open_backend(b);
}

static void wait_for(struct bench *b, const unsigned *count, unsigned wanted)
{
    uint64_t until = clock_now_usec() + GOOD_USEC;

    while (*count < wanted) {
        if (clock_now_usec() > until)
            test_fail(__FILE__, __LINE__, "no answer in time");
        ASSERT_OK(loop_run_once(b->loop, 100 * USEC_PER_MSEC));
    }
}

/* ---- what may be left: nothing ---- */

static unsigned count_living(void)
{
    _cleanup_free_ char *text = NULL;
    char path[200], *rest, *line;
    unsigned n = 0;

    in_tmp("pids", path, sizeof(path));
    if (file_read(path, 1u << 20, &text, NULL, NULL) < 0)
        return 0;
    for (rest = text; (line = strsep(&rest, "\n")) != NULL;)
        n += *line && kill((pid_t)strtol(line, NULL, 10), 0) == 0;
    return n;
}

static void assert_nothing_left(const struct bench *b)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/fc/firecracker", b->state);
    ASSERT_EQ(count_entries(path), 0);
    (void)snprintf(path, sizeof(path), "%s/fc/vms", b->state);
    ASSERT_EQ(count_entries(path), 0);
    ASSERT_EQ(count_living(), 0);
}

static void bench_end(struct bench *b)
{
    assert_nothing_left(b);
    close_backend(b);
    ASSERT_EQ(count_entries("/proc/self/fd"), b->fds);
    ASSERT_OK(dir_remove(b->state, NULL));
}

/* ---- verbs ---- */

static void kill_vm(struct bench *b)
{
    struct seen seen = {0};

    ASSERT_OK(b->backend->ops->kill(b->backend, "vm-1", on_done, &seen));
    wait_for(b, &seen.calls, 1);
    ASSERT_EQ(seen.err.errnum, 0);
}

static void boot(struct bench *b, uint64_t timeout_usec, struct seen *seen)
{
    *seen = (struct seen){0};
    ASSERT_OK(
        b->backend->ops->boot(b->backend, &b->spec, clock_now_usec() + timeout_usec, on_vm, seen));
    wait_for(b, &seen->calls, 1);
}

static void restore(struct bench *b, uint64_t timeout_usec, struct seen *seen)
{
    const struct vm_saved saved = {.memory_file = b->file[4], .state_file = b->file[5]};

    *seen = (struct seen){0};
    ASSERT_OK(b->backend->ops->restore(b->backend, &b->spec, &saved,
                                       clock_now_usec() + timeout_usec, on_vm, seen));
    wait_for(b, &seen->calls, 1);
}

static void save(struct bench *b, uint64_t timeout_usec, struct seen *seen)
{
    *seen = (struct seen){0};
    ASSERT_OK(b->backend->ops->save(b->backend, "vm-1", b->file[5], clock_now_usec() + timeout_usec,
                                    on_done, seen));
    wait_for(b, &seen->calls, 1);
}

/* ---- calls x faults ---- */

static const struct fault {
    const char *name;
    enum error_code code;  /* ERR_NONE: the verb succeeds all the same */
    enum error_code other; /* also right: which of two ends is seen first */
    bool hangs;
} faults[] = {
    {"hang-before", ERR_TIMEOUT, ERR_TIMEOUT, true},
    {"hang-after", ERR_TIMEOUT, ERR_TIMEOUT, true},
    {"die-before", ERR_BACKEND_FAILED, ERR_BACKEND_FAILED, false},
    {"die-after", ERR_BACKEND_FAILED, ERR_BACKEND_FAILED, false},
    {"close-early", ERR_BACKEND_FAILED, ERR_BACKEND_FAILED, false},
    {"error-400", ERR_BACKEND_FAILED, ERR_BACKEND_FAILED, false},
    {"error-500", ERR_BACKEND_FAILED, ERR_BACKEND_FAILED, false},
    {"half-header", ERR_BACKEND_FAILED, ERR_BACKEND_FAILED, false},
    {"half-header-hang", ERR_TIMEOUT, ERR_TIMEOUT, true},
    {"half-body", ERR_BACKEND_FAILED, ERR_BACKEND_FAILED, false},
    {"wrong-json", ERR_BACKEND_FAILED, ERR_BACKEND_FAILED, false},
    {"garbage", ERR_BACKEND_FAILED, ERR_BACKEND_FAILED, false},
    {"huge-json", ERR_BACKEND_FAILED, ERR_BACKEND_FAILED, false},
    {"endless-json", ERR_BACKEND_FAILED, ERR_BACKEND_FAILED, false},
    {"slow", ERR_NONE, ERR_NONE, false},
};

typedef void (*verb_fn)(struct bench *b, uint64_t timeout_usec, struct seen *seen);

static void judge(const char *verb, int call, const struct fault *fault, const struct seen *seen,
                  uint64_t took_usec)
{
    if (seen->calls != 1)
        test_fail(__FILE__, __LINE__, "%s, call %d, %s: %u answers", verb, call, fault->name,
                  seen->calls);
    if (seen->err.code != fault->code && seen->err.code != fault->other)
        test_fail(__FILE__, __LINE__, "%s, call %d, %s: code %s (%s)", verb, call, fault->name,
                  error_code_name(seen->err.code), seen->err.text);
    if (fault->hangs && took_usec > HANG_USEC + LATE_USEC)
        test_fail(__FILE__, __LINE__, "%s, call %d, %s: %llu us", verb, call, fault->name,
                  (unsigned long long)took_usec);
}

static void run_matrix(const char *verb, verb_fn before, verb_fn fn, int skip, int calls)
{
    unsigned n = 0;

    for (int call = 1; call <= calls; call++)
        for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
            struct seen seen;
            struct bench b;
            uint64_t start;

            plan(skip + call, faults[i].name);
            bench_begin(&b);
            if (before) {
                before(&b, GOOD_USEC, &seen);
                ASSERT_EQ(seen.err.errnum, 0);
            }
            start = clock_now_usec();
            fn(&b, faults[i].hangs ? HANG_USEC : GOOD_USEC, &seen);
            judge(verb, call, &faults[i], &seen, clock_now_usec() - start);
            if (!seen.err.errnum && fn != save)
                kill_vm(&b);
            ASSERT_EQ(gone_seen.gone, 0);
            bench_end(&b);
            n++;
        }
    printf("# %s: %d calls x %zu faults = %u cases\n", verb, calls, ARRAY_SIZE(faults), n);
}

TEST(every_fault_at_every_call_of_a_boot)
{
    run_matrix("boot", NULL, boot, 0, BOOT_CALLS);
}

TEST(every_fault_at_every_call_of_a_restore)
{
    run_matrix("restore", NULL, restore, 0, RESTORE_CALLS);
}

TEST(every_fault_at_every_call_of_a_save)
{
    run_matrix("save", boot, save, BOOT_CALLS, SAVE_CALLS);
}

/* ---- around the calls ---- */

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

        plan(call, "hang-before");
        bench_begin(&b);
        ASSERT_OK(
            b.backend->ops->boot(b.backend, &b.spec, clock_now_usec() + GOOD_USEC, on_vm, &seen));
        for (int turn = 0; turn < 3 * call; turn++) /* somewhere on the way */
            (void)loop_run_once(b.loop, 10 * USEC_PER_MSEC);
        ASSERT_OK(b.backend->ops->kill(b.backend, "vm-1", on_done, &killed));
        wait_for(&b, &killed.calls, 1);
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
