#include "core/store-keys.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "core/store-private.h"

static void finalize_cleanup(sqlite3_stmt **st)
{
    (void)sqlite3_finalize(*st);
}
#define _cleanup_statement_ _cleanup_(finalize_cleanup)

int store_keys_set_up(struct store *s, struct error *err)
{
    int rc = sqlite3_exec(s->db,
                          "CREATE TABLE IF NOT EXISTS keys ("
                          "  id TEXT PRIMARY KEY, hash BLOB NOT NULL UNIQUE, tenant TEXT NOT NULL,"
                          "  name TEXT NOT NULL, role TEXT NOT NULL, sandboxes INTEGER NOT NULL,"
                          "  cpus INTEGER NOT NULL, memory_mib INTEGER NOT NULL,"
                          "  disk_mib INTEGER NOT NULL, rate INTEGER NOT NULL,"
                          "  created INTEGER NOT NULL"
                          ") WITHOUT ROWID;"
                          "CREATE TABLE IF NOT EXISTS secrets ("
                          "  name TEXT PRIMARY KEY, value BLOB NOT NULL"
                          ") WITHOUT ROWID;",
                          NULL, NULL, NULL);

    return rc == SQLITE_OK ? 0 : store_error(s, rc, "set up the keys", err);
}

static int prepare(struct store *s, const char *sql, sqlite3_stmt **ret, struct error *err)
{
    int rc = sqlite3_prepare_v2(s->db, sql, -1, ret, NULL);

    return rc == SQLITE_OK ? 0 : store_error(s, rc, "prepare", err);
}

static int step_to_end(struct store *s, sqlite3_stmt *st, const char *what, struct error *err)
{
    int rc = sqlite3_step(st);

    return rc == SQLITE_DONE ? 0 : store_error(s, rc, what, err);
}

int store_key_put(struct store *s, const struct key_row *row, struct error *err)
{
    _cleanup_statement_ sqlite3_stmt *st = NULL;
    int r = prepare(s,
                    "INSERT INTO keys (id, hash, tenant, name, role, sandboxes, cpus, memory_mib,"
                    " disk_mib, rate, created)"
                    " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
                    &st, err);
    if (r < 0)
        return r;
    store_bind_text(st, 1, row->id);
    (void)sqlite3_bind_blob(st, 2, row->hash, sizeof(row->hash), SQLITE_STATIC);
    store_bind_text(st, 3, row->tenant);
    store_bind_text(st, 4, row->name);
    store_bind_text(st, 5, role_name(row->role));
    store_bind_u64(st, 6, row->quota.sandboxes);
    store_bind_u64(st, 7, row->quota.cpus);
    store_bind_u64(st, 8, row->quota.memory_mib);
    store_bind_u64(st, 9, row->quota.disk_mib);
    store_bind_u64(st, 10, row->quota.rate);
    store_bind_u64(st, 11, row->created_wall_usec);
    return step_to_end(s, st, "store a key", err);
}

int store_key_delete(struct store *s, const char *id, struct error *err)
{
    _cleanup_statement_ sqlite3_stmt *st = NULL;
    int r = prepare(s, "DELETE FROM keys WHERE id = ?1", &st, err);

    if (r < 0)
        return r;
    store_bind_text(st, 1, id);
    return step_to_end(s, st, "remove a key", err);
}

/* A row that makes no sense is no key. */
static bool row_read(sqlite3_stmt *st, struct key_row *ret)
{
    int role = role_from_string(store_column_text(st, 4));

    if (role < 0 || sqlite3_column_bytes(st, 1) != (int)KEY_HASH_SIZE)
        return false;
    *ret = (struct key_row){
        .role = (enum role)role,
        .quota = {(uint32_t)store_column_u64(st, 5), (uint32_t)store_column_u64(st, 6),
                  (uint32_t)store_column_u64(st, 7), (uint32_t)store_column_u64(st, 8),
                  (uint32_t)store_column_u64(st, 9)},
        .created_wall_usec = store_column_u64(st, 10),
    };
    (void)snprintf(ret->id, sizeof(ret->id), "%s", store_column_text(st, 0));
    memcpy(ret->hash, sqlite3_column_blob(st, 1), KEY_HASH_SIZE);
    (void)snprintf(ret->tenant, sizeof(ret->tenant), "%s", store_column_text(st, 2));
    (void)snprintf(ret->name, sizeof(ret->name), "%s", store_column_text(st, 3));
    return true;
}

int store_key_each(struct store *s, store_key_fn fn, void *userdata, struct error *err)
{
    _cleanup_statement_ sqlite3_stmt *st = NULL;
    struct key_row row;
    int rc, r = prepare(s,
                        "SELECT id, hash, tenant, name, role, sandboxes, cpus, memory_mib,"
                        " disk_mib, rate, created FROM keys ORDER BY created, id",
                        &st, err);

    if (r < 0)
        return r;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        if (!row_read(st, &row))
            continue;
        r = fn(&row, userdata);
        if (r < 0)
            return error_fill(err, r, "read the keys");
    }
    return rc == SQLITE_DONE ? 0 : store_error(s, rc, "read the keys", err);
}

static int secret_read(struct store *s, const char *name, void *data, size_t size,
                       struct error *err)
{
    _cleanup_statement_ sqlite3_stmt *st = NULL;
    int rc, r = prepare(s, "SELECT value FROM secrets WHERE name = ?1", &st, err);

    if (r < 0)
        return r;
    store_bind_text(st, 1, name);
    rc = sqlite3_step(st);
    if (rc == SQLITE_DONE)
        return -ENOENT;
    if (rc != SQLITE_ROW)
        return store_error(s, rc, "read a secret", err);
    if (sqlite3_column_bytes(st, 0) != (int)size)
        return error_set(err, EINVAL, "store: secret '%s' has another size", name);
    memcpy(data, sqlite3_column_blob(st, 0), size);
    return 0;
}

int store_secret(struct store *s, const char *name, void *data, size_t size, struct error *err)
{
    _cleanup_statement_ sqlite3_stmt *st = NULL;
    int r = secret_read(s, name, data, size, err);

    if (r != -ENOENT)
        return r;
    r = prepare(s, "INSERT INTO secrets (name, value) VALUES (?1, ?2)", &st, err);
    if (r < 0)
        return r;
    randombytes_buf(data, size);
    store_bind_text(st, 1, name);
    (void)sqlite3_bind_blob64(st, 2, data, size, SQLITE_STATIC);
    return step_to_end(s, st, "store a secret", err);
}
