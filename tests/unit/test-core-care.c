#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "core/sandbox-private.h"
#include "sleep-fixture.h"
#include "store/snapshot.h"

/* What the daemon does for snapshots by itself, and repair. The fake backend's are chains here. */

static void begin(struct fixture *f)
{
    fixture_begin(f);
    fake_knobs.from_restored = true;
}

static void again(struct fixture *f, const struct core_options *rules)
{
    f->options.chain_max = rules->chain_max;
    f->options.compress_after_usec = rules->compress_after_usec;
    f->options.snapshot_quota_bytes = rules->snapshot_quota_bytes;
    fixture_restart(f);
}

static int checkpoint(struct fixture *f, struct sandbox *sb, const char *name, char ret_id[40],
                      struct error *err)
{
    struct outcome o = {0};
    const struct core_call call = outcome_call(&o);
    int r = sandbox_checkpoint(sb, name, &call, &o.err);

    if (r >= 0)
        fixture_wait(f, &o.done);
    if (err)
        *err = o.err;
    r = -o.err.errnum;
    if (r == 0)
        (void)snprintf(ret_id, 40, "%s", json_string_value(json_object_get(o.result, "id")));
    outcome_done(&o);
    return r;
}

static void rollback(struct fixture *f, struct sandbox *sb, const char *to)
{
    struct outcome o = {0};
    const struct core_call call = outcome_call(&o);

    ASSERT_OK(sandbox_rollback(sb, to, &call, &o.err));
    fixture_wait(f, &o.done);
    if (o.err.errnum)
        test_fail(__FILE__, __LINE__, "%s", o.err.text);
    outcome_done(&o);
    fixture_ping(f, sb);
}

/* Each lies over the one before it. */
static void make_chain(struct fixture *f, struct sandbox *sb, char ids[][40], unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        ASSERT_OK(checkpoint(f, sb, NULL, ids[i], NULL));
        rollback(f, sb, ids[i]);
    }
}

static json_t *list(struct fixture *f)
{
    struct outcome o = {0};
    const struct core_call call = outcome_call(&o);
    json_t *result;

    ASSERT_OK(core_snapshots(f->core, NULL, &call, &o.err));
    fixture_wait(f, &o.done);
    ASSERT_EQ(o.err.errnum, 0);
    result = json_incref(json_object_get(o.result, "snapshots"));
    outcome_done(&o);
    return result;
}

/* How many have a parent, and how many are compressed. */
static void count(struct fixture *f, unsigned *ret_high, unsigned *ret_packed)
{
    json_auto_t *all = list(f);
    json_t *one;
    size_t i;

    *ret_high = *ret_packed = 0;
    json_array_foreach(all, i, one)
    {
        *ret_high += json_object_get(one, "parent") != NULL;
        *ret_packed += json_is_true(json_object_get(one, "compressed"));
    }
}

static void wait_for(struct fixture *f, unsigned high, unsigned packed)
{
    uint64_t deadline = clock_now_usec() + 20 * USEC_PER_SEC;
    unsigned have_high, have_packed;

    for (;;) {
        count(f, &have_high, &have_packed);
        if (have_high == high && have_packed == packed)
            return;
        if (clock_now_usec() >= deadline)
            test_fail(__FILE__, __LINE__, "%u over others, %u compressed; expected %u and %u",
                      have_high, have_packed, high, packed);
        ASSERT_OK(loop_run_once(f->loop, 50 * USEC_PER_MSEC));
    }
}

static int call_for(struct fixture *f, const char *id, bool repair, struct outcome *o)
{
    const struct core_call call = outcome_call(o);
    int r;

    *o = (struct outcome){0};
    r = repair ? core_snapshot_repair(f->core, NULL, id, &call, &o->err)
               : core_snapshot_verify(f->core, NULL, id, &call, &o->err);
    if (r >= 0)
        fixture_wait(f, &o->done);
    return -o->err.errnum;
}

TEST(chains_become_flat_and_cold_ones_small_and_all_wake)
{
    struct fixture f;
    struct sandbox *sb;
    struct outcome o;
    char ids[5][40], id[32];
    unsigned high, packed;

    begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    (void)snprintf(id, sizeof(id), "%s", sandbox_id(sb));
    make_chain(&f, sb, ids, 5);
    count(&f, &high, &packed);
    ASSERT_EQ(high, 4); /* nobody has touched them */
    ASSERT_EQ(packed, 0);
    fixture_sleep(&f, sb);
    /* Flat is the third, so that the two over it, and the sleep, lie over one, two and three. */
    again(&f, &(struct core_options){.chain_max = 2, .compress_after_usec = 1});
    wait_for(&f, 3, 6);
    for (unsigned i = 0; i < 5; i++) {
        ASSERT_OK(call_for(&f, ids[i], /* repair= */ false, &o));
        outcome_done(&o);
    }
    sb = sandbox_find(f.core, id, NULL);
    fixture_wake(&f, sb);
    for (unsigned i = 0; i < 5; i++)
        rollback(&f, sb, ids[i]);
    fixture_remove(&f, sb);
    fixture_end(&f);
}

