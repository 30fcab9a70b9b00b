#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "core/sandbox-private.h"
#include "sleep-fixture.h"

/* Every way a backend may take snapshots; each test of a whole cycle runs with all of them. */
static void set_variant(unsigned variant)
{
    fake_knobs.closes_console = variant & 1;
    fake_knobs.from_restored = variant & 2;
}
#define VARIANTS 4u

TEST(sandbox_sleeps_without_a_process_and_wakes_by_touch)
{
    for (unsigned variant = 0; variant < VARIANTS; variant++) {
        struct fixture f;
        struct sandbox *sb;
        struct link_identity identity;

        fixture_begin(&f);
        set_variant(variant);
        sb = fixture_sandbox(&f, NULL, NULL);
        identity = sb->identity;
        for (unsigned i = 0; i < 3; i++) {
            fixture_sleep(&f, sb);
            ASSERT_EQ(fixture_count(&f, "fake"), 0);
            ASSERT_TRUE(!sandbox_console(sb, NULL));
            fixture_wake(&f, sb);
            ASSERT_TRUE(fake_knobs.n_pages > 0);
        }
        ASSERT_MEMEQ(&sb->identity, &identity, sizeof(identity));
        ASSERT_EQ(fake_knobs.n_snapshots, 3);
        ASSERT_EQ(fake_knobs.n_resumes, 0);
        fixture_remove(&f, sb);
        fixture_wait_snapshots(&f, 0);
        fixture_end(&f);
    }
}

TEST(touch_at_any_turn_of_a_pause_is_answered)
{
    for (unsigned variant = 0; variant < VARIANTS; variant += 3) {
        struct fixture f;
        struct sandbox *sb;
        struct outcome sleep, touch;
        unsigned cancelled = 0, slept = 0;

        fixture_begin(&f);
        set_variant(variant);
        sb = fixture_sandbox(&f, NULL, NULL);
        for (unsigned turns = 0; turns < 20; turns++) {
            int r;

            ASSERT_EQ(sleep_begin(sb, &sleep), 0);
            for (unsigned i = 0; i < turns; i++)
                ASSERT_OK(loop_run_once(f.loop, 20 * USEC_PER_MSEC));
            r = touch_begin(sb, &touch);
            ASSERT_OK(r);
            if (r == 0)
                fixture_wait(&f, &touch.done);
            ASSERT_EQ(touch.err.errnum, 0);
            fixture_ping(&f, sb);
            fixture_wait(&f, &sleep.done);
            if (sleep.err.errnum)
                ASSERT_EQ(sleep.err.code, ERR_CANCELLED);
            cancelled += sleep.err.errnum != 0;
            slept += sleep.err.errnum == 0;
        }
        ASSERT_TRUE(cancelled > 0);
        ASSERT_TRUE(slept > 0);
        fixture_remove(&f, sb);
        fixture_wait_snapshots(&f, 0);
        fixture_end(&f);
    }
}

TEST(daemon_that_dies_at_any_turn_of_a_pause_or_resume_loses_nothing)
{
    for (unsigned variant = 0; variant < VARIANTS; variant += 3) {
        struct fixture f;
        struct outcome o;
        char id[32];

        fixture_begin(&f);
        set_variant(variant);
        (void)snprintf(id, sizeof(id), "%s", sandbox_id(fixture_sandbox(&f, NULL, NULL)));
        for (unsigned turns = variant; turns < 40; turns += 3) {
            struct sandbox *sb = sandbox_find(f.core, id, NULL);
            bool resume = turns % 2;

            if (resume)
                fixture_sleep(&f, sb);
            ASSERT_OK(resume ? touch_begin(sb, &o) : sleep_begin(sb, &o));
            for (unsigned i = 0; i < turns / 2; i++)
                ASSERT_OK(loop_run_once(f.loop, 20 * USEC_PER_MSEC));
            outcome_done(&o);
            fixture_restart(&f);
            sb = sandbox_find(f.core, id, NULL);
            ASSERT_TRUE(sb);
            fixture_wake(&f, sb);
            ASSERT_EQ(fixture_count(&f, "fake"), 1);
        }
        fixture_remove(&f, sandbox_find(f.core, id, NULL));
        fixture_wait_snapshots(&f, 0);
        fixture_end(&f);
    }
}

