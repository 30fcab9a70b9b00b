#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "harness/test.h"
#include "snapshot-fixture.h"
#include "store/snapshot.h"

static const unsigned first_pages[] = {0, 1, 2, 5, 255, 256, 257, 700, 1023};
static const unsigned second_pages[] = {1, 5, 6, 300};

static void change(struct fixture *f, const unsigned *pages, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        fixture_page(f, pages[i], i % 3 == 2 ? 0 : seed);
}

static void check(struct fixture *f, const char *id)
{
    struct error err = {0};

    if (fixture_check(f, id, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
}

TEST(a_snapshot_gives_back_memory_and_disk)
{
    struct fixture f;
    char id[MANIFEST_ID_SIZE];
    struct snapshot *snap;

    fixture_init(&f, "whole");
    change(&f, first_pages, ARRAY_SIZE(first_pages), 9);
    fixture_snapshot(&f, NULL, first_pages, ARRAY_SIZE(first_pages), id);
    check(&f, id);
    fixture_reopen(&f);
    check(&f, id);
    ASSERT_OK(snapshot_open(f.store, id, &snap, NULL));
    ASSERT_STREQ(snapshot_get_info(snap)->name, "here");
    ASSERT_STREQ(snapshot_get_info(snap)->sandbox, "sb-1");
    ASSERT_STREQ(snapshot_get_info(snap)->parent.template_id, f.template_id);
    ASSERT_EQ(snapshot_get_info(snap)->memory_bytes, FIXTURE_MEMORY);
    ASSERT_STREQ(json_string_value(json_object_get(snapshot_get_info(snap)->meta, "k")),
                 "v\xc3\xa9");
    (void)snapshot_close(snap);
    ASSERT_OK(snapshot_verify(f.store, id, NULL, NULL, NULL));
    fixture_done(&f);
}

TEST(zero_pages_are_holes_and_stay_known)
{
    struct fixture f;
    char id[MANIFEST_ID_SIZE], path[256];
    unsigned pages[300];
    struct stat st;

    fixture_init(&f, "zeros");
    for (unsigned i = 0; i < ARRAY_SIZE(pages); i++) {
        pages[i] = i;
        fixture_page(&f, i, i == 100 ? 4 : 0);
    }
    fixture_snapshot(&f, NULL, pages, ARRAY_SIZE(pages), id);
    check(&f, id);
    (void)snprintf(path, sizeof(path), "%s/%s/memory", f.root, id);
    ASSERT_OK(stat(path, &st));
    ASSERT_EQ(st.st_size, FIXTURE_MEMORY);
    ASSERT_EQ(st.st_blocks * 512, 4096);
    fixture_done(&f);
}

/* QEMU's has long tables of queues that no device has. */
TEST(zero_pages_of_the_device_state_are_holes)
{
    static uint8_t state[24 * 4096 + 100];
    struct fixture f;
    struct snapshot_info info = {.kind = SNAPSHOT_CHECKPOINT, .sandbox = "sb-1"};
    struct snapshot_writer *w;
    struct error err = {0};
    _cleanup_free_ char *back = NULL;
    char path[512], linked[512];
    struct stat st;
    size_t size;

    fixture_init(&f, "state");
    state[5] = 1;
    state[9 * 4096] = 2;
    state[sizeof(state) - 1] = 3;
    memcpy(info.parent.template_id, f.template_id, MANIFEST_ID_SIZE);
    ASSERT_OK(snapshot_writer_new(f.store, &w, &err));
    fixture_page(&f, 7, 9);
    fixture_page(&f, 8, 0);
    ASSERT_OK(fixture_write(&f, snapshot_writer_dir(w), (const unsigned[]){7, 8}, 2));
    (void)snprintf(path, sizeof(path), "%s/state", snapshot_writer_dir(w));
    ASSERT_OK(file_write_atomic(path, state, sizeof(state), 0600, NULL));
    (void)snprintf(path, sizeof(path), "%s/disk", snapshot_writer_dir(w));
    (void)snprintf(linked, sizeof(linked), "%s/state-linked", test_tmpdir());
    ASSERT_EQ(link(path, linked), 0);
    if (snapshot_writer_seal(w, &info, &err) < 0)
        test_fail(__FILE__, __LINE__, "seal: %s", err.text);
    (void)snapshot_writer_free(w);
    (void)snprintf(path, sizeof(path), "%s/%s/state", f.root, info.id);
    ASSERT_EQ(stat(path, &st), 0);
    ASSERT_EQ(st.st_size, (long long)sizeof(state));
    ASSERT_EQ(st.st_blocks * 512, 3 * 4096);
    ASSERT_OK(file_read(path, sizeof(state), &back, &size, NULL));
    ASSERT_EQ(size, sizeof(state));
    ASSERT_MEMEQ(back, state, sizeof(state));
    ASSERT_OK(snapshot_verify(f.store, info.id, NULL, NULL, NULL));
    ASSERT_EQ(info.changed_bytes, 2 * 4096);
    /* State, memory, two maps and the manifest; not the disk, which is a link. */
    ASSERT_EQ(info.written_bytes, (3 + 1 + 2 + 1) * 4096);
    ASSERT_TRUE(info.stored_bytes > info.written_bytes);
    fixture_done(&f);
}

TEST(the_newest_of_a_chain_wins)
{
    struct fixture f;
    char ids[8][MANIFEST_ID_SIZE];

    fixture_init(&f, "chain");
    for (unsigned i = 0; i < 8; i++) {
        const unsigned *pages = i % 2 ? second_pages : first_pages;
        size_t n = i % 2 ? ARRAY_SIZE(second_pages) : ARRAY_SIZE(first_pages);

        change(&f, pages, n, 20 + i);
        fixture_snapshot(&f, i ? ids[i - 1] : NULL, pages, n, ids[i]);
        check(&f, ids[i]);
    }
    fixture_done(&f);
}

TEST(a_chain_has_an_end)
{
    struct fixture f;
    char id[MANIFEST_ID_SIZE];
    struct error err = {0};

    fixture_init(&f, "long");
    fixture_snapshot(&f, NULL, second_pages, 1, id);
    for (unsigned i = 1; i < SNAPSHOT_CHAIN_MAX; i++)
        fixture_snapshot(&f, id, second_pages, 1, id);
    ASSERT_ERR(fixture_try(&f, id, second_pages, 1, id, &err), E2BIG);
    check(&f, id);
    ASSERT_EQ(fixture_entries(&f), SNAPSHOT_CHAIN_MAX);
    fixture_done(&f);
}

static void count_one(const struct snapshot_info *info, void *userdata)
{
    (void)info;
    ++*(unsigned *)userdata;
}

static unsigned listed(struct fixture *f)
{
    unsigned count = 0;

    ASSERT_OK(snapshot_each(f->store, count_one, &count, NULL));
    return count;
}

TEST(a_removed_one_stays_while_something_lies_over_it)
{
    struct fixture f;
    char a[MANIFEST_ID_SIZE], b[MANIFEST_ID_SIZE];
    struct error err = {0};
    struct snapshot *snap;

    fixture_init(&f, "remove");
    fixture_snapshot(&f, NULL, first_pages, 3, a);
    fixture_snapshot(&f, a, second_pages, 2, b);
    ASSERT_EQ(listed(&f), 2);
    ASSERT_TRUE(snapshot_template_in_use(f.store, f.template_id));
    ASSERT_OK(snapshot_remove(f.store, a, NULL));
    ASSERT_ERR(snapshot_remove(f.store, a, &err), ENOENT);
    ASSERT_EQ(err.code, ERR_SNAPSHOT_NOT_FOUND);
    ASSERT_ERR(snapshot_open(f.store, a, &snap, &err), ENOENT);
    ASSERT_EQ(listed(&f), 1);
    check(&f, b);
    fixture_reopen(&f); /* it is remembered */
    ASSERT_EQ(listed(&f), 1);
    ASSERT_EQ(fixture_entries(&f), 2);
    check(&f, b);
    ASSERT_OK(snapshot_open(f.store, b, &snap, NULL));
    ASSERT_OK(snapshot_remove(f.store, b, NULL));
    ASSERT_EQ(listed(&f), 0);
    ASSERT_EQ(fixture_entries(&f), 2);
    (void)snapshot_close(snap); /* the last one that held them */
    ASSERT_EQ(fixture_entries(&f), 0);
    ASSERT_FALSE(snapshot_template_in_use(f.store, f.template_id));
    ASSERT_EQ(snapshot_store_bytes(f.store), 0);
    fixture_done(&f);
}

TEST(a_removed_one_goes_at_the_next_open_when_its_holder_died)
{
    struct fixture f;
    char a[MANIFEST_ID_SIZE];
    struct snapshot *snap;
    int status;

    fixture_init(&f, "orphan");
    fixture_snapshot(&f, NULL, first_pages, 3, a);
    pid_t pid = fork();
    ASSERT_TRUE(pid >= 0);
    if (pid == 0) /* dies with it open */
        _exit(snapshot_open(f.store, a, &snap, NULL) < 0 || snapshot_remove(f.store, a, NULL) < 0);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_EQ(status, 0);
    ASSERT_EQ(fixture_entries(&f), 1);
    fixture_reopen(&f);
    ASSERT_EQ(fixture_entries(&f), 0);
    fixture_snapshot(&f, NULL, first_pages, 3, a); /* and all goes on */
    check(&f, a);
    fixture_done(&f);
}

static bool may_evict(const struct snapshot_info *info, void *userdata)
{
    (void)userdata;
    return strcmp(info->sandbox, "sb-1") == 0;
}

TEST(a_quota_evicts_the_oldest_that_may_go)
{
    struct fixture f;
    char ids[3][MANIFEST_ID_SIZE], late[MANIFEST_ID_SIZE];
    struct error err = {0};
    struct snapshot *snap;
    uint64_t bytes;

    fixture_init(&f, "quota");
    for (unsigned i = 0; i < 3; i++)
        fixture_snapshot(&f, NULL, first_pages, 3, ids[i]);
    bytes = snapshot_store_bytes(f.store);
    snapshot_store_set_quota(f.store, &(struct snapshot_quota){.max_bytes = bytes});
    ASSERT_ERR(fixture_try(&f, NULL, first_pages, 3, late, &err), EDQUOT);
    ASSERT_EQ(fixture_entries(&f), 3);
    snapshot_store_set_quota(f.store,
                             &(struct snapshot_quota){.max_bytes = bytes, .may = may_evict});
    ASSERT_OK(snapshot_open(f.store, ids[0], &snap, NULL)); /* the oldest is in use */
    fixture_snapshot(&f, NULL, first_pages, 3, late);
    (void)snapshot_close(snap);
    ASSERT_EQ(fixture_entries(&f), 3);
    check(&f, ids[0]);
    ASSERT_ERR(fixture_check(&f, ids[1], NULL), ENOENT);
    check(&f, late);
    fixture_done(&f);
}

TEST(another_host_is_named)
{
    struct fixture f;
    char id[MANIFEST_ID_SIZE];
    struct snapshot *snap;
    struct origin host;
    struct error err = {0};

    fixture_init(&f, "fits");
    fixture_snapshot(&f, NULL, first_pages, 3, id);
    ASSERT_OK(snapshot_open(f.store, id, &snap, NULL));
    host = snapshot_get_info(snap)->origin;
    ASSERT_OK(snapshot_fits(snap, &host, NULL));
    (void)snprintf(host.cpu_model, sizeof(host.cpu_model), "EPYC");
    ASSERT_ERR(snapshot_fits(snap, &host, &err), EINVAL);
    ASSERT_EQ(err.code, ERR_SNAPSHOT_INVALID);
    ASSERT_TRUE(strstr(err.text, "cpu_model is 'max', wanted is 'EPYC'") != NULL);
    host = snapshot_get_info(snap)->origin;
    (void)snprintf(host.backend_version, sizeof(host.backend_version), "8.0");
    ASSERT_ERR(snapshot_fits(snap, &host, &err), EINVAL);
    ASSERT_TRUE(strstr(err.text, "backend_version") != NULL);
    (void)snapshot_close(snap);
    fixture_done(&f);
}

TEST(crash_leftovers_go_at_open)
{
    struct fixture f;
    struct snapshot_writer *w;
    char path[512];

    fixture_init(&f, "left");
    ASSERT_OK(snapshot_writer_new(f.store, &w, NULL));
    ASSERT_OK(fixture_write(&f, snapshot_writer_dir(w), first_pages, 2));
    (void)snprintf(path, sizeof(path), "%s/.gone-x", f.root);
    ASSERT_OK(mkdir(path, 0700));
    ASSERT_EQ(fixture_entries(&f), 2);
    fixture_reopen(&f);
    ASSERT_EQ(fixture_entries(&f), 0);
    (void)snapshot_writer_free(w);
    fixture_done(&f);
}

TEST(what_does_not_belong_to_its_parent_is_not_sealed)
{
    struct fixture f;
    struct snapshot_info info = {.sandbox = "sb-1"};
    struct snapshot_writer *w;
    struct error err = {0};
    char path[512];

    fixture_init(&f, "sizes");
    ASSERT_OK(snapshot_writer_new(f.store, &w, NULL));
    ASSERT_OK(fixture_write(&f, snapshot_writer_dir(w), first_pages, 2));
    ASSERT_ERR(snapshot_writer_seal(w, &info, &err), EINVAL); /* no parent */
    memcpy(info.parent.template_id, f.template_id, MANIFEST_ID_SIZE);
    (void)snprintf(path, sizeof(path), "%s/memory", snapshot_writer_dir(w));
    ASSERT_OK(truncate(path, 4096 * 10));
    ASSERT_ERR(snapshot_writer_seal(w, &info, &err), EINVAL);
    ASSERT_TRUE(strstr(err.text, "its parent's has") != NULL);
    memset(info.parent.template_id, 'a', MANIFEST_ID_SIZE - 1);
    ASSERT_ERR(snapshot_writer_seal(w, &info, &err), EINVAL);
    ASSERT_TRUE(strstr(err.text, "is missing") != NULL);
    (void)snapshot_writer_free(w);
    ASSERT_EQ(fixture_entries(&f), 0);
    fixture_done(&f);
}
