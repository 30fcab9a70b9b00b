#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "core/sandbox-private.h"
#include "exec-seen.h"
#include "host/exec.h"
#include "sleep-fixture.h"

static void set_variant(unsigned variant)
{
    fake_knobs.closes_console = variant & 1;
    fake_knobs.from_restored = variant & 2;
}
#define VARIANTS 4u

static int fork_begin(struct fixture *f, struct sandbox *parent, const char *snapshot,
                      uint32_t count, const char *name, struct outcome *o, struct fork **ret)
{
    const struct fork_options options = {
        .parent = parent, .snapshot = snapshot, .count = count, .name = name};
    struct core_call call;

    *o = (struct outcome){0};
    call = outcome_call(o);
    return core_fork(f->core, &options, &call, ret, &o->err);
}

static void fork_to_the_end(struct fixture *f, struct sandbox *parent, const char *snapshot,
                            uint32_t count, const char *name, struct outcome *o)
{
    struct fork *fork;

    if (fork_begin(f, parent, snapshot, count, name, o, &fork) < 0)
        test_fail(__FILE__, __LINE__, "fork: %s", o->err.text);
    fixture_wait(f, &o->done);
}

static struct sandbox *child(struct fixture *f, const struct outcome *o, size_t i)
{
    const json_t *list = json_object_get(o->result, "sandboxes");
    const char *id = json_string_value(json_object_get(json_array_get(list, i), "id"));

    ASSERT_TRUE(id);
    return core_sandbox_by_id(f->core, id);
}

TEST(children_run_with_identities_of_their_own_and_the_parent_goes_on)
{
    for (unsigned variant = 0; variant < VARIANTS; variant++) {
        struct fixture f;
        struct sandbox *parent;
        struct link_identity identity;
        struct outcome o;

        fixture_begin(&f);
        set_variant(variant);
        parent = fixture_sandbox(&f, NULL, NULL);
        identity = parent->identity;
        fork_to_the_end(&f, parent, NULL, 5, "kid", &o);
        ASSERT_EQ(o.err.errnum, 0);
        ASSERT_EQ(json_array_size(json_object_get(o.result, "sandboxes")), 5);
        for (size_t i = 0; i < 5; i++) {
            struct sandbox *sb = child(&f, &o, i);

            ASSERT_TRUE(strncmp(sb->spec.name, "kid-", 4) == 0);
            ASSERT_TRUE(strcmp(sb->identity.machine_id, identity.machine_id) != 0);
            for (size_t j = 0; j < i; j++)
                ASSERT_TRUE(strcmp(sb->identity.boot_id, child(&f, &o, j)->identity.boot_id) != 0);
            fixture_ping(&f, sb);
        }
        ASSERT_MEMEQ(&parent->identity, &identity, sizeof(identity));
        fixture_wake(&f, parent);
        ASSERT_EQ(fake_knobs.n_snapshots, 1);
        if (!fake_knobs.from_restored)
            fixture_wait_snapshots(&f, 0);
        else
            ASSERT_EQ(fixture_count(&f, "snapshots"), 1); /* the children's memory lies over it */
        fixture_sleep(&f, child(&f, &o, 0));
        fixture_wake(&f, child(&f, &o, 0));
        for (size_t i = 0; i < 5; i++)
            fixture_remove(&f, child(&f, &o, i));
        fixture_remove(&f, parent);
        fixture_wait_snapshots(&f, 0);
        outcome_done(&o);
        fixture_end(&f);
    }
}

TEST(one_child_that_fails_takes_the_others_along)
{
    struct fixture f;
    struct sandbox *parent;
    struct outcome o;

    fixture_begin(&f);
    parent = fixture_sandbox(&f, NULL, NULL);
    fault_set("wake-machine:eio");
    fork_to_the_end(&f, parent, NULL, 3, NULL, &o);
    fault_set(NULL);
    ASSERT_TRUE(o.err.errnum);
    while (f.core->n_sandboxes > 1)
        ASSERT_OK(loop_run_once(f.loop, 20 * USEC_PER_MSEC));
    fixture_wake(&f, parent);
    fixture_wait_snapshots(&f, 0);
    fixture_end(&f);
}

