#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "harness/test.h"
#include "snapshot-fixture.h"

/* Nothing that was changed behind the store's back is handed out. */

static const unsigned pages[] = {0, 1, 2, 5, 255, 256, 257, 700, 1023};
static const char *const names[] = {"manifest.json", "state", "memory",
                                    "memory.map",    "disk",  "disk.map"};
static const char *const packed_names[] = {"manifest.json", "state",    "memory.zst",
                                           "memory.map",    "disk.zst", "disk.map"};
#define FLIPS 40u

struct pair {
    struct fixture f;
    char parent[MANIFEST_ID_SIZE], child[MANIFEST_ID_SIZE];
};

static void pair_init(struct pair *p, const char *name)
{
    fixture_init(&p->f, name);
    for (size_t i = 0; i < ARRAY_SIZE(pages); i++)
        fixture_page(&p->f, pages[i], i == 4 ? 0 : 30);
    fixture_snapshot(&p->f, NULL, pages, ARRAY_SIZE(pages), p->parent);
    fixture_page(&p->f, 1, 31);
    fixture_page(&p->f, 300, 31);
    fixture_snapshot(&p->f, p->parent, (const unsigned[]){1, 300}, 2, p->child);
}

static void path_of(const struct pair *p, const char *id, const char *name, char path[256])
{
    ASSERT_TRUE((size_t)snprintf(path, 256, "%s/%s/%s", p->f.root, id, name) < 256);
}

static void flip(const char *path, off_t offset, unsigned bit)
{
    _cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC);
    uint8_t byte;

    ASSERT_TRUE(fd >= 0);
    ASSERT_EQ(pread(fd, &byte, 1, offset), 1);
    byte ^= (uint8_t)(1u << bit);
    ASSERT_EQ(pwrite(fd, &byte, 1, offset), 1);
}

static void refused(struct pair *p, const char *id, const char *what)
{
    struct error err = {0};
    int r = fixture_check(&p->f, id, &err);

    if (r >= 0)
        test_fail(__FILE__, __LINE__, "%s: accepted", what);
    if (err.code != ERR_SNAPSHOT_INVALID)
        test_fail(__FILE__, __LINE__, "%s: '%s' has another code", what, err.text);
}

static void accepted(struct pair *p)
{
    struct error err = {0};

    if (fixture_check(&p->f, p->child, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
}

static unsigned flip_all(struct pair *p, const char *const *files)
{
    unsigned count = 0;

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        char path[256], what[300];
        struct stat st;

        path_of(p, p->child, files[i], path);
        ASSERT_OK(stat(path, &st));
        ASSERT_TRUE(st.st_size > 0);
        for (unsigned n = 0; n < FLIPS; n++) {
            off_t at = n == 0   ? 0
                       : n == 1 ? st.st_size - 1
                                : (off_t)(n * 7919ull * 4093) % st.st_size;

            (void)snprintf(what, sizeof(what), "%s, bit %u of byte %lld", files[i], n % 8,
                           (long long)at);
            flip(path, at, n % 8);
            refused(p, p->child, what);
            flip(path, at, n % 8);
            count++;
        }
    }
    return count;
}

TEST(a_flipped_bit_is_refused)
{
    struct pair p;

    pair_init(&p, "flip");
    printf("  %u flips refused\n", flip_all(&p, names));
    accepted(&p);
    fixture_done(&p.f);
}

TEST(a_flipped_bit_of_a_compressed_one_is_refused)
{
    struct pair p;

    pair_init(&p, "flip-packed");
    ASSERT_OK(snapshot_compress(p.f.store, p.child, NULL, NULL, NULL));
    printf("  %u flips refused\n", flip_all(&p, packed_names));
    accepted(&p);
    fixture_done(&p.f);
}

TEST(every_byte_of_a_manifest_counts)
{
    struct pair p;
    char path[256];
    struct stat st;

    pair_init(&p, "manifest");
    path_of(&p, p.child, "manifest.json", path);
    ASSERT_OK(stat(path, &st));
    for (off_t at = 0; at < st.st_size; at++) {
        struct snapshot *snap;
        struct error err = {0};

        flip(path, at, (unsigned)(at % 8));
        ASSERT_ERR(snapshot_open(p.f.store, p.child, &snap, &err), EINVAL);
        flip(path, at, (unsigned)(at % 8));
    }
    accepted(&p);
    fixture_done(&p.f);
}

TEST(a_truncated_or_missing_file_is_refused)
{
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        struct pair p;
        char path[256];
        struct stat st;

        pair_init(&p, names[i]);
        path_of(&p, p.child, names[i], path);
        ASSERT_OK(stat(path, &st));
        ASSERT_OK(truncate(path, st.st_size - 1));
        refused(&p, p.child, "truncated");
        ASSERT_OK(truncate(path, 0));
        refused(&p, p.child, "empty");
        ASSERT_OK(truncate(path, st.st_size + 1));
        refused(&p, p.child, "longer");
        ASSERT_OK(unlink(path));
        refused(&p, p.child, "missing");
        ASSERT_OK(symlink("/etc/passwd", path));
        refused(&p, p.child, "a link");
        fixture_done(&p.f);
    }
}

