#include "core/store.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/macros.h"
#include "core/store-keys.h"
#include "core/store-private.h"

#define SCHEMA_VERSION 5

/* What leads from each version to the next. */
static const char *const upgrades[] = {
    "CREATE TABLE sandboxes ("
    "  id TEXT PRIMARY KEY, state TEXT NOT NULL, spec TEXT NOT NULL, origin TEXT NOT NULL,"
    "  template_id TEXT NOT NULL, error_code TEXT NOT NULL, error_text TEXT NOT NULL,"
    "  timings TEXT NOT NULL, vm_exists INTEGER NOT NULL, created INTEGER NOT NULL"
    ") WITHOUT ROWID;"
    "CREATE TABLE sessions ("
    "  sandbox TEXT NOT NULL REFERENCES sandboxes(id) ON DELETE CASCADE, name TEXT NOT NULL,"
    "  kind TEXT NOT NULL, user TEXT, cwd TEXT, env TEXT NOT NULL,"
    "  tty_rows INTEGER NOT NULL, tty_cols INTEGER NOT NULL, created INTEGER NOT NULL,"
    "  process_id INTEGER NOT NULL DEFAULT 0, control_offset INTEGER NOT NULL DEFAULT 0,"
    "  command INTEGER NOT NULL DEFAULT 0, running INTEGER NOT NULL DEFAULT 0,"
    "  start0 INTEGER NOT NULL DEFAULT 0, start1 INTEGER NOT NULL DEFAULT 0,"
    "  start2 INTEGER NOT NULL DEFAULT 0, started INTEGER NOT NULL DEFAULT 0,"
    "  timeout_msec INTEGER NOT NULL DEFAULT 0,"
    "  PRIMARY KEY (sandbox, name)"
    ") WITHOUT ROWID;"
    "CREATE TABLE templates (id TEXT PRIMARY KEY, used INTEGER NOT NULL) WITHOUT ROWID;",
    "ALTER TABLE sessions ADD COLUMN line BLOB;"
    "ALTER TABLE sessions ADD COLUMN line_start INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE sessions ADD COLUMN line_size INTEGER NOT NULL DEFAULT 0;",
    "ALTER TABLE sandboxes ADD COLUMN identity TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE sandboxes ADD COLUMN held INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE sandboxes ADD COLUMN snapshot TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE sandboxes ADD COLUMN restored_from TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE sandboxes ADD COLUMN checkpoint TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE sandboxes ADD COLUMN slept INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE sandboxes ADD COLUMN woken INTEGER NOT NULL DEFAULT 0;",
    "ALTER TABLE sandboxes ADD COLUMN pooled INTEGER NOT NULL DEFAULT 0;"
    "CREATE TABLE pools (template TEXT PRIMARY KEY, size INTEGER NOT NULL) WITHOUT ROWID;",
    "CREATE TABLE template_names (name TEXT PRIMARY KEY, template TEXT NOT NULL) WITHOUT ROWID;",
};
static_assert(ARRAY_SIZE(upgrades) == SCHEMA_VERSION, "every version is reached");