TEST(cancelled_fork_leaves_nothing_at_any_turn)
{
    struct fixture f;
    struct sandbox *parent;

    fixture_begin(&f);
    parent = fixture_sandbox(&f, NULL, NULL);
    for (unsigned turns = 0; turns < 24; turns += 2) {
        struct outcome o;
        struct fork *fork;
        uint64_t deadline = clock_now_usec() + 10 * USEC_PER_SEC;

        ASSERT_OK(fork_begin(&f, parent, NULL, 2, NULL, &o, &fork));
        for (unsigned i = 0; i < turns && !o.done; i++)
            ASSERT_OK(loop_run_once(f.loop, 20 * USEC_PER_MSEC));
        if (o.done) {
            fixture_remove(&f, child(&f, &o, 0));
            fixture_remove(&f, child(&f, &o, 1));
        } else {
            core_fork_cancel(fork);
        }
        while (f.core->n_sandboxes > 1 || f.core->forks || parent->take) {
            ASSERT_TRUE(clock_now_usec() < deadline);
            ASSERT_OK(loop_run_once(f.loop, 20 * USEC_PER_MSEC));
        }
        fixture_wake(&f, parent);
        fixture_wait_snapshots(&f, 0);
        outcome_done(&o);
    }
    fixture_end(&f);
}

TEST(daemon_that_dies_at_any_turn_of_a_fork_leaves_no_half_child)
{
    struct fixture f;
    char id[32];

    fixture_begin(&f);
    (void)snprintf(id, sizeof(id), "%s", sandbox_id(fixture_sandbox(&f, NULL, NULL)));
    for (unsigned turns = 0; turns < 24; turns += 2) {
        struct outcome o;
        struct fork *fork;

        ASSERT_OK(fork_begin(&f, sandbox_find(f.core, id, NULL), NULL, 2, NULL, &o, &fork));
        for (unsigned i = 0; i < turns; i++)
            ASSERT_OK(loop_run_once(f.loop, 20 * USEC_PER_MSEC));
        outcome_done(&o);
        fixture_restart(&f);
        fixture_wake(&f, sandbox_find(f.core, id, NULL));
        while (f.core->n_sandboxes > 1) /* children that were made */
            fixture_remove(&f, f.core->sandboxes[1]);
        fixture_wait_snapshots(&f, 0);
        ASSERT_EQ(fixture_count(&f, "fake"), 1);
    }
    fixture_end(&f);
}

/* ---- checkpoints ---- */

static void checkpoint(struct fixture *f, struct sandbox *sb, const char *name, char id[40])
{
    struct outcome o = {0};
    struct core_call call = outcome_call(&o);

    if (sandbox_checkpoint(sb, name, &call, &o.err) < 0)
        test_fail(__FILE__, __LINE__, "checkpoint: %s", o.err.text);
    fixture_wait(f, &o.done);
    ASSERT_EQ(o.err.errnum, 0);
    (void)snprintf(id, 40, "%s", json_string_value(json_object_get(o.result, "id")));
    outcome_done(&o);
}

static int rollback(struct fixture *f, struct sandbox *sb, const char *which, struct outcome *o)
{
    struct core_call call;

    *o = (struct outcome){0};
    call = outcome_call(o);
    ASSERT_OK(sandbox_rollback(sb, which, &call, &o->err));
    fixture_wait(f, &o->done);
    json_decref(o->result);
    o->result = NULL;
    return -o->err.errnum;
}

TEST(checkpoints_are_a_tree_and_stay)
{
    for (unsigned variant = 0; variant < VARIANTS; variant++) {
        char one[40], two[40], three[40];
        struct fixture f;
        struct sandbox *sb, *kid;
        struct outcome o;

        fixture_begin(&f);
        set_variant(variant);
        sb = fixture_sandbox(&f, NULL, NULL);
        checkpoint(&f, sb, "one", one);
        checkpoint(&f, sb, "two", two);
        ASSERT_STREQ(sb->checkpoint, two);
        ASSERT_OK(rollback(&f, sb, "one", &o));
        ASSERT_STREQ(sb->checkpoint, one);
        fixture_ping(&f, sb);
        checkpoint(&f, sb, NULL, three);
        fork_to_the_end(&f, sb, "two", 1, NULL, &o);
        ASSERT_EQ(o.err.errnum, 0);
        kid = child(&f, &o, 0);
        ASSERT_STREQ(kid->checkpoint, two);
        outcome_done(&o);
        ASSERT_ERR(rollback(&f, kid, three, &o), ENOENT); /* not on its way */
        ASSERT_OK(rollback(&f, kid, one, &o));
        fixture_sleep(&f, sb);
        ASSERT_OK(rollback(&f, sb, two, &o));
        fixture_ping(&f, sb);
        fixture_remove(&f, sb);
        fixture_remove(&f, kid);
        fixture_wait_snapshots(&f, 3);
        fixture_end(&f);
    }
}