TEST(a_damaged_or_missing_parent_is_refused)
{
    struct pair p;
    char path[256], aside[256];
    struct error err = {0};

    pair_init(&p, "parent");
    path_of(&p, p.parent, "memory", path);
    flip(path, 5 * 4096 + 17, 3);
    refused(&p, p.child, "parent's memory");
    flip(path, 5 * 4096 + 17, 3);
    path_of(&p, p.parent, "manifest.json", path);
    flip(path, 100, 1);
    refused(&p, p.child, "parent's manifest");
    flip(path, 100, 1);
    accepted(&p);

    (void)snprintf(path, sizeof(path), "%s/%s", p.f.root, p.parent);
    (void)snprintf(aside, sizeof(aside), "%s/../aside", p.f.root);
    ASSERT_OK(rename(path, aside));
    ASSERT_ERR(fixture_check(&p.f, p.child, &err), EINVAL);
    ASSERT_TRUE(strstr(err.text, "its parent") && strstr(err.text, "is missing"));
    fixture_reopen(&p.f);
    refused(&p, p.child, "no parent after a restart");
    ASSERT_OK(rename(aside, path));
    fixture_reopen(&p.f);
    accepted(&p);
    fixture_done(&p.f);
}

TEST(another_parent_of_the_same_name_is_refused)
{
    struct pair p, q;
    char path[256], other[256];
    struct error err = {0};

    pair_init(&p, "swap");
    pair_init(&q, "swap-other");
    /* One that is whole, but another one. */
    path_of(&p, p.parent, "", path);
    path_of(&q, q.parent, "", other);
    ASSERT_OK(dir_remove(path, NULL));
    ASSERT_OK(rename(other, path));
    ASSERT_ERR(fixture_check(&p.f, p.child, &err), EINVAL);
    ASSERT_TRUE(strstr(err.text, "it is that of") != NULL);
    fixture_done(&p.f);
    fixture_done(&q.f);
}

TEST(a_changed_template_is_refused)
{
    struct pair p;
    char path[256], text[256];
    struct error err = {0};

    pair_init(&p, "template");
    (void)snprintf(path, sizeof(path), "%s/%s/memory", p.f.templates, p.f.template_id);
    accepted(&p); /* now it is known by its stat() */
    flip(path, 4096 * 9, 2);
    refused(&p, p.child, "template's memory");
    flip(path, 4096 * 9, 2);
    accepted(&p);

    (void)snprintf(path, sizeof(path), "%s/%s/manifest.json", p.f.templates, p.f.template_id);
    (void)snprintf(text, sizeof(text), "s/\"created_usec\": 7/\"created_usec\": 8/");
    {
        _cleanup_free_ char *json = NULL;
        size_t size;
        char *at;

        ASSERT_OK(file_read(path, 65536, &json, &size, NULL));
        at = strstr(json, "\"created_usec\": 7");
        ASSERT_TRUE(at != NULL);
        at[16] = '8';
        ASSERT_OK(file_write_atomic(path, json, size, 0600, NULL));
    }
    ASSERT_ERR(fixture_check(&p.f, p.child, &err), EINVAL);
    ASSERT_TRUE(strstr(err.text, "is not what it was") != NULL);
    ASSERT_OK(unlink(path));
    ASSERT_ERR(fixture_check(&p.f, p.child, &err), EINVAL);
    ASSERT_TRUE(strstr(err.text, "is missing") != NULL);
    fixture_done(&p.f);
}

