#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/strv.h"
#include "core-fixture.h"
#include "core/pool-private.h"
#include "erofs/image.h"

static void begin(struct fixture *f, uint32_t size)
{
    fixture_begin(f);
    f->options.pool_size = size;
    fixture_restart(f);
}

/* A figure of the only pool; -1: there is none. */
static int figure(struct fixture *f, const char *key)
{
    json_t *pools = core_pools_to_json(f->core), *pool = json_array_get(pools, 0);
    int value = pool ? (int)json_integer_value(json_object_get(pool, key)) : -1;

    json_decref(pools);
    return value;
}

static void wait_figure(struct fixture *f, const char *key, int value)
{
    uint64_t deadline = clock_now_usec() + 20 * USEC_PER_SEC;

    while (figure(f, key) != value) {
        if (clock_now_usec() >= deadline)
            test_fail(__FILE__, __LINE__, "%s is %d, waited for %d", key, figure(f, key), value);
        ASSERT_OK(loop_run_once(f->loop, 10 * USEC_PER_MSEC));
    }
}

static void wait_count(struct fixture *f, const char *sub, size_t value)
{
    uint64_t deadline = clock_now_usec() + 20 * USEC_PER_SEC;

    while (fixture_count(f, sub) != value) {
        if (clock_now_usec() >= deadline)
            test_fail(__FILE__, __LINE__, "%zu in %s, waited for %zu", fixture_count(f, sub), sub,
                      value);
        ASSERT_OK(loop_run_once(f->loop, 10 * USEC_PER_MSEC));
    }
}

static void on_stopped(void *userdata)
{
    *(bool *)userdata = true;
}

static void stop(struct fixture *f)
{
    bool done = false;

    core_stop(f->core, on_stopped, &done);
    fixture_wait(f, &done);
}

/* Nothing may be left, pooled ones included. */
static void end(struct fixture *f)
{
    stop(f);
    fixture_end(f);
}

static void count_one(struct sandbox *sb, void *userdata)
{
    (void)sb;
    ++*(unsigned *)userdata;
}

static unsigned count_listed(struct fixture *f)
{
    unsigned n = 0;

    sandbox_each(f->core, count_one, &n);
    return n;
}

static struct sandbox *claim_now(struct fixture *f, const char *name)
{
    struct sandbox_spec spec;
    struct sandbox *sb = NULL;
    struct error err = {0};
    int r;

    sandbox_spec_init(&spec);
    spec.disk_mib = 16;
    if (name)
        ASSERT_OK(string_set(&spec.name, name));
    r = sandbox_claim_or_create(f->core, &spec, NULL, NULL, &sb, &err);
    sandbox_spec_done(&spec);
    if (r != 1)
        test_fail(__FILE__, __LINE__, "no claim: %d %s", r, err.text);
    return sb;
}

TEST(second_sandbox_is_handed_over)
{
    struct fixture f;
    struct sandbox *first, *second;
    unsigned restores;
    json_t *json;

    begin(&f, 1);
    first = fixture_sandbox(&f, NULL, NULL);
    wait_figure(&f, "ready", 1);
    ASSERT_EQ(count_listed(&f), 1);
    ASSERT_EQ(fixture_count(&f, "sandboxes"), 2);
    restores = fake_knobs.n_restores;
    second = claim_now(&f, "mine");
    ASSERT_EQ(fake_knobs.n_restores, restores);
    ASSERT_EQ(sandbox_get_state(second), SANDBOX_RUNNING);
    ASSERT_TRUE(sandbox_pid(second) > 0 && sandbox_pid(second) != sandbox_pid(first));
    ASSERT_TRUE(sandbox_find(f.core, "mine", NULL) == second);
    ASSERT_EQ(count_listed(&f), 2);
    json = sandbox_to_json(second);
    ASSERT_TRUE(json_is_true(json_object_get(json_object_get(json, "timings"), "claimed")));
    json_decref(json);
    fixture_ping(&f, second);
    wait_figure(&f, "ready", 1); /* refilled */
    ASSERT_EQ(figure(&f, "claims"), 1);
    ASSERT_EQ(figure(&f, "refills"), 2);
    end(&f);
}