/* Over a checkpoint and a fork, whether or not they end the connection. */
TEST(what_is_under_way_goes_on)
{
    static char cat[] = "cat";
    static char *argv[] = {cat, NULL};
    const struct exec_spec spec = {.argv = argv};

    for (unsigned closes = 0; closes < 2; closes++) {
        struct fixture f;
        struct sandbox *sb;
        struct outcome o;
        struct seen s;
        char one[40];

        fixture_begin(&f);
        fake_knobs.closes_console = closes;
        fake_knobs.restore_mode = closes ? "vsock" : NULL;
        sb = fixture_sandbox(&f, NULL, NULL);
        seen_init(&s);
        ASSERT_OK(exec_start(sandbox_console(sb, NULL), &spec, &seen_callbacks, &s, &s.e, &o.err));
        while (exec_writable(s.e, 0) == 0)
            ASSERT_OK(loop_run_once(f.loop, USEC_PER_SEC));
        checkpoint(&f, sb, "one", one);
        ASSERT_OK(exec_write(s.e, 0, "one\n", 4));
        ASSERT_EQ(fork_begin(&f, sb, NULL, 2, NULL, &o, &(struct fork *){NULL}), 0);
        while (!sb->held)
            ASSERT_OK(loop_run_once(f.loop, USEC_PER_SEC));
        ASSERT_OK(exec_write(s.e, 0, "two\n", 4)); /* in the middle of it */
        fixture_wait(&f, &o.done);
        ASSERT_EQ(o.err.errnum, 0);
        outcome_done(&o);
        ASSERT_OK(exec_close_stream(s.e, 0));
        while (!s.closed)
            ASSERT_OK(loop_run_once(f.loop, USEC_PER_SEC));
        ASSERT_EQ(s.reason.errnum, 0);
        ASSERT_STREQ(buf_string(&s.out[1]), "one\ntwo\n");
        seen_done(&s);
        fixture_ping(&f, sb);
        fixture_end(&f);
    }
}

TEST(the_old_machines_end_is_not_the_new_ones)
{
    struct fixture f;
    struct sandbox *sb;
    struct outcome o;
    char one[40], id[32];
    pid_t pid;

    fixture_begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    (void)snprintf(id, sizeof(id), "%s", sandbox_id(sb));
    checkpoint(&f, sb, "one", one);
    pid = sandbox_pid(sb);
    ASSERT_EQ(kill(pid, SIGUSR2), 0); /* drops the console: it will be looked for again */
    while (sandbox_console(sb, NULL))
        ASSERT_OK(loop_run_once(f.loop, 10 * USEC_PER_MSEC));
    ASSERT_TRUE(sb->retry != NULL);
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    fixture_wait_state(&f, id, SANDBOX_FAILED);
    ASSERT_TRUE(!sb->retry);
    ASSERT_OK(rollback(&f, sb, "one", &o));
    fixture_ping(&f, sb);
    fixture_end(&f);
}

TEST(rollback_that_cannot_be_done_keeps_the_present)
{
    char one[40], path[600];
    struct fixture f;
    struct sandbox *sb;
    struct outcome o;
    pid_t pid;

    fixture_begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    checkpoint(&f, sb, "one", one);
    pid = sandbox_pid(sb);
    ASSERT_ERR(rollback(&f, sb, "none", &o), ENOENT);
    (void)snprintf(path, sizeof(path), "%s/snapshots/%s/state", f.state, one);
    ASSERT_EQ(truncate(path, 3), 0);
    ASSERT_TRUE(rollback(&f, sb, "one", &o) < 0);
    ASSERT_EQ(o.err.code, ERR_SNAPSHOT_INVALID);
    ASSERT_EQ(sandbox_pid(sb), pid);
    fixture_ping(&f, sb);
    fixture_end(&f);
}

TEST(rollback_that_cannot_be_done_keeps_the_sleep)
{
    char one[40], path[600], slept_on[MANIFEST_ID_SIZE];
    struct fixture f;
    struct sandbox *sb;
    struct outcome o;

    fixture_begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    checkpoint(&f, sb, "one", one);
    fixture_sleep(&f, sb);
    memcpy(slept_on, sb->snapshot, sizeof(slept_on));
    (void)snprintf(path, sizeof(path), "%s/snapshots/%s/state", f.state, one);
    ASSERT_EQ(truncate(path, 3), 0);
    ASSERT_TRUE(rollback(&f, sb, "one", &o) < 0);
    ASSERT_STREQ(sb->snapshot, slept_on);
    fixture_restart(&f); /* and so says its row */
    sb = f.core->sandboxes[0];
    ASSERT_STREQ(sb->snapshot, slept_on);
    fixture_wake(&f, sb);
    fixture_remove(&f, sb);
    fixture_wait_snapshots(&f, 1);
    fixture_end(&f);
}