/* Its VMM may have been killed: no reason why nobody else should sleep any more. */
TEST(failed_restore_of_another_leaves_the_template_to_those_who_stand_on_it)
{
    for (unsigned variant = 0; variant < 2; variant++) {
        struct fixture f;
        struct sandbox *sb;
        unsigned boots;

        fixture_begin(&f);
        set_variant(variant);
        sb = fixture_sandbox(&f, NULL, NULL);
        boots = fake_knobs.n_boots;
        fake_knobs.fail_restore = true;
        fixture_ping(&f, fixture_sandbox(&f, NULL, NULL));
        fake_knobs.fail_restore = false;
        ASSERT_EQ(fake_knobs.n_boots, boots + 1); /* that one, cold */
        fixture_sleep(&f, sb);
        fixture_wake(&f, sb);
        fixture_ping(&f, fixture_sandbox(&f, NULL, NULL));
        ASSERT_EQ(fake_knobs.n_boots, boots + 1); /* from the template again */
        fixture_sleep(&f, sb);
        fixture_wake(&f, sb);
        fixture_end(&f);
    }
}

TEST(failed_snapshot_leaves_the_sandbox_running)
{
    for (unsigned variant = 0; variant < 2; variant++) {
        struct fixture f;
        struct sandbox *sb;
        struct outcome o;

        fixture_begin(&f);
        set_variant(variant);
        sb = fixture_sandbox(&f, NULL, NULL);
        fake_knobs.fail_snapshot = true;
        ASSERT_EQ(sleep_begin(sb, &o), 0);
        fixture_wait(&f, &o.done);
        ASSERT_EQ(o.err.code, ERR_BACKEND_FAILED);
        ASSERT_TRUE(strstr(o.err.text, "as the test wants"));
        fixture_wake(&f, sb);
        fixture_wait_snapshots(&f, 0);
        fake_knobs.fail_snapshot = false;
        fixture_sleep(&f, sb);
        fixture_wake(&f, sb);
        fixture_end(&f);
    }
}

TEST(failed_resume_sleeps_on_and_can_be_tried_again)
{
    struct fixture f;
    struct sandbox *sb;
    struct outcome o;

    fixture_begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    fixture_sleep(&f, sb);
    fake_knobs.fail_restore = true;
    ASSERT_EQ(touch_begin(sb, &o), 0);
    fixture_wait(&f, &o.done);
    ASSERT_EQ(o.err.code, ERR_BACKEND_FAILED);
    ASSERT_EQ(sandbox_get_state(sb), SANDBOX_PAUSED);
    ASSERT_EQ(fixture_count(&f, "fake"), 0);
    fake_knobs.fail_restore = false;
    fake_knobs.restore_mode = "panic";
    ASSERT_EQ(touch_begin(sb, &o), 0);
    fixture_wait(&f, &o.done);
    ASSERT_TRUE(o.err.errnum);
    ASSERT_EQ(sandbox_get_state(sb), SANDBOX_PAUSED);
    fake_knobs.restore_mode = NULL;
    fixture_wake(&f, sb);
    fixture_wait_snapshots(&f, 0);
    fixture_end(&f);
}

TEST(removal_at_any_turn_leaves_nothing)
{
    struct fixture f;
    struct outcome o;

    fixture_begin(&f);
    for (unsigned turns = 0; turns < 40; turns += 3) {
        struct sandbox *sb = fixture_sandbox(&f, NULL, NULL);

        if (turns % 2)
            fixture_sleep(&f, sb);
        ASSERT_OK(turns % 2 ? touch_begin(sb, &o) : sleep_begin(sb, &o));
        for (unsigned i = 0; i < turns / 2; i++)
            ASSERT_OK(loop_run_once(f.loop, 20 * USEC_PER_MSEC));
        fixture_remove(&f, sb);
        fixture_wait_snapshots(&f, 0);
        ASSERT_EQ(fixture_count(&f, "fake"), 0);
        outcome_done(&o);
    }
    fixture_end(&f);
}

static void idles(struct sandbox_spec *spec)
{
    spec->idle_sec = 1;
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    (void)sb;
    (void)reason;
    (void)userdata;
}