static const char *const statements[] = {
    [STATEMENT_SANDBOX_PUT] =
        "INSERT INTO sandboxes (id, state, spec, origin, template_id, error_code, error_text,"
        " timings, vm_exists, created, identity, held, snapshot, restored_from, checkpoint, slept,"
        " woken, pooled) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, "
        "?16,"
        " ?17, ?18)"
        " ON CONFLICT (id) DO UPDATE SET state = ?2, spec = ?3, origin = ?4, template_id = ?5,"
        " error_code = ?6, error_text = ?7, timings = ?8, vm_exists = ?9, created = ?10, identity "
        "= ?11,"
        " held = ?12, snapshot = ?13, restored_from = ?14, checkpoint = ?15, slept = ?16,"
        " woken = ?17, pooled = ?18",
    [STATEMENT_SANDBOX_CLAIM] =
        "UPDATE sandboxes SET spec = ?2, timings = ?3, created = ?4, identity = ?5, pooled = 0"
        " WHERE id = ?1 AND pooled <> 0",
    [STATEMENT_SANDBOX_DELETE] = "DELETE FROM sandboxes WHERE id = ?1",
    [STATEMENT_SANDBOX_EACH] =
        "SELECT id, state, spec, origin, template_id, error_code, error_text, timings, vm_exists,"
        " created, identity, held, snapshot, restored_from, checkpoint, slept, woken, pooled"
        " FROM sandboxes ORDER BY created, id",
    [STATEMENT_SESSION_PUT] =
        "INSERT INTO sessions (sandbox, name, kind, user, cwd, env, tty_rows, tty_cols, created)"
        " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    [STATEMENT_SESSION_RECORD] =
        "UPDATE sessions SET process_id = ?3, control_offset = ?4, command = ?5, running = ?6,"
        " start0 = ?7, start1 = ?8, start2 = ?9, started = ?10, timeout_msec = ?11, line = ?12,"
        " line_start = ?13, line_size = ?14"
        " WHERE sandbox = ?1 AND name = ?2",
    [STATEMENT_SESSION_DELETE] = "DELETE FROM sessions WHERE sandbox = ?1 AND name = ?2",
    [STATEMENT_SESSION_EACH] =
        "SELECT name, kind, user, cwd, env, tty_rows, tty_cols, created, process_id,"
        " control_offset, command, running, start0, start1, start2, started, timeout_msec, line,"
        " line_start, line_size"
        " FROM sessions WHERE sandbox = ?1 ORDER BY created, name",
    [STATEMENT_TEMPLATE_PUT] = "INSERT OR REPLACE INTO templates (id, used) VALUES (?1, ?2)",
    [STATEMENT_TEMPLATE_DELETE] = "DELETE FROM templates WHERE id = ?1",
    [STATEMENT_TEMPLATE_USED] = "SELECT used FROM templates WHERE id = ?1",
    [STATEMENT_NAME_PUT] = "INSERT OR REPLACE INTO template_names (name, template) VALUES (?1, ?2)",
    [STATEMENT_NAME_DELETE] = "DELETE FROM template_names WHERE name = ?1",
    [STATEMENT_NAMES_DELETE] = "DELETE FROM template_names WHERE template = ?1",
    [STATEMENT_NAME_FIND] = "SELECT template FROM template_names WHERE name = ?1",
    [STATEMENT_NAME_EACH] = "SELECT name FROM template_names WHERE template = ?1 ORDER BY name",
    [STATEMENT_POOL_PUT] = "INSERT OR REPLACE INTO pools (template, size) VALUES (?1, ?2)",
    [STATEMENT_POOL_DELETE] = "DELETE FROM pools WHERE template = ?1",
    [STATEMENT_POOL_SIZE] = "SELECT size FROM pools WHERE template = ?1",
    [STATEMENT_POOL_EACH] = "SELECT template, size FROM pools ORDER BY template",
};
static_assert(ARRAY_SIZE(statements) == STORE_STATEMENT_COUNT, "every statement has its text");

/* ---- helpers ---- */

int store_error(struct store *s, int rc, const char *what, struct error *err)
{
    int errnum = EIO;

    if (rc == SQLITE_FULL)
        errnum = ENOSPC;
    else if (rc == SQLITE_NOMEM)
        errnum = ENOMEM;
    else if (rc == SQLITE_CONSTRAINT)
        errnum = EEXIST;
    else if (rc == SQLITE_READONLY || rc == SQLITE_CANTOPEN)
        errnum = EACCES;
    return error_set(err, errnum, "store: %s: %s", what,
                     s->db ? sqlite3_errmsg(s->db) : sqlite3_errstr(rc));
}

void store_bind_text(sqlite3_stmt *st, int index, const char *text)
{
    (void)sqlite3_bind_text(st, index, text, -1, SQLITE_STATIC);
}

void store_bind_u64(sqlite3_stmt *st, int index, uint64_t value)
{
    (void)sqlite3_bind_int64(st, index, (sqlite3_int64)value);
}

const char *store_column_text(sqlite3_stmt *st, int column)
{
    const unsigned char *text = sqlite3_column_text(st, column);

    return text ? (const char *)text : "";
}

uint64_t store_column_u64(sqlite3_stmt *st, int column)
{
    return (uint64_t)sqlite3_column_int64(st, column);
}