TEST(nothing_is_done_when_it_is_switched_off)
{
    struct fixture f;
    struct sandbox *sb;
    char ids[3][40];
    unsigned high, packed;
    uint64_t until;

    begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    make_chain(&f, sb, ids, 3);
    again(&f, &(struct core_options){.compress_after_usec = 3600 * USEC_PER_SEC});
    for (until = clock_now_usec() + USEC_PER_SEC; clock_now_usec() < until;)
        ASSERT_OK(loop_run_once(f.loop, 50 * USEC_PER_MSEC));
    count(&f, &high, &packed);
    ASSERT_EQ(high, 2);
    ASSERT_EQ(packed, 0);
    fixture_end(&f);
}

TEST(quota_evicts_what_nobody_named_or_stands_on)
{
    struct fixture f;
    struct sandbox *sb;
    struct error err = {0};
    char named[40], ids[3][40], late[40], id[32];
    uint64_t bytes;

    begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    (void)snprintf(id, sizeof(id), "%s", sandbox_id(sb));
    ASSERT_OK(checkpoint(&f, sb, "named", named, NULL));
    for (unsigned i = 0; i < 3; i++)
        ASSERT_OK(checkpoint(&f, sb, NULL, ids[i], NULL));
    bytes = snapshot_store_bytes(f.core->snapshots);
    again(&f, &(struct core_options){.snapshot_quota_bytes = bytes});
    sb = sandbox_find(f.core, id, NULL);
    ASSERT_OK(checkpoint(&f, sb, NULL, late, NULL)); /* the oldest without a name goes */
    ASSERT_EQ(snapshot_depth(f.core->snapshots, named), 1);
    ASSERT_EQ(snapshot_depth(f.core->snapshots, ids[0]), 0);
    ASSERT_EQ(snapshot_depth(f.core->snapshots, ids[1]), 1);
    ASSERT_TRUE(snapshot_store_bytes(f.core->snapshots) <= bytes);
    rollback(&f, sb, ids[1]); /* which it stands on from now on */
    ASSERT_OK(checkpoint(&f, sb, "b", ids[0], NULL));
    ASSERT_EQ(snapshot_depth(f.core->snapshots, ids[2]), 0);
    ASSERT_EQ(snapshot_depth(f.core->snapshots, ids[1]), 1);
    ASSERT_OK(checkpoint(&f, sb, "c", ids[2], NULL));
    ASSERT_EQ(snapshot_depth(f.core->snapshots, late), 0);
    ASSERT_ERR(checkpoint(&f, sb, "d", late, &err), EDQUOT); /* only such as must stay are left */
    ASSERT_EQ(err.code, ERR_QUOTA_EXCEEDED);
    ASSERT_TRUE(strstr(err.text, "would pass the quota of") != NULL);
    ASSERT_EQ(sandbox_get_state(sb), SANDBOX_RUNNING);
    fixture_ping(&f, sb);
    ASSERT_EQ(fixture_count(&f, "snapshots"), 4);
    fixture_end(&f);
}

static void flip(struct fixture *f, const char *id, const char *name)
{
    char path[600];
    uint8_t byte;
    off_t at;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/snapshots/%s/%s", f->state, id, name);
    fd = open(path, O_RDWR | O_CLOEXEC);
    ASSERT_OK(fd);
    at = lseek(fd, 0, SEEK_DATA);
    ASSERT_TRUE(at >= 0 && pread(fd, &byte, 1, at + 2) == 1);
    byte ^= 1;
    ASSERT_EQ(pwrite(fd, &byte, 1, at + 2), 1);
    (void)fd_close(fd);
}

TEST(repair_mends_what_it_can_and_says_what_it_cannot)
{
    struct fixture f;
    struct sandbox *sb;
    struct outcome o;
    char ids[2][40];

    begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    make_chain(&f, sb, ids, 2);
    ASSERT_OK(call_for(&f, ids[1], true, &o));
    ASSERT_TRUE(json_is_false(json_object_get(o.result, "repaired")));
    outcome_done(&o);
    flip(&f, ids[0], "memory"); /* the second has pages of its own for all of it */
    ASSERT_TRUE(call_for(&f, ids[1], false, &o) < 0);
    ASSERT_EQ(o.err.code, ERR_SNAPSHOT_INVALID);
    ASSERT_OK(call_for(&f, ids[1], true, &o));
    ASSERT_TRUE(json_is_true(json_object_get(o.result, "repaired")));
    ASSERT_TRUE(json_object_get(o.result, "parent") == NULL);
    ASSERT_TRUE(strstr(json_string_value(json_object_get(o.result, "damage")), "is damaged"));
    outcome_done(&o);
    ASSERT_OK(call_for(&f, ids[1], false, &o));
    outcome_done(&o);
    rollback(&f, sb, ids[1]);
    ASSERT_TRUE(call_for(&f, ids[0], true, &o) < 0); /* its own page is lost */
    ASSERT_EQ(o.err.code, ERR_SNAPSHOT_INVALID);
    ASSERT_TRUE(strstr(o.err.text, "cannot be repaired") && strstr(o.err.text, ids[0]));
    ASSERT_EQ(fixture_count(&f, "snapshots"), 2); /* it is left as it is */
    flip(&f, ids[1], "manifest.json");
    fixture_restart(&f); /* not even listed any more, but one can ask why */
    ASSERT_TRUE(call_for(&f, ids[1], true, &o) < 0);
    ASSERT_EQ(o.err.code, ERR_SNAPSHOT_INVALID);
    ASSERT_TRUE(call_for(&f, "nosuch", true, &o) < 0);
    ASSERT_EQ(o.err.code, ERR_SNAPSHOT_NOT_FOUND);
    fixture_end(&f);
}
