#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "core/core-private.h"
#include "core/lifecycle.h"
#include "core/sandbox-private.h"
#include "harness/test.h"

struct world {
    struct loop *loop;
    struct core *core;
};

static void begin(struct world *w)
{
    static unsigned number;
    char state[256];
    struct core_options options = {.state_dir = state};

    log_set_level(getenv("HEARTH_TEST_LOG") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
    (void)snprintf(state, sizeof(state), "%s/%u", test_tmpdir(), number++);
    ASSERT_OK(loop_new(&w->loop));
    ASSERT_OK(core_new(w->loop, &options, &w->core, NULL));
}

static void end(struct world *w)
{
    w->core = core_free(w->core);
    w->loop = loop_free(w->loop);
}

static struct sandbox *make(struct world *w, enum sandbox_state state)
{
    struct sandbox_spec spec;
    struct sandbox *sb = NULL;

    sandbox_spec_init(&spec);
    ASSERT_OK(sandbox_new(w->core, &spec, NULL, &sb, NULL));
    sandbox_spec_done(&spec);
    ASSERT_OK(core_add_sandbox(w->core, sb));
    sb->state = state;
    ASSERT_OK(sandbox_store(sb, NULL));
    return sb;
}

/* -1: cannot happen, -2: on its way out. */
static const int expected[SANDBOX_STATE_COUNT][SANDBOX_EVENT_COUNT] = {
    /* ready, failed, guest-off, remove, expired, overdue, pause, paused, resume, rollback */
    [SANDBOX_CREATING] = {SANDBOX_RUNNING, -2, -2, -2, -2, -2, -1, -1, -1, -1},
    /* A machine that cannot be snapshotted is back from its pause at once. */
    [SANDBOX_RUNNING] = {-1, SANDBOX_FAILED, SANDBOX_STOPPED, -2, -2, -1, SANDBOX_RUNNING, -1,
                         SANDBOX_RUNNING, SANDBOX_RESUMING},
    [SANDBOX_PAUSING] = {SANDBOX_RUNNING, SANDBOX_FAILED, SANDBOX_FAILED, -2, -2, SANDBOX_FAILED,
                         SANDBOX_PAUSING, SANDBOX_PAUSED, SANDBOX_PAUSING, -1},
    [SANDBOX_PAUSED] = {-1, SANDBOX_FAILED, SANDBOX_FAILED, -2, -2, -1, SANDBOX_PAUSED, -1,
                        SANDBOX_RESUMING, SANDBOX_RESUMING},
    /* What cannot be resumed sleeps on. */
    [SANDBOX_RESUMING] = {SANDBOX_RUNNING, SANDBOX_PAUSED, SANDBOX_PAUSED, -2, -2, SANDBOX_PAUSED,
                          SANDBOX_RESUMING, SANDBOX_PAUSED, SANDBOX_RESUMING, -1},
    [SANDBOX_STOPPING] = {-1, SANDBOX_FAILED, SANDBOX_STOPPING, SANDBOX_STOPPING, SANDBOX_STOPPING,
                          SANDBOX_FAILED, SANDBOX_STOPPING, SANDBOX_STOPPING, SANDBOX_STOPPING, -1},
    [SANDBOX_STOPPED] = {-1, SANDBOX_STOPPED, SANDBOX_STOPPED, -2, -2, -1, -1, SANDBOX_STOPPED, -1,
                         SANDBOX_RESUMING},
    [SANDBOX_FAILED] = {-1, SANDBOX_FAILED, SANDBOX_FAILED, -2, -2, -1, -1, SANDBOX_FAILED, -1,
                        SANDBOX_RESUMING},
};

TEST(every_pair_of_state_and_event_does_what_the_table_says)
{
    for (int state = 0; state < SANDBOX_STATE_COUNT; state++) {
        for (int event = 0; event < SANDBOX_EVENT_COUNT; event++) {
            struct world w;
            struct sandbox *sb;
            struct error reason = {0};
            int want = expected[state][event], r;

            begin(&w);
            sb = make(&w, (enum sandbox_state)state);
            (void)error_set_code(&reason, ERR_GUEST_GONE, "test");
            log_set_level(LOG_LEVEL_ERROR - 1);
            r = sandbox_event(sb, (enum sandbox_event)event, &reason);
            if (want == -1) {
                ASSERT_ERR(r, EBADMSG);
                ASSERT_EQ(sb->state, state);
            } else {
                ASSERT_OK(r);
                ASSERT_EQ(sb->state, want == -2 ? SANDBOX_STOPPING : want);
            }
            end(&w);
        }
    }
}

TEST(events_and_deadlines_are_complete)
{
    for (int event = 0; event < SANDBOX_EVENT_COUNT; event++)
        ASSERT_TRUE(sandbox_event_name((enum sandbox_event)event)[0]);
    for (int state = 0; state < SANDBOX_STATE_COUNT; state++)
        ASSERT_TRUE(sandbox_state_timeout_usec((enum sandbox_state)state) > 0);
}

TEST(failure_is_kept_in_the_row)
{
    struct world w;
    struct sandbox *sb;
    struct error reason = {0};
    json_t *json, *error;

    begin(&w);
    sb = make(&w, SANDBOX_RUNNING);
    (void)error_set_code(&reason, ERR_GUEST_PANIC, "the kernel crashed");
    ASSERT_OK(sandbox_event(sb, EVENT_FAILED, &reason));
    json = sandbox_to_json(sb);
    error = json_object_get(json, "error");
    ASSERT_STREQ(json_string_value(json_object_get(error, "code")), "guest_panic");
    ASSERT_STREQ(json_string_value(json_object_get(error, "message")), "the kernel crashed");
    json_decref(json);
    end(&w);
}

TEST(removed_sandbox_leaves_the_table)
{
    struct world w;

    begin(&w);
    ASSERT_OK(sandbox_remove(make(&w, SANDBOX_STOPPED), NULL, NULL));
    for (uint64_t deadline = clock_now_usec() + 5 * USEC_PER_SEC; w.core->n_sandboxes > 0;) {
        ASSERT_TRUE(clock_now_usec() < deadline);
        ASSERT_OK(loop_run_once(w.loop, 10 * USEC_PER_MSEC));
    }
    end(&w);
}
