#include "sleep-fixture.h"

#include "base/clock.h"

static void on_wait_done(struct sandbox *sb, const struct error *err, void *userdata)
{
    struct outcome *o = userdata;

    (void)sb;
    ASSERT_FALSE(o->done);
    o->done = true;
    if (err)
        o->err = *err;
    o->wait = sandbox_wait_free(o->wait);
}

static void on_call_done(json_t *result, const struct error *err, void *userdata)
{
    struct outcome *o = userdata;

    ASSERT_FALSE(o->done);
    ASSERT_FALSE(result && err);
    o->done = true;
    o->result = result;
    if (err)
        o->err = *err;
}

void outcome_done(struct outcome *o)
{
    o->wait = sandbox_wait_free(o->wait);
    json_decref(o->result);
    *o = (struct outcome){0};
}

struct core_call outcome_call(struct outcome *o)
{
    return (struct core_call){.on_done = on_call_done, .userdata = o};
}

static const struct sandbox_wait_callbacks callbacks = {.on_done = on_wait_done};

int sleep_begin(struct sandbox *sb, struct outcome *o)
{
    *o = (struct outcome){0};
    return sandbox_hibernate(sb, &callbacks, o, &o->wait, &o->err);
}

int touch_begin(struct sandbox *sb, struct outcome *o)
{
    *o = (struct outcome){0};
    return sandbox_touch(sb, &callbacks, o, &o->wait, &o->err);
}

static void to_the_end(struct fixture *f, int r, struct outcome *o)
{
    if (r == 0)
        fixture_wait(f, &o->done);
    if (r < 0 || o->err.errnum)
        test_fail(__FILE__, __LINE__, "%s", o->err.text);
}

void fixture_sleep(struct fixture *f, struct sandbox *sb)
{
    struct outcome o;

    to_the_end(f, sleep_begin(sb, &o), &o);
    ASSERT_EQ(sandbox_get_state(sb), SANDBOX_PAUSED);
    ASSERT_EQ(sandbox_pid(sb), 0);
}

void fixture_wake(struct fixture *f, struct sandbox *sb)
{
    struct outcome o;

    to_the_end(f, touch_begin(sb, &o), &o);
    ASSERT_EQ(sandbox_get_state(sb), SANDBOX_RUNNING);
    fixture_ping(f, sb);
}

void fixture_wait_snapshots(struct fixture *f, size_t count)
{
    uint64_t deadline = clock_now_usec() + 10 * USEC_PER_SEC;

    while (fixture_count(f, "snapshots") != count) {
        if (clock_now_usec() >= deadline)
            test_fail(__FILE__, __LINE__, "%zu snapshots, expected %zu",
                      fixture_count(f, "snapshots"), count);
        ASSERT_OK(loop_run_once(f->loop, 20 * USEC_PER_MSEC));
    }
}
