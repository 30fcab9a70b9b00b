#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "harness/test.h"
#include "snapshot-fixture.h"

/* Compressing and flattening change how a snapshot is kept, never what it is. */

static void check(struct fixture *f, const char *id)
{
    struct error err = {0};

    if (fixture_check(f, id, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
}

static void advance(struct fixture *f, unsigned seed)
{
    for (unsigned i = 0; i < 60; i++)
        fixture_page(f, (seed * 131 + i * i * 7) % FIXTURE_PAGES, i % 5 == 0 ? 0 : seed);
}

/* A chain of n over each other; *f is as the last one left it. */
static void make_chain(struct fixture *f, unsigned n, char ids[][MANIFEST_ID_SIZE])
{
    for (unsigned k = 0; k < n; k++) {
        unsigned changed[60];

        advance(f, 100 + k);
        for (unsigned i = 0; i < 60; i++)
            changed[i] = ((100 + k) * 131 + i * i * 7) % FIXTURE_PAGES;
        fixture_snapshot(f, k ? ids[k - 1] : NULL, changed, 60, ids[k]);
    }
}

static void on_progress(uint64_t done, uint64_t total, void *userdata)
{
    uint64_t *last = userdata;

    ASSERT_TRUE(done >= *last && done <= total);
    *last = done;
}

TEST(a_compressed_one_reads_the_same)
{
    struct fixture f;
    char id[1][MANIFEST_ID_SIZE], path[256];
    uint64_t before, last = 0;
    struct snapshot *snap;

    fixture_init(&f, "compress");
    make_chain(&f, 1, id);
    before = snapshot_store_bytes(f.store);
    ASSERT_OK(snapshot_compress(f.store, id[0], on_progress, &last, NULL));
    ASSERT_TRUE(last > 0);
    ASSERT_TRUE(snapshot_store_bytes(f.store) < before);
    check(&f, id[0]);
    ASSERT_OK(snapshot_verify(f.store, id[0], NULL, NULL, NULL));
    ASSERT_OK(snapshot_compress(f.store, id[0], NULL, NULL, NULL)); /* nothing to do */
    fixture_reopen(&f);
    ASSERT_OK(snapshot_open(f.store, id[0], &snap, NULL));
    ASSERT_TRUE(snapshot_get_info(snap)->compressed);
    (void)snapshot_close(snap);
    check(&f, id[0]);
    (void)snprintf(path, sizeof(path), "%s/%s/disk", f.root, id[0]);
    ASSERT_FALSE(file_exists(path));
    ASSERT_EQ(fixture_entries(&f), 1);
    fixture_done(&f);
}

TEST(a_flattened_one_lies_on_its_template)
{
    struct fixture f;
    char ids[6][MANIFEST_ID_SIZE];
    struct snapshot *snap;

    fixture_init(&f, "flatten");
    make_chain(&f, 6, ids);
    ASSERT_OK(snapshot_flatten(f.store, ids[5], NULL, NULL, NULL));
    check(&f, ids[5]);
    ASSERT_OK(snapshot_open(f.store, ids[5], &snap, NULL));
    ASSERT_STREQ(snapshot_get_info(snap)->parent.template_id, f.template_id);
    ASSERT_STREQ(snapshot_get_info(snap)->parent.snapshot_id, "");
    (void)snapshot_close(snap);
    for (unsigned i = 0; i < 5; i++)
        ASSERT_OK(snapshot_remove(f.store, ids[i], NULL));
    ASSERT_EQ(fixture_entries(&f), 1); /* nothing needs them any more */
    check(&f, ids[5]);
    fixture_done(&f);
}

TEST(those_over_a_changed_parent_do_not_notice)
{
    struct fixture f;
    char ids[4][MANIFEST_ID_SIZE];

    fixture_init(&f, "middle");
    make_chain(&f, 4, ids);
    ASSERT_OK(snapshot_compress(f.store, ids[1], NULL, NULL, NULL));
    check(&f, ids[3]);
    ASSERT_OK(snapshot_flatten(f.store, ids[2], NULL, NULL, NULL));
    check(&f, ids[3]);
    ASSERT_OK(snapshot_compress(f.store, ids[0], NULL, NULL, NULL));
    ASSERT_OK(snapshot_compress(f.store, ids[2], NULL, NULL, NULL));
    ASSERT_OK(snapshot_compress(f.store, ids[3], NULL, NULL, NULL));
    check(&f, ids[3]);
    ASSERT_OK(snapshot_flatten(f.store, ids[3], NULL, NULL, NULL)); /* compressed stays so */
    check(&f, ids[3]);
    fixture_reopen(&f);
    check(&f, ids[3]);
    ASSERT_EQ(fixture_entries(&f), 4);
    fixture_done(&f);
}

TEST(one_in_use_is_left_alone)
{
    struct fixture f;
    char ids[3][MANIFEST_ID_SIZE];
    struct snapshot *snap;
    struct error err = {0};

    fixture_init(&f, "busy");
    make_chain(&f, 3, ids);
    ASSERT_OK(snapshot_open(f.store, ids[2], &snap, NULL));
    ASSERT_ERR(snapshot_flatten(f.store, ids[2], NULL, NULL, &err), EBUSY);
    ASSERT_EQ(err.code, ERR_SNAPSHOT_IN_USE);
    ASSERT_ERR(snapshot_compress(f.store, ids[0], NULL, NULL, &err), EBUSY); /* its parent */
    ASSERT_EQ(fixture_entries(&f), 3);
    (void)snapshot_close(snap);
    ASSERT_OK(snapshot_flatten(f.store, ids[2], NULL, NULL, NULL));
    check(&f, ids[2]);
    ASSERT_ERR(snapshot_flatten(f.store, "00000000000000000000000000000000", NULL, NULL, &err),
               ENOENT);
    fixture_done(&f);
}

TEST(long_chains_and_cold_snapshots_are_tended)
{
    struct fixture f;
    char ids[6][MANIFEST_ID_SIZE];
    struct snapshot *snap;
    unsigned turns = 0;

    fixture_init(&f, "tend");
    make_chain(&f, 6, ids);
    ASSERT_EQ(snapshot_tend(f.store, &(struct snapshot_care){0}, NULL), 0);
    ASSERT_EQ(snapshot_tend(f.store, &(struct snapshot_care){.chain_max = 6}, NULL), 0);
    ASSERT_EQ(snapshot_tend(f.store, &(struct snapshot_care){.chain_max = 5}, NULL), 1);
    ASSERT_EQ(snapshot_tend(f.store, &(struct snapshot_care){.chain_max = 5}, NULL), 0);
    check(&f, ids[5]);
    ASSERT_OK(snapshot_open(f.store, ids[5], &snap, NULL));
    ASSERT_STREQ(snapshot_get_info(snap)->parent.snapshot_id, "");
    ASSERT_EQ(snapshot_tend(f.store, &(struct snapshot_care){.compress_after_usec = UINT64_MAX / 2},
                            NULL),
              0);
    while (snapshot_tend(f.store, &(struct snapshot_care){.compress_after_usec = 1}, NULL) > 0)
        turns++;
    ASSERT_EQ(turns, 5); /* all but the one that is open */
    (void)snapshot_close(snap);
    ASSERT_EQ(snapshot_tend(f.store, &(struct snapshot_care){.compress_after_usec = 1}, NULL), 1);
    check(&f, ids[5]);
    fixture_done(&f);
}

TEST(the_lowest_that_lies_too_high_is_made_flat)
{
    struct fixture f;
    char ids[6][MANIFEST_ID_SIZE];

    fixture_init(&f, "lowest");
    make_chain(&f, 6, ids);
    ASSERT_EQ(snapshot_tend(f.store, &(struct snapshot_care){.chain_max = 3}, NULL), 1);
    ASSERT_EQ(snapshot_depth(f.store, ids[3]), 1);
    ASSERT_EQ(snapshot_depth(f.store, ids[5]), 3);
    ASSERT_EQ(snapshot_tend(f.store, &(struct snapshot_care){.chain_max = 3}, NULL), 0);
    check(&f, ids[5]);
    fixture_done(&f);
}

TEST(what_was_opened_is_not_cold)
{
    struct fixture f;
    char id[1][MANIFEST_ID_SIZE];
    struct snapshot *snap;
    struct snapshot_info made;
    struct snapshot_care care = {0};

    fixture_init(&f, "cold");
    make_chain(&f, 1, id);
    ASSERT_OK(snapshot_open(f.store, id[0], &snap, NULL));
    made = *snapshot_get_info(snap);
    (void)snapshot_close(snap);
    /* As old as it is now: cold by its age, but for the open just now. */
    care.compress_after_usec = clock_wall_usec() - made.created_wall_usec;
    ASSERT_EQ(snapshot_tend(f.store, &care, NULL), 0);
    fixture_reopen(&f); /* which nobody remembers */
    ASSERT_EQ(snapshot_tend(f.store, &care, NULL), 1);
    check(&f, id[0]);
    fixture_done(&f);
}

TEST(background_work_stops_and_leaves_room)
{
    struct fixture f;
    char ids[3][MANIFEST_ID_SIZE];
    struct error err = {0};
    _Atomic bool stop = true;

    fixture_init(&f, "background");
    make_chain(&f, 3, ids);
    ASSERT_ERR(snapshot_tend(f.store, &(struct snapshot_care){.chain_max = 2, .stop = &stop}, &err),
               ECANCELED);
    ASSERT_EQ(err.code, ERR_CANCELLED);
    ASSERT_ERR(snapshot_tend(
                   f.store, &(struct snapshot_care){.compress_after_usec = 1, .stop = &stop}, &err),
               ECANCELED);
    ASSERT_EQ(fixture_entries(&f), 3); /* nothing is left of it */
    ASSERT_ERR(snapshot_tend(f.store,
                             &(struct snapshot_care){.chain_max = 2,
                                                     .min_free_bytes = UINT64_MAX / 2,
                                                     .retry_usec = 3600 * USEC_PER_SEC},
                             &err),
               ENOSPC);
    ASSERT_EQ(fixture_entries(&f), 3);
    /* It rests now. */
    ASSERT_EQ(snapshot_tend(f.store, &(struct snapshot_care){.chain_max = 2}, NULL), 0);
    check(&f, ids[2]);
    ASSERT_OK(snapshot_flatten(f.store, ids[2], NULL, NULL, NULL));
    fixture_done(&f);
}

TEST(flattening_does_not_pass_the_quota)
{
    struct fixture f;
    char ids[3][MANIFEST_ID_SIZE];
    struct error err = {0};

    fixture_init(&f, "flat-quota");
    make_chain(&f, 3, ids);
    snapshot_store_set_quota(f.store,
                             &(struct snapshot_quota){.max_bytes = snapshot_store_bytes(f.store)});
    ASSERT_ERR(snapshot_flatten(f.store, ids[2], NULL, NULL, &err), EDQUOT);
    ASSERT_EQ(err.code, ERR_QUOTA_EXCEEDED);
    ASSERT_EQ(snapshot_depth(f.store, ids[2]), 3);
    ASSERT_OK(snapshot_compress(f.store, ids[2], NULL, NULL, NULL)); /* which needs less */
    check(&f, ids[2]);
    fixture_done(&f);
}
