#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/file.h"
#include "core-fixture.h"
#include "core/store.h"

static void remember(const struct sandbox *sb, char id[32])
{
    (void)snprintf(id, 32, "%s", sandbox_id(sb));
}

TEST(running_sandbox_is_adopted)
{
    struct fixture f;
    struct sandbox *sb;
    char id[32];
    pid_t pid;

    fixture_begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    remember(sb, id);
    pid = sandbox_pid(sb);
    fixture_restart(&f);
    sb = sandbox_find(f.core, id, NULL);
    ASSERT_TRUE(sb);
    ASSERT_EQ(sandbox_get_state(sb), SANDBOX_RUNNING);
    ASSERT_EQ(sandbox_pid(sb), pid);
    fixture_ping(&f, sb);
    fixture_restart(&f); /* and once more */
    fixture_ping(&f, sandbox_find(f.core, id, NULL));
    fixture_end(&f);
}

TEST(sandbox_whose_vm_died_meanwhile_has_failed)
{
    struct fixture f;
    struct sandbox *sb;
    struct error err = {0};
    siginfo_t info;
    char id[32];
    pid_t pid;

    fixture_begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    remember(sb, id);
    pid = sandbox_pid(sb);
    fixture_drop(&f);
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    ASSERT_OK(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT));
    fixture_restart(&f);
    fixture_wait_state(&f, id, SANDBOX_FAILED);
    sb = sandbox_find(f.core, id, NULL);
    ASSERT_TRUE(!sandbox_console(sb, &err));
    ASSERT_EQ(err.code, ERR_SANDBOX_FAILED);
    fixture_restart(&f); /* stays failed, with its reason */
    sb = sandbox_find(f.core, id, NULL);
    ASSERT_EQ(sandbox_get_state(sb), SANDBOX_FAILED);
    ASSERT_TRUE(!sandbox_console(sb, &err));
    ASSERT_TRUE(strstr(err.text, "no daemon watched it"));
    fixture_end(&f);
}

/* Restarts after ever more turns of a creation, each of which waits so long; whether one got done.
 */
static bool creation_cut_off(unsigned max_turns, uint64_t wait_usec)
{
    struct fixture f;
    struct created c = {0};

    fixture_begin(&f);
    for (unsigned turns = 0; turns < max_turns && !c.done; turns++) {
        ASSERT_OK(fixture_create(&f, NULL, &c, NULL));
        for (unsigned i = 0; i < turns && !c.done; i++)
            ASSERT_OK(loop_run_once(f.loop, wait_usec));
        fixture_restart(&f);
        if (c.done) { /* it was there: it still is */
            ASSERT_EQ(fixture_count(&f, "sandboxes"), 1);
            continue;
        }
        ASSERT_EQ(fixture_count(&f, "sandboxes"), 0);
        ASSERT_EQ(fixture_count(&f, "fake"), 0);
    }
    fixture_end(&f);
    return c.done;
}

TEST(creation_cut_off_at_any_step_leaves_nothing)
{
    ASSERT_TRUE(creation_cut_off(40, 100 * USEC_PER_MSEC));
}

/* The loop does not wait for the workers, so that one is at it when the core goes. */
TEST(creation_cut_off_while_a_worker_is_at_it_leaves_nothing)
{
    (void)creation_cut_off(10, 0);
}

TEST(removal_cut_off_is_finished)
{
    struct fixture f;
    struct sandbox *sb;
    char id[32];

    fixture_begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    remember(sb, id);
    ASSERT_OK(sandbox_remove(sb, NULL, NULL));
    fixture_restart(&f);
    ASSERT_TRUE(!sandbox_find(f.core, id, NULL));
    ASSERT_EQ(fixture_count(&f, "sandboxes"), 0);
    ASSERT_EQ(fixture_count(&f, "fake"), 0);
    fixture_end(&f);
}

TEST(directories_of_nobody_are_removed)
{
    struct fixture f;
    char path[512];

    fixture_begin(&f);
    fixture_drop(&f);
    (void)snprintf(path, sizeof(path), "%s/sandboxes/zzzzzzzzzzzzzzzz/deep", f.state);
    ASSERT_OK(dir_create(path, 0700, NULL));
    (void)snprintf(path, sizeof(path), "%s/templates/0123.tmp-tmpl-x", f.state);
    ASSERT_OK(dir_create(path, 0700, NULL));
    fixture_restart(&f);
    for (uint64_t end = clock_now_usec() + 5 * USEC_PER_SEC;
         fixture_count(&f, "sandboxes") + fixture_count(&f, "templates") > 0;) {
        ASSERT_TRUE(clock_now_usec() < end);
        ASSERT_OK(loop_run_once(f.loop, 10 * USEC_PER_MSEC));
    }
    fixture_end(&f);
}

TEST(second_daemon_on_one_state_is_refused)
{
    struct fixture f;
    struct core *second = NULL;
    struct error err = {0};

    fixture_begin(&f);
    ASSERT_ERR(core_new(f.loop, &f.options, &second, &err), EBUSY);
    ASSERT_TRUE(strstr(err.text, "another hearthd"));
    fixture_end(&f);
}

static void ask_life(struct sandbox_spec *spec)
{
    spec->timeout_sec = 3;
}

TEST(life_time_goes_on_after_a_restart)
{
    struct fixture f;
    char id[32];

    fixture_begin(&f);
    remember(fixture_sandbox(&f, ask_life, NULL), id);
    fixture_restart(&f);
    fixture_wait_state(&f, id, -1);
    fixture_end(&f);
}

TEST(template_is_found_again)
{
    struct fixture f;

    fixture_begin(&f);
    fixture_remove(&f, fixture_sandbox(&f, NULL, NULL));
    fixture_restart(&f);
    (void)fixture_sandbox(&f, NULL, NULL);
    ASSERT_EQ(fake_knobs.n_boots, 1);
    fixture_end(&f);
}