int store_run(struct store *s, enum store_statement which, struct error *err)
{
    sqlite3_stmt *st = s->statements[which];
    int rc = sqlite3_step(st), r = 0;

    if (rc != SQLITE_DONE && rc != SQLITE_ROW)
        r = store_error(s, rc, "write", err);
    (void)sqlite3_reset(st);
    (void)sqlite3_clear_bindings(st);
    return r;
}

/* ---- opening ---- */

static int exec(struct store *s, const char *sql, struct error *err)
{
    int rc = sqlite3_exec(s->db, sql, NULL, NULL, NULL);

    return rc == SQLITE_OK ? 0 : store_error(s, rc, "set up", err);
}

static int schema_version(struct store *s, int *ret, struct error *err)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(s->db, "PRAGMA user_version", -1, &st, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        *ret = sqlite3_column_int(st, 0);
    (void)sqlite3_finalize(st);
    return rc == SQLITE_ROW ? 0 : store_error(s, rc, "read the schema version", err);
}

static int set_up(struct store *s, const char *path, struct error *err)
{
    int version = 0, r;

    r = exec(s,
             /* Nobody else has this file: without locks for every write. */
             "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = "
             "NORMAL; PRAGMA foreign_keys = ON;"
             "PRAGMA trusted_schema = OFF;",
             err);
    if (r < 0)
        return r;
    r = schema_version(s, &version, err);
    if (r < 0)
        return r;
    if (version >= 0 && version < SCHEMA_VERSION) {
        r = exec(s, "BEGIN IMMEDIATE;", err);
        for (; r >= 0 && version < SCHEMA_VERSION; version++)
            r = exec(s, upgrades[version], err);
        return r < 0 ? r : exec(s, "PRAGMA user_version = 5; COMMIT;", err);
        static_assert(SCHEMA_VERSION == 5, "the pragma above says the version");
    }
    if (version != SCHEMA_VERSION)
        return error_set(err, EINVAL,
                         "store '%s': schema version %d, this program knows %d; it was written by "
                         "another version",
                         path, version, SCHEMA_VERSION);
    return 0;
}

