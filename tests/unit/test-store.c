#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/store.h"
#include "harness/test.h"

static struct store *open_fresh(char path[256])
{
    static unsigned number;
    struct store *s = NULL;
    struct error err = {0};

    (void)snprintf(path, 256, "%s/%u.db", test_tmpdir(), number++);
    if (store_open(path, &s, &err) < 0)
        test_fail(__FILE__, __LINE__, "open: %s", err.text);
    return s;
}

static const struct sandbox_row row = {
    .id = "abc",
    .state = SANDBOX_RUNNING,
    .spec = "{}",
    .origin = "{\"a\":1}",
    .template_id = "t",
    .error_code = "",
    .error_text = "",
    .timings = "1 2",
    .vm_exists = true,
    .created_wall_usec = 77,
    .identity = "m b h",
    .held = true,
    .snapshot = "s",
    .restored_from = "r",
    .checkpoint = "c",
    .slept_wall_usec = 78,
    .woken_wall_usec = 79,
};

struct seen {
    unsigned n;
    enum sandbox_state state;
    char spec[64];
};

static void on_row(const struct sandbox_row *r, void *userdata)
{
    struct seen *seen = userdata;

    seen->n++;
    seen->state = r->state;
    (void)snprintf(seen->spec, sizeof(seen->spec), "%s", r->spec);
    ASSERT_STREQ(r->id, "abc");
    ASSERT_STREQ(r->origin, "{\"a\":1}");
    ASSERT_TRUE(r->vm_exists);
    ASSERT_EQ(r->created_wall_usec, 77);
    ASSERT_STREQ(r->identity, "m b h");
    ASSERT_TRUE(r->held);
    ASSERT_STREQ(r->snapshot, "s");
    ASSERT_STREQ(r->restored_from, "r");
    ASSERT_STREQ(r->checkpoint, "c");
    ASSERT_EQ(r->slept_wall_usec, 78);
    ASSERT_EQ(r->woken_wall_usec, 79);
}

TEST(sandbox_survives_closing_and_is_updated_in_place)
{
    char path[256];
    struct store *s = open_fresh(path);
    struct sandbox_row changed = row;
    struct seen seen = {0};

    ASSERT_OK(store_sandbox_put(s, &row, NULL));
    changed.state = SANDBOX_FAILED;
    changed.spec = "{\"x\":2}";
    ASSERT_OK(store_sandbox_put(s, &changed, NULL));
    (void)store_close(s);
    ASSERT_OK(store_open(path, &s, NULL));
    ASSERT_OK(store_sandbox_each(s, on_row, &seen, NULL));
    ASSERT_EQ(seen.n, 1);
    ASSERT_EQ(seen.state, SANDBOX_FAILED);
    ASSERT_STREQ(seen.spec, "{\"x\":2}");
    (void)store_close(s);
}

static void count_session(const struct session_spec *spec, const struct session_record *record,
                          uint64_t created_wall_usec, void *userdata)
{
    unsigned *n = userdata;

    ++*n;
    ASSERT_STREQ(spec->name, "default");
    ASSERT_EQ(spec->kind, SESSION_TTY);
    ASSERT_TRUE(!spec->user);
    ASSERT_STREQ(spec->cwd, "/tmp");
    ASSERT_STREQ(spec->env[0], "A=1");
    ASSERT_STREQ(spec->env[1], "B=x \"y\"");
    ASSERT_TRUE(!spec->env[2]);
    ASSERT_EQ(spec->rows, 24);
    ASSERT_EQ(created_wall_usec, 5);
    ASSERT_EQ(record->process_id, 9);
    ASSERT_EQ(record->control_offset, UINT64_C(1) << 40);
    ASSERT_TRUE(record->running);
    ASSERT_EQ(record->start[2], 33);
    ASSERT_EQ(record->timeout_msec, 1000);
    ASSERT_EQ(record->line_start, 7);
    ASSERT_EQ(record->line_size, 4);
    ASSERT_MEMEQ(record->line, "a\0b\n", 4);
}

TEST(session_record_is_kept_and_goes_with_its_sandbox)
{
    char path[256], a[] = "A=1", b[] = "B=x \"y\"";
    char *env[] = {a, b, NULL};
    struct store *s = open_fresh(path);
    struct session_spec spec = {
        .name = "default", .kind = SESSION_TTY, .cwd = "/tmp", .env = env, .rows = 24, .cols = 80};
    struct session_record record = {
        .process_id = 9,
        .control_offset = UINT64_C(1) << 40,
        .command = 2,
        .running = true,
        .start = {0, 22, 33},
        .timeout_msec = 1000,
        .line = (const uint8_t *)"a\0b\n",
        .line_start = 7,
        .line_size = 4,
    };
    unsigned n = 0;

    ASSERT_TRUE(store_session_put(s, "abc", &spec, 5, NULL) < 0); /* no such sandbox */
    ASSERT_OK(store_sandbox_put(s, &row, NULL));
    ASSERT_OK(store_session_put(s, "abc", &spec, 5, NULL));
    ASSERT_TRUE(store_session_put(s, "abc", &spec, 5, NULL) < 0); /* twice */
    ASSERT_OK(store_session_record(s, "abc", "default", &record, NULL));
    ASSERT_OK(store_sandbox_put(s, &row, NULL)); /* an update keeps the sessions */
    ASSERT_OK(store_session_each(s, "abc", count_session, &n, NULL));
    ASSERT_EQ(n, 1);
    ASSERT_OK(store_sandbox_delete(s, "abc", NULL));
    ASSERT_OK(store_session_each(s, "abc", count_session, &n, NULL));
    ASSERT_EQ(n, 1);
    (void)store_close(s);
}

TEST(template_use_is_remembered)
{
    char path[256];
    struct store *s = open_fresh(path);

    ASSERT_EQ(store_template_used(s, "t"), 0);
    store_template_put(s, "t", 42);
    store_template_put(s, "t", 43);
    ASSERT_EQ(store_template_used(s, "t"), 43);
    store_template_delete(s, "t");
    ASSERT_EQ(store_template_used(s, "t"), 0);
    (void)store_close(s);
}

TEST(store_of_another_version_is_refused)
{
    char path[256];
    struct store *s = open_fresh(path);
    struct error err = {0};
    sqlite3 *db;

    (void)store_close(s);
    ASSERT_EQ(sqlite3_open(path, &db), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(db, "PRAGMA user_version = 99", NULL, NULL, NULL), SQLITE_OK);
    (void)sqlite3_close(db);
    ASSERT_ERR(store_open(path, &s, &err), EINVAL);
    ASSERT_TRUE(strstr(err.text, "99"));
}

TEST(file_that_is_no_database_is_refused)
{
    char path[256];
    struct store *s = NULL;
    struct error err = {0};
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/bad.db", test_tmpdir());
    file = fopen(path, "w");
    ASSERT_TRUE(file);
    for (int i = 0; i < 4096; i++)
        fputs("not a database ", file);
    ASSERT_EQ(fclose(file), 0);
    ASSERT_TRUE(store_open(path, &s, &err) < 0);
    ASSERT_TRUE(strstr(err.text, "bad.db"));
}
