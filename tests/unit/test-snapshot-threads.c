#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness/test.h"
#include "snapshot-fixture.h"

/*
 * One store, several threads that make, open, read, verify, compress, flatten and remove whatever
 * they find. Nothing that was sealed is ever found damaged; being in use or gone is all right.
 */
#define THREADS 4u
#define TURNS 40u
#define KEPT 16u

static struct fixture f;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char ids[KEPT][MANIFEST_ID_SIZE];
static unsigned counts[5];

static bool pick(unsigned dice, char id[MANIFEST_ID_SIZE])
{
    bool found;

    (void)pthread_mutex_lock(&lock);
    memcpy(id, ids[dice % KEPT], MANIFEST_ID_SIZE);
    found = id[0] != '\0';
    (void)pthread_mutex_unlock(&lock);
    return found;
}

static void keep(unsigned dice, const char *id)
{
    char old[MANIFEST_ID_SIZE];

    (void)pthread_mutex_lock(&lock);
    memcpy(old, ids[dice % KEPT], MANIFEST_ID_SIZE);
    memcpy(ids[dice % KEPT], id, MANIFEST_ID_SIZE);
    (void)pthread_mutex_unlock(&lock);
    if (old[0])
        ASSERT_OK(snapshot_remove(f.store, old, NULL));
}

/* The memory is the same in all of them: readers know what to find whatever the chain. */
static void make(unsigned dice)
{
    unsigned pages[3] = {dice % FIXTURE_PAGES, (dice + 300) % FIXTURE_PAGES,
                         (dice + 600) % FIXTURE_PAGES};
    char parent[MANIFEST_ID_SIZE], id[MANIFEST_ID_SIZE];
    struct error err = {0};
    bool over = pick(dice / 7, parent);
    int r = fixture_try(&f, over ? parent : NULL, pages, 3, id, &err);

    if (r >= 0)
        keep(dice, id);
    else if (err.code != ERR_SNAPSHOT_NOT_FOUND && err.errnum != E2BIG)
        test_fail(__FILE__, __LINE__, "seal: %s", err.text);
}

static void one_turn(unsigned dice)
{
    char id[MANIFEST_ID_SIZE];
    struct error err = {0};
    unsigned what = dice % 5;
    int r = 0;

    if (what == 0 || !pick(dice / 5, id)) {
        make(dice / 5);
        what = 0;
    } else if (what == 1) {
        r = snapshot_verify(f.store, id, NULL, NULL, &err);
    } else if (what == 2) {
        r = snapshot_flatten(f.store, id, NULL, NULL, &err);
    } else if (what == 3) {
        r = snapshot_compress(f.store, id, NULL, NULL, &err);
    } else {
        struct snapshot *snap;

        r = snapshot_open(f.store, id, &snap, &err);
        if (r >= 0) {
            struct page_source *source;
            uint64_t offset;
            const void *data;
            size_t size;

            ASSERT_OK(snapshot_pages(snap, &source, &err));
            do
                r = source->ops->next(source, &offset, &data, &size, &err);
            while (r > 0);
            (void)source->ops->free(source);
            (void)snapshot_close(snap);
        }
    }
    /* EEXIST: another thread makes the same one anew. */
    if (r < 0 && err.code != ERR_SNAPSHOT_NOT_FOUND && err.code != ERR_SNAPSHOT_IN_USE &&
        err.errnum != EEXIST)
        test_fail(__FILE__, __LINE__, "%u: %s", what, err.text);
    (void)__atomic_add_fetch(&counts[what], r >= 0, __ATOMIC_RELAXED);
}

static void *work(void *userdata)
{
    unsigned state = (unsigned)(uintptr_t)userdata * 7919 + 1;

    for (unsigned i = 0; i < TURNS; i++) {
        state = state * 1103515245 + 12345;
        one_turn(state >> 8);
    }
    return NULL;
}

TEST(several_threads_share_one_store)
{
    pthread_t threads[THREADS];
    struct error err = {0};

    fixture_init(&f, "threads");
    for (uintptr_t i = 0; i < THREADS; i++)
        ASSERT_EQ(pthread_create(&threads[i], NULL, work, (void *)(i + 1)), 0);
    for (unsigned i = 0; i < THREADS; i++)
        ASSERT_EQ(pthread_join(threads[i], NULL), 0);
    printf("  %u made, %u verified, %u flattened, %u compressed, %u read\n", counts[0], counts[1],
           counts[2], counts[3], counts[4]);
    fixture_reopen(&f);
    for (unsigned i = 0; i < KEPT; i++)
        if (ids[i][0] && fixture_check(&f, ids[i], &err) < 0)
            test_fail(__FILE__, __LINE__, "%s", err.text);
    for (unsigned i = 0; i < KEPT; i++)
        if (ids[i][0])
            ASSERT_OK(snapshot_remove(f.store, ids[i], NULL));
    ASSERT_EQ(fixture_entries(&f), 0);
    fixture_done(&f);
}