struct fates {
    unsigned rescued, lost;
};

static void count_fate(const char *id, enum snapshot_fate fate, const char *reason, void *userdata)
{
    struct fates *f = userdata;

    (void)id;
    ASSERT_TRUE(reason[0] != '\0');
    if (fate == SNAPSHOT_LOST)
        f->lost++;
    else
        f->rescued++;
}

TEST(repair_keeps_what_can_be_proven)
{
    struct pair p;
    char path[256], second[MANIFEST_ID_SIZE];
    struct fates fates = {0};

    pair_init(&p, "repair");
    /* `second` hides every page of its parents that is in the chunk that gets damaged. */
    for (unsigned i = 0; i < 256; i++)
        fixture_page(&p.f, i, 77);
    {
        unsigned all[256];

        for (unsigned i = 0; i < 256; i++)
            all[i] = i;
        fixture_snapshot(&p.f, p.child, all, 256, second);
    }
    ASSERT_EQ(snapshot_repair(p.f.store, true, count_fate, &fates, NULL), 0);
    ASSERT_EQ(fates.lost + fates.rescued, 0);
    path_of(&p, p.parent, "memory", path);
    flip(path, 5 * 4096 + 1, 0);
    ASSERT_EQ(snapshot_repair(p.f.store, false, count_fate, &fates, NULL), 3);
    ASSERT_EQ(fixture_entries(&p.f), 3); /* nothing was touched */
    fates = (struct fates){0};
    ASSERT_EQ(snapshot_repair(p.f.store, true, count_fate, &fates, NULL), 2);
    ASSERT_EQ(fates.rescued, 1);
    ASSERT_EQ(fates.lost, 2);
    ASSERT_EQ(fixture_entries(&p.f), 1);
    ASSERT_OK(fixture_check(&p.f, second, NULL));
    fixture_done(&p.f);
}

TEST(repair_removes_nothing_that_is_only_in_use)
{
    struct pair p;
    char path[256], second[MANIFEST_ID_SIZE];
    struct fates fates = {0};
    struct error why = {0}, err = {0};
    struct snapshot *snap;
    unsigned all[256];

    pair_init(&p, "repair-busy");
    for (unsigned i = 0; i < 256; i++) {
        fixture_page(&p.f, i, 78);
        all[i] = i;
    }
    fixture_snapshot(&p.f, p.child, all, 256, second);
    ASSERT_OK(snapshot_open(p.f.store, second, &snap, NULL));
    path_of(&p, p.parent, "memory", path);
    flip(path, 5 * 4096 + 1, 0);
    ASSERT_ERR(snapshot_mend(p.f.store, second, NULL, NULL, &why, &err), EBUSY);
    ASSERT_EQ(err.code, ERR_SNAPSHOT_IN_USE);
    ASSERT_EQ(snapshot_repair(p.f.store, true, count_fate, &fates, NULL), 2);
    ASSERT_EQ(fates.rescued, 0);
    (void)snapshot_close(snap);
    ASSERT_EQ(snapshot_mend(p.f.store, second, NULL, NULL, &why, &err), 1);
    ASSERT_TRUE(strstr(why.text, "is damaged") != NULL);
    ASSERT_EQ(snapshot_mend(p.f.store, second, NULL, NULL, &why, &err), 0);
    ASSERT_OK(fixture_check(&p.f, second, NULL));
    ASSERT_EQ(fixture_entries(&p.f), 1);
    fixture_done(&p.f);
}