TEST(unused_sandbox_sleeps_by_itself_but_not_while_somebody_has_it)
{
    struct fixture f;
    struct sandbox *sb;
    struct sandbox_watch *watch;
    uint64_t until;

    fixture_begin(&f);
    sb = fixture_sandbox(&f, idles, NULL);
    ASSERT_OK(sandbox_watch_new(sb, on_gone, NULL, &watch));
    until = clock_now_usec() + 1500 * USEC_PER_MSEC;
    while (clock_now_usec() < until)
        ASSERT_OK(loop_run_once(f.loop, 100 * USEC_PER_MSEC));
    ASSERT_EQ(sandbox_get_state(sb), SANDBOX_RUNNING);
    (void)sandbox_watch_free(watch);
    fixture_wait_state(&f, sandbox_id(sb), SANDBOX_PAUSED);
    fixture_end(&f);
}

static void lives_shortly(struct sandbox_spec *spec)
{
    spec->timeout_sec = 1;
    spec->retention_sec = 1;
    spec->on_timeout = strdup("hibernate");
}

TEST(life_ends_in_sleep_and_sleep_ends_in_removal)
{
    struct fixture f;
    char id[32];

    fixture_begin(&f);
    (void)snprintf(id, sizeof(id), "%s", sandbox_id(fixture_sandbox(&f, lives_shortly, NULL)));
    fixture_wait_state(&f, id, SANDBOX_PAUSED);
    fixture_wait_state(&f, id, -1);
    fixture_wait_snapshots(&f, 0);
    fixture_end(&f);
}

TEST(cold_booted_sandbox_says_why_it_cannot_sleep)
{
    struct fixture f;
    struct sandbox *sb;
    struct outcome o;

    fixture_begin(&f);
    fake_knobs.no_snapshots = true;
    sb = fixture_sandbox(&f, NULL, NULL);
    ASSERT_ERR(sleep_begin(sb, &o), EOPNOTSUPP);
    ASSERT_TRUE(strstr(o.err.text, "booted"));
    fixture_ping(&f, sb);
    fixture_end(&f);
}

/* ---- every step, broken ---- */

struct steps {
    char names[32][64];
    size_t n;
};

static void read_steps(const char *path, struct steps *ret)
{
    _cleanup_free_ char *text = NULL;
    size_t size;

    ASSERT_OK(file_read(path, 65536, &text, &size, NULL));
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        bool seen = false;

        *end = '\0';
        for (size_t i = 0; i < ret->n; i++)
            seen = seen || strcmp(ret->names[i], line) == 0;
        if (!seen && ret->n < ARRAY_SIZE(ret->names))
            (void)snprintf(ret->names[ret->n++], sizeof(ret->names[0]), "%s", line);
    }
}

/* One cycle, whatever comes of it; afterwards the sandbox must be usable. */
static void cycle(struct fixture *f, struct sandbox *sb)
{
    struct outcome o;

    ASSERT_EQ(sleep_begin(sb, &o), 0);
    fixture_wait(f, &o.done);
    ASSERT_EQ(sandbox_get_state(sb), o.err.errnum ? SANDBOX_RUNNING : SANDBOX_PAUSED);
    if (!o.err.errnum) {
        ASSERT_EQ(touch_begin(sb, &o), 0);
        fixture_wait(f, &o.done);
        ASSERT_EQ(sandbox_get_state(sb), o.err.errnum ? SANDBOX_PAUSED : SANDBOX_RUNNING);
    }
}

TEST(no_space_and_bad_disks_at_every_step_lose_nothing)
{
    static const char *const kinds[] = {"enospc", "eio"};
    char path[256], text[300];
    struct steps steps = {0};
    struct fixture f;
    struct sandbox *sb;
    unsigned cases = 0;

    (void)snprintf(path, sizeof(path), "%s/steps", test_tmpdir());
    fixture_begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    (void)snprintf(text, sizeof(text), "trace:%s", path);
    fault_set(text);
    cycle(&f, sb);
    read_steps(path, &steps);
    ASSERT_TRUE(steps.n >= 10);
    for (unsigned variant = 0; variant < VARIANTS; variant += 3) {
        set_variant(variant);
        for (size_t i = variant % 2; i < steps.n * ARRAY_SIZE(kinds); i += 2) {
            (void)snprintf(text, sizeof(text), "%s:%s", steps.names[i / 2], kinds[i % 2]);
            fault_set(text);
            cycle(&f, sb);
            fault_set(NULL);
            fixture_wake(&f, sb);
            cases++;
        }
    }
    (void)printf("# %zu steps, %u cases\n", steps.n, cases);
    fixture_remove(&f, sb);
    fixture_wait_snapshots(&f, 0);
    fixture_end(&f);
}