int store_open(const char *path, struct store **ret, struct error *err)
{
    struct store *s = calloc(1, sizeof(*s));
    int rc, r;

    if (!s)
        return error_set(err, ENOMEM, "store: out of memory");
    s->claims_fd = -EBADF;
    rc = sqlite3_open_v2(path, &s->db,
                         SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    r = rc == SQLITE_OK ? 0 : store_error(s, rc, path, err);
    if (r >= 0) {
        (void)sqlite3_busy_timeout(s->db, 1000);
        r = set_up(s, path, err);
    }
    if (r >= 0)
        r = store_keys_set_up(s, err);
    if (r >= 0)
        r = store_once_set_up(s, err);
    for (size_t i = 0; r >= 0 && i < STORE_STATEMENT_COUNT; i++) {
        rc = sqlite3_prepare_v3(s->db, statements[i], -1, SQLITE_PREPARE_PERSISTENT,
                                &s->statements[i], NULL);
        if (rc != SQLITE_OK)
            r = store_error(s, rc, "prepare", err);
    }
    if (r >= 0)
        r = store_claims_open(s, path, err);
    if (r < 0) {
        error_wrap(err, "open '%s'", path);
        (void)store_close(s);
        return r;
    }
    *ret = s;
    return 0;
}

struct store *store_close(struct store *s)
{
    if (!s)
        return NULL;
    store_claims_close(s);
    for (size_t i = 0; i < STORE_STATEMENT_COUNT; i++)
        (void)sqlite3_finalize(s->statements[i]);
    (void)sqlite3_close(s->db);
    free(s);
    return NULL;
}

/* ---- sandboxes ---- */

int store_sandbox_put(struct store *s, const struct sandbox_row *row, struct error *err)
{
    sqlite3_stmt *st = s->statements[STATEMENT_SANDBOX_PUT];

    store_bind_text(st, 1, row->id);
    store_bind_text(st, 2, sandbox_state_name(row->state));
    store_bind_text(st, 3, row->spec);
    store_bind_text(st, 4, row->origin);
    store_bind_text(st, 5, row->template_id);
    store_bind_text(st, 6, row->error_code);
    store_bind_text(st, 7, row->error_text);
    store_bind_text(st, 8, row->timings);
    store_bind_u64(st, 9, row->vm_exists);
    store_bind_u64(st, 10, row->created_wall_usec);
    store_bind_text(st, 11, row->identity);
    store_bind_u64(st, 12, row->held);
    store_bind_text(st, 13, row->snapshot);
    store_bind_text(st, 14, row->restored_from);
    store_bind_text(st, 15, row->checkpoint);
    store_bind_u64(st, 16, row->slept_wall_usec);
    store_bind_u64(st, 17, row->woken_wall_usec);
    store_bind_u64(st, 18, row->pooled);
    return store_run(s, STATEMENT_SANDBOX_PUT, err);
}

int store_sandbox_delete(struct store *s, const char *id, struct error *err)
{
    store_bind_text(s->statements[STATEMENT_SANDBOX_DELETE], 1, id);
    return store_run(s, STATEMENT_SANDBOX_DELETE, err);
}

int store_sandbox_each(struct store *s, store_sandbox_fn fn, void *userdata, struct error *err)
{
    sqlite3_stmt *st = s->statements[STATEMENT_SANDBOX_EACH];
    int rc, r = store_fold(s, err);

    if (r < 0)
        return r;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        int state = sandbox_state_from_string(store_column_text(st, 1));
        struct sandbox_row row = {
            .id = store_column_text(st, 0),
            .state = state < 0 ? SANDBOX_FAILED : (enum sandbox_state)state,
            .spec = store_column_text(st, 2),
            .origin = store_column_text(st, 3),
            .template_id = store_column_text(st, 4),
            .error_code = store_column_text(st, 5),
            .error_text = store_column_text(st, 6),
            .timings = store_column_text(st, 7),
            .vm_exists = store_column_u64(st, 8) != 0,
            .created_wall_usec = store_column_u64(st, 9),
            .identity = store_column_text(st, 10),
            .held = store_column_u64(st, 11) != 0,
            .snapshot = store_column_text(st, 12),
            .restored_from = store_column_text(st, 13),
            .checkpoint = store_column_text(st, 14),
            .slept_wall_usec = store_column_u64(st, 15),
            .woken_wall_usec = store_column_u64(st, 16),
            .pooled = store_column_u64(st, 17) != 0,
        };
        fn(&row, userdata);
    }
    if (rc != SQLITE_DONE)
        r = store_error(s, rc, "read the sandboxes", err);
    (void)sqlite3_reset(st);
    return r;
}

/* ---- templates ---- */

void store_template_put(struct store *s, const char *id, uint64_t used_wall_usec)
{
    sqlite3_stmt *st = s->statements[STATEMENT_TEMPLATE_PUT];
    struct error err = {0};

    store_bind_text(st, 1, id);
    store_bind_u64(st, 2, used_wall_usec);
    if (store_run(s, STATEMENT_TEMPLATE_PUT, &err) < 0)
        log_warning("Failed to store template '%s': %s, ignoring", id, err.text);
}

void store_template_delete(struct store *s, const char *id)
{
    struct error err = {0};

    store_bind_text(s->statements[STATEMENT_TEMPLATE_DELETE], 1, id);
    if (store_run(s, STATEMENT_TEMPLATE_DELETE, &err) < 0)
        log_warning("Failed to forget template '%s': %s, ignoring", id, err.text);
    store_bind_text(s->statements[STATEMENT_NAMES_DELETE], 1, id);
    if (store_run(s, STATEMENT_NAMES_DELETE, &err) < 0)
        log_warning("Failed to forget the names of '%s': %s, ignoring", id, err.text);
}

uint64_t store_template_used(struct store *s, const char *id)
{
    sqlite3_stmt *st = s->statements[STATEMENT_TEMPLATE_USED];
    uint64_t used = 0;

    store_bind_text(st, 1, id);
    if (sqlite3_step(st) == SQLITE_ROW)
        used = store_column_u64(st, 0);
    (void)sqlite3_reset(st);
    (void)sqlite3_clear_bindings(st);
    return used;
}
