#include <stdio.h>

#include "faults/fc-bench.h"

/*
 * Every fault of the stand-in at every API call of every verb: the answer is typed and in time, and
 * nothing is left: no process, no jail, no record, no descriptor.
 */
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

/*
 * A VM that ran before the verb: when it fails the VM runs on, or its end is told. Whichever it is,
 * it can be removed and nothing is left.
 */
static void run_running_matrix(const char *verb, verb_fn before, verb_fn fn, int skip, int calls)
{
    unsigned n = 0, lived = 0;

    for (int call = 1; call <= calls; call++)
        for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
            struct seen seen;
            struct bench b;
            uint64_t start;

            if (faults[i].hangs && fn == resume)
                continue; /* its deadline is long; a_resume_that_hangs_is_given_up */
            plan(skip + call, faults[i].name);
            bench_begin(&b);
            before(&b, GOOD_USEC, &seen);
            ASSERT_EQ(seen.err.errnum, 0);
            start = clock_now_usec();
            fn(&b, faults[i].hangs ? HANG_USEC : GOOD_USEC, &seen);
            judge(verb, call, &faults[i], &seen, clock_now_usec() - start);
            for (int turn = 0; turn < 3; turn++)
                ASSERT_OK(loop_run_once(b.loop, 0));
            ASSERT_EQ(count_living() + gone_seen.gone, 1);
            lived += count_living();
            kill_vm(&b);
            ASSERT_TRUE(gone_seen.gone <= 1);
            bench_end(&b);
            n++;
        }
    printf("# %s: %d calls, %u cases, the VM lived on in %u\n", verb, calls, n, lived);
}

TEST(every_fault_at_every_call_of_a_snapshot)
{
    run_running_matrix("snapshot", restore, snapshot, RESTORE_CALLS, SNAPSHOT_CALLS);
}

TEST(every_fault_at_a_resume)
{
    run_running_matrix("resume", restore_and_snapshot, resume, RESTORE_CALLS + SNAPSHOT_CALLS, 1);
}

TEST(a_resume_that_hangs_is_given_up)
{
    struct seen seen;
    struct bench b;

    plan(RESTORE_CALLS + SNAPSHOT_CALLS + 1, "hang-before");
    bench_begin(&b);
    restore_and_snapshot(&b, GOOD_USEC, &seen);
    resume(&b, 0, &seen);
    ASSERT_EQ(seen.err.code, ERR_TIMEOUT);
    ASSERT_EQ(gone_seen.gone, 1);
    bench_end(&b);
}

TEST(every_fault_when_a_vm_is_adopted)
{
    unsigned n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
        struct seen seen, adopted = {0};
        struct bench b;

        plan(RESTORE_CALLS + 1, faults[i].name);
        bench_begin(&b);
        restore(&b, GOOD_USEC, &seen);
        close_backend(&b);
        open_backend(&b);
        ASSERT_OK(b.backend->ops->adopt(b.backend, &b.spec, on_vm, &adopted));
        wait_for(&b, &adopted.calls, 1);
        ASSERT_EQ(adopted.calls, 1);
        kill_vm(&b);
        bench_end(&b);
        n++;
    }
    printf("# adopt: 1 call x %zu faults = %u cases\n", ARRAY_SIZE(faults), n);
}