TEST(claim_by_callback_comes_from_the_loop)
{
    struct fixture f;
    struct created c;

    begin(&f, 1);
    (void)fixture_sandbox(&f, NULL, NULL);
    wait_figure(&f, "ready", 1);
    ASSERT_OK(fixture_create(&f, NULL, &c, NULL));
    ASSERT_FALSE(c.done);
    fixture_wait(&f, &c.done);
    ASSERT_TRUE(c.sandbox);
    ASSERT_EQ(figure(&f, "claims"), 1);
    end(&f);
}

TEST(claimed_sandbox_is_its_owners_after_a_restart)
{
    struct fixture f;
    struct sandbox *sb;
    char id[32];

    begin(&f, 1);
    fixture_remove(&f, fixture_sandbox(&f, NULL, NULL));
    wait_figure(&f, "ready", 1);
    sb = claim_now(&f, "mine");
    (void)snprintf(id, sizeof(id), "%s", sandbox_id(sb));
    fixture_restart(&f);
    sb = sandbox_find(f.core, "mine", NULL);
    ASSERT_TRUE(sb);
    ASSERT_STREQ(sandbox_id(sb), id);
    fixture_ping(&f, sb);
    end(&f);
}

TEST(pooled_ones_are_adopted_into_the_pool)
{
    struct fixture f;
    unsigned restores;

    begin(&f, 1);
    fixture_remove(&f, fixture_sandbox(&f, NULL, NULL));
    wait_figure(&f, "ready", 1);
    restores = fake_knobs.n_restores;
    fixture_restart(&f);
    wait_figure(&f, "ready", 1);
    ASSERT_EQ(fake_knobs.n_restores, restores);
    ASSERT_EQ(count_listed(&f), 0);
    fixture_ping(&f, claim_now(&f, NULL));
    end(&f);
}

TEST(pooled_ones_go_when_pools_are_off_after_a_restart)
{
    struct fixture f;

    begin(&f, 1);
    (void)fixture_sandbox(&f, NULL, NULL);
    wait_figure(&f, "ready", 1);
    ASSERT_EQ(fixture_count(&f, "fake"), 2);
    f.options.pool_size = 0;
    fixture_restart(&f);
    wait_count(&f, "sandboxes", 1);
    wait_count(&f, "fake", 1);
    ASSERT_EQ(count_listed(&f), 1);
    end(&f);
}

TEST(refill_cut_off_at_any_step_leaves_nothing)
{
    struct fixture f;
    bool filled = false;

    begin(&f, 1);
    fixture_remove(&f, fixture_sandbox(&f, NULL, NULL));
    wait_figure(&f, "ready", 1);
    for (unsigned turns = 1; turns < 60 && !filled; turns += 2) {
        f.options.pool_size = 0;
        fixture_restart(&f);
        wait_count(&f, "sandboxes", 0);
        wait_count(&f, "fake", 0);
        f.options.pool_size = 1;
        fixture_restart(&f);
        fixture_remove(&f, fixture_sandbox(&f, NULL, NULL));
        wait_figure(&f, "filling", 1);
        for (unsigned i = 0; i < turns; i++)
            ASSERT_OK(loop_run_once(f.loop, 10 * USEC_PER_MSEC));
        filled = figure(&f, "ready") == 1;
    }
    ASSERT_TRUE(filled);
    end(&f);
}

TEST(stop_ends_pooled_ones_only)
{
    struct fixture f;

    begin(&f, 3);
    (void)fixture_sandbox(&f, NULL, NULL);
    wait_figure(&f, "ready", 3);
    ASSERT_EQ(fixture_count(&f, "fake"), 4);
    stop(&f);
    ASSERT_EQ(fixture_count(&f, "fake"), 1);
    ASSERT_EQ(fixture_count(&f, "sandboxes"), 1);
    fixture_end(&f);
}

