#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "core/store-private.h"
#include "harness/test.h"

static struct store *open_at(const char *path)
{
    struct store *s = NULL;
    struct error err = {0};

    if (store_open(path, &s, &err) < 0)
        test_fail(__FILE__, __LINE__, "open: %s", err.text);
    return s;
}

static struct store *open_fresh(char path[static 256])
{
    static unsigned number;

    (void)snprintf(path, 256, "%s/%u.db", test_tmpdir(), number++);
    return open_at(path);
}

static void put(struct store *s, const char *id, bool pooled)
{
    const struct sandbox_row row = {
        .id = id,
        .state = SANDBOX_RUNNING,
        .spec = "{}",
        .origin = "{\"a\":1}",
        .template_id = "t",
        .error_code = "",
        .error_text = "",
        .timings = "1 2",
        .vm_exists = true,
        .created_wall_usec = 77,
        .identity = "m b pool",
        .snapshot = "",
        .restored_from = "",
        .checkpoint = "",
        .pooled = pooled,
    };

    ASSERT_OK(store_sandbox_put(s, &row, NULL));
}

static void claim(struct store *s, const char *id, const char *spec)
{
    const struct sandbox_row row = {
        .id = id,
        .spec = spec,
        .timings = "3 4",
        .created_wall_usec = 99,
        .identity = "m b mine",
    };

    ASSERT_OK(store_sandbox_claim(s, &row, NULL));
}

struct seen {
    unsigned n, pooled, mine;
    char spec[128];
};

static void on_row(const struct sandbox_row *r, void *userdata)
{
    struct seen *seen = userdata;

    seen->n++;
    seen->pooled += r->pooled;
    if (strcmp(r->identity, "m b mine") == 0) {
        seen->mine++;
        (void)snprintf(seen->spec, sizeof(seen->spec), "%s", r->spec);
        ASSERT_STREQ(r->timings, "3 4");
        ASSERT_EQ(r->created_wall_usec, 99);
        ASSERT_STREQ(r->origin, "{\"a\":1}");
    }
}

static struct seen look(struct store *s)
{
    struct seen seen = {0};

    ASSERT_OK(store_sandbox_each(s, on_row, &seen, NULL));
    return seen;
}

static off_t notes_size(const char *path)
{
    char file[300];
    struct stat st;

    (void)snprintf(file, sizeof(file), "%s-claims", path);
    ASSERT_EQ(stat(file, &st), 0);
    return st.st_size;
}

/* The files as a kill would leave them, under another name. */
static void copy_store(const char *path, char to[static 256])
{
    static const char *const ends[] = {"", "-wal", "-claims"};

    (void)snprintf(to, 256, "%s-copy", path);
    for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
        char from_file[300], to_file[300];

        (void)snprintf(from_file, sizeof(from_file), "%s%s", path, ends[i]);
        (void)snprintf(to_file, sizeof(to_file), "%s%s", to, ends[i]);
        (void)unlink(to_file);
        ASSERT_OK(file_copy_sparse(from_file, to_file, 0600, NULL));
    }
}

TEST(claim_outlives_a_kill_before_its_row_is_written)
{
    char path[256], copy[256];
    struct store *s = open_fresh(path), *after;
    struct seen seen;

    put(s, "abc", true);
    put(s, "def", true);
    claim(s, "abc", "{\"env\":[\"A=\\t\\n\"]}");
    ASSERT_TRUE(notes_size(path) > 0);
    copy_store(path, copy);
    after = open_at(copy);
    seen = look(after);
    ASSERT_EQ(seen.n, 2);
    ASSERT_EQ(seen.pooled, 1);
    ASSERT_EQ(seen.mine, 1);
    ASSERT_STREQ(seen.spec, "{\"env\":[\"A=\\t\\n\"]}");
    ASSERT_EQ(notes_size(copy), 0);
    (void)store_close(after);
    (void)store_close(s);
}

TEST(fold_writes_the_rows_and_empties_the_file)
{
    char path[256], copy[256];
    struct store *s = open_fresh(path), *after;

    put(s, "abc", true);
    put(s, "def", true);
    claim(s, "abc", "{}");
    claim(s, "def", "{}");
    ASSERT_OK(store_fold(s, NULL));
    ASSERT_EQ(notes_size(path), 0);
    ASSERT_OK(store_fold(s, NULL));
    copy_store(path, copy);
    after = open_at(copy);
    ASSERT_EQ(look(after).mine, 2);
    (void)store_close(after);
    (void)store_close(s);
}