TEST(stop_in_the_middle_of_a_refill_ends_it)
{
    struct fixture f;

    begin(&f, 3);
    (void)fixture_sandbox(&f, NULL, NULL);
    for (uint64_t end = clock_now_usec() + 20 * USEC_PER_SEC; figure(&f, "filling") < 1;) {
        ASSERT_TRUE(clock_now_usec() < end);
        ASSERT_OK(loop_run_once(f.loop, 10 * USEC_PER_MSEC));
    }
    stop(&f);
    ASSERT_EQ(fixture_count(&f, "fake"), 1);
    ASSERT_EQ(fixture_count(&f, "sandboxes"), 1);
    fixture_end(&f);
}

static pid_t pooled_pid(struct fixture *f)
{
    for (size_t i = 0; i < f->core->n_sandboxes; i++) {
        if (f->core->sandboxes[i]->pooled)
            return f->core->sandboxes[i]->vm.pid;
    }
    test_fail(__FILE__, __LINE__, "nothing is pooled");
    return -1;
}

TEST(pooled_one_that_dies_is_replaced)
{
    struct fixture f;
    pid_t pid;

    begin(&f, 1);
    fixture_remove(&f, fixture_sandbox(&f, NULL, NULL));
    wait_figure(&f, "ready", 1);
    pid = pooled_pid(&f);
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    wait_figure(&f, "replaced", 1);
    wait_figure(&f, "ready", 1);
    ASSERT_TRUE(pooled_pid(&f) != pid);
    wait_count(&f, "sandboxes", 1);
    ASSERT_EQ(count_listed(&f), 0);
    end(&f);
}

TEST(pooled_one_that_is_silent_is_not_handed_out)
{
    struct fixture f;
    struct sandbox *sb;
    struct created c;
    pid_t pid;

    begin(&f, 1);
    fixture_remove(&f, fixture_sandbox(&f, NULL, NULL));
    wait_figure(&f, "ready", 1);
    pid = pooled_pid(&f);
    ASSERT_EQ(kill(pid, SIGSTOP), 0);
    f.core->pools->entries->alive_usec -= 100 * USEC_PER_SEC; /* as if it had long been silent */
    sb = fixture_sandbox(&f, NULL, &c);
    ASSERT_TRUE(sb && sandbox_pid(sb) != pid);
    ASSERT_EQ(figure(&f, "misses"), 1);
    wait_figure(&f, "replaced", 1); /* the probe told */
    wait_figure(&f, "ready", 2);    /* a miss asks for one more */
    end(&f);
}

TEST(misses_raise_the_target_and_quiet_lowers_it)
{
    struct fixture f;
    struct created created[12];

    begin(&f, 1);
    fixture_remove(&f, fixture_sandbox(&f, NULL, NULL));
    wait_figure(&f, "ready", 1);
    for (size_t i = 0; i < ARRAY_SIZE(created); i++)
        ASSERT_OK(fixture_create(&f, NULL, &created[i], NULL));
    for (size_t i = 0; i < ARRAY_SIZE(created); i++)
        fixture_wait(&f, &created[i].done);
    ASSERT_EQ(figure(&f, "claims"), 1);
    ASSERT_EQ(figure(&f, "misses"), 11);
    ASSERT_EQ(figure(&f, "target"), (int)POOL_BURST_MAX);
    wait_figure(&f, "ready", (int)POOL_BURST_MAX);
    for (int target = (int)POOL_BURST_MAX - 1; target >= 1; target--) {
        f.core->pools->pressed_usec -= 100 * USEC_PER_SEC;
        pool_wake(f.core->pools, clock_now_usec());
        wait_figure(&f, "target", target);
        wait_figure(&f, "ready", target);
    }
    ASSERT_EQ(figure(&f, "replaced"), 0);
    end(&f);
}