TEST(note_changes_no_row_that_was_written_since)
{
    char path[256];
    struct store *s = open_fresh(path);

    put(s, "abc", true);
    put(s, "def", true);
    claim(s, "abc", "{}");
    put(s, "abc", false); /* newer */
    claim(s, "def", "{}");
    ASSERT_OK(store_sandbox_delete(s, "def", NULL)); /* gone */
    ASSERT_OK(store_fold(s, NULL));
    struct seen seen = look(s);
    ASSERT_EQ(seen.n, 1);
    ASSERT_EQ(seen.mine, 0);
    ASSERT_EQ(seen.pooled, 0);
    (void)store_close(s);
}

/* Every length that a torn write can have, and every flipped byte: never a claim by mistake. */
TEST(damaged_notes_are_no_claims)
{
    struct sandbox_row row = {
        .id = "abc", .spec = "{}", .timings = "3 4", .created_wall_usec = 99, .identity = "m b h"};
    struct sandbox_row back;
    struct buf b = {0};
    char line[256];

    buf_init(&b, sizeof(line));
    ASSERT_OK(store_claim_encode(&b, &row));
    ASSERT_TRUE(b.size < sizeof(line));
    size_t size = b.size - 1; /* without the end of the line */
    for (size_t n = 0; n < size; n++) {
        (void)snprintf(line, sizeof(line), "%.*s", (int)n, buf_string(&b));
        ASSERT_ERR(store_claim_decode(line, &back), EBADMSG);
        (void)snprintf(line, sizeof(line), "%.*s", (int)size, buf_string(&b));
        line[n] ^= 1;
        ASSERT_ERR(store_claim_decode(line, &back), EBADMSG);
    }
    (void)snprintf(line, sizeof(line), "%.*s", (int)size, buf_string(&b));
    ASSERT_OK(store_claim_decode(line, &back));
    ASSERT_STREQ(back.id, "abc");
    ASSERT_EQ(back.created_wall_usec, 99);
    ASSERT_STREQ(back.identity, "m b h");
    buf_done(&b);
}

TEST(notes_after_a_damaged_one_count)
{
    char path[256], copy[256], file[300];
    struct store *s = open_fresh(path), *after;
    int fd;

    put(s, "abc", true);
    put(s, "def", true);
    claim(s, "abc", "{}");
    claim(s, "def", "{}");
    copy_store(path, copy);
    (void)snprintf(file, sizeof(file), "%s-claims", copy);
    fd = open(file, O_WRONLY | O_CLOEXEC);
    ASSERT_TRUE(fd >= 0);
    ASSERT_EQ(pwrite(fd, "X", 1, 1), 1);
    (void)close(fd);
    after = open_at(copy);
    ASSERT_EQ(look(after).mine, 1);
    ASSERT_EQ(notes_size(copy), 0);
    (void)store_close(after);
    (void)store_close(s);
}

TEST(without_a_note_the_row_is_written_at_once)
{
    char path[256], copy[256];
    struct store *s = open_fresh(path), *after;

    put(s, "abc", true);
    fault_set("claim-note:enospc");
    claim(s, "abc", "{}");
    fault_set(NULL);
    ASSERT_EQ(notes_size(path), 0);
    copy_store(path, copy);
    after = open_at(copy);
    ASSERT_EQ(look(after).mine, 1);
    (void)store_close(after);
    (void)store_close(s);
}

TEST(notes_have_a_limit)
{
    static char spec[64 * 1024];
    char path[256], id[16];
    struct store *s = open_fresh(path);

    memset(spec, ' ', sizeof(spec) - 1);
    for (unsigned i = 0; i < 40; i++) { /* more than there is room for */
        (void)snprintf(id, sizeof(id), "b%u", i);
        put(s, id, true);
        claim(s, id, spec);
    }
    ASSERT_TRUE(notes_size(path) <= (off_t)STORE_CLAIMS_MAX);
    ASSERT_EQ(look(s).mine, 40);
    ASSERT_EQ(look(s).pooled, 0);
    (void)store_close(s);
}