TEST(size_of_a_pool_is_kept)
{
    struct fixture f;
    struct error err = {0};
    json_t *pool = NULL;
    char template[64];

    begin(&f, 1);
    struct sandbox *sb = fixture_sandbox(&f, NULL, NULL);
    (void)snprintf(template, sizeof(template), "%s", sb->template_id);
    fixture_remove(&f, sb);
    ASSERT_OK(core_pool_set(f.core, template, 2, &pool, NULL));
    json_decref(pool);
    wait_figure(&f, "ready", 2);
    stop(&f);
    fixture_restart(&f);
    wait_figure(&f, "ready", 2); /* without anybody having asked for one */
    ASSERT_OK(core_pool_set(f.core, template, 0, &pool, NULL));
    json_decref(pool);
    wait_figure(&f, "ready", 0);
    wait_count(&f, "sandboxes", 0);
    (void)fixture_sandbox(&f, NULL, NULL);
    ASSERT_EQ(figure(&f, "target"), 0);
    ASSERT_ERR(core_pool_set(f.core, template, 33, &pool, &err), EINVAL);
    ASSERT_ERR(core_pool_set(f.core, "nowhere", 1, &pool, &err), ENOENT);
    ASSERT_EQ(err.code, ERR_TEMPLATE_NOT_FOUND);
    end(&f);
}

TEST(pool_goes_with_its_template)
{
    struct fixture f;
    char template[64];

    begin(&f, 2);
    struct sandbox *sb = fixture_sandbox(&f, NULL, NULL);
    (void)snprintf(template, sizeof(template), "%s", sb->template_id);
    wait_figure(&f, "ready", 2);
    fixture_remove(&f, sb);
    ASSERT_OK(core_template_remove(f.core, template, NULL)); /* pooled ones do not hold it */
    wait_count(&f, "sandboxes", 0);
    ASSERT_EQ(figure(&f, "ready"), -1);
    fixture_ping(&f, fixture_sandbox(&f, NULL, NULL)); /* makes it again, and its pool */
    wait_figure(&f, "ready", 2);
    end(&f);
}

TEST(refill_that_cannot_be_restored_ends_the_pool_only)
{
    struct fixture f;

    begin(&f, 1);
    (void)fixture_sandbox(&f, NULL, NULL);
    fake_knobs.fail_restore = true;
    wait_figure(&f, "filling", 1);
    wait_figure(&f, "filling", -1);
    wait_count(&f, "sandboxes", 1);
    fake_knobs.fail_restore = false;
    fixture_ping(&f, fixture_sandbox(&f, NULL, NULL));
    end(&f);
}

TEST(image_that_changed_is_not_served_from_the_old_pool)
{
    struct fixture f;
    struct image image;
    struct sandbox *old, *new;
    char path[512], old_template[64];

    begin(&f, 1);
    old = fixture_sandbox(&f, NULL, NULL);
    (void)snprintf(old_template, sizeof(old_template), "%s", old->template_id);
    wait_figure(&f, "ready", 1);
    (void)snprintf(path, sizeof(path), "%s/root/bin/more", test_tmpdir());
    ASSERT_OK(file_write_atomic(path, "x", 1, 0755, NULL));
    (void)snprintf(path, sizeof(path), "%s/root", test_tmpdir());
    ASSERT_OK(image_import("base", path, NULL, NULL, &image, NULL));
    new = fixture_sandbox(&f, NULL, NULL);
    ASSERT_FALSE(new->timings.claimed);
    ASSERT_TRUE(strcmp(new->template_id, old_template) != 0);
    for (struct pool *pool = f.core->pools; pool; pool = pool->next)
        pool_wake(pool, clock_now_usec());
    wait_figure(&f, "refills", 1); /* of the newest, which is the first */
    wait_count(&f, "sandboxes", 3);
    ASSERT_STREQ(f.core->pools->template_id, new->template_id);
    ASSERT_TRUE(!f.core->pools->next);
    end(&f);
}

TEST(pooled_ones_do_not_fill_the_host)
{
    struct fixture f;
    struct created c;
    struct error err = {0};

    fixture_begin(&f);
    f.options.pool_size = 1;
    f.options.max_sandboxes = 2;
    fixture_restart(&f);
    (void)fixture_sandbox(&f, NULL, NULL);
    wait_figure(&f, "ready", 1);
    (void)claim_now(&f, NULL);
    ASSERT_ERR(fixture_create(&f, NULL, &c, &err), EAGAIN);
    ASSERT_EQ(err.code, ERR_TOO_MANY);
    ASSERT_EQ(figure(&f, "filling"), 0);
    end(&f);
}
