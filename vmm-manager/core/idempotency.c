#include "core/idempotency.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "core/core-private.h"
#include "core/store-private.h"

#define HASH_SIZE 32u

struct once {
    struct core *core;        /* weak */
    char *scope, *key;        /* owned */
    uint8_t asked[HASH_SIZE]; /* hash of the request's content */
    struct once *prev, *next; /* in core->once */
};

static void finalize_cleanup(sqlite3_stmt **st)
{
    (void)sqlite3_finalize(*st);
}
#define _cleanup_statement_ _cleanup_(finalize_cleanup)

int store_once_set_up(struct store *s, struct error *err)
{
    int rc = sqlite3_exec(s->db,
                          "CREATE TABLE IF NOT EXISTS once ("
                          "  scope TEXT NOT NULL, key TEXT NOT NULL, asked BLOB NOT NULL,"
                          "  status INTEGER NOT NULL, body TEXT NOT NULL, created INTEGER NOT NULL,"
                          "  PRIMARY KEY (scope, key)"
                          ") WITHOUT ROWID;"
                          "CREATE INDEX IF NOT EXISTS once_created ON once (created);",
                          NULL, NULL, NULL);

    return rc == SQLITE_OK ? 0 : store_error(s, rc, "set up the answers", err);
}

static int prepare(struct store *s, const char *sql, sqlite3_stmt **ret, struct error *err)
{
    int rc = sqlite3_prepare_v2(s->db, sql, -1, ret, NULL);

    return rc == SQLITE_OK ? 0 : store_error(s, rc, "prepare", err);
}

static int used_otherwise(const char *key, struct error *err)
{
    return error_set_code(err, ERR_CONFLICT,
                          "Idempotency-Key '%.64s': was used for another request", key);
}

/* 1: the answer; 0: none. */
static int find_answer(struct store *s, const char *scope, const char *key,
                       const uint8_t asked[static HASH_SIZE], struct once_answer *answer,
                       struct error *err)
{
    _cleanup_statement_ sqlite3_stmt *st = NULL;
    int rc, r = prepare(s,
                        "SELECT asked, status, body FROM once WHERE scope = ?1 AND key = ?2"
                        " AND created > ?3",
                        &st, err);

    if (r < 0)
        return r;
    store_bind_text(st, 1, scope);
    store_bind_text(st, 2, key);
    store_bind_u64(st, 3, clock_wall_usec() - IDEMPOTENCY_KEPT_SEC * USEC_PER_SEC);
    rc = sqlite3_step(st);
    if (rc == SQLITE_DONE)
        return 0;
    if (rc != SQLITE_ROW)
        return store_error(s, rc, "read an answer", err);
    if (sqlite3_column_bytes(st, 0) != (int)HASH_SIZE ||
        memcmp(sqlite3_column_blob(st, 0), asked, HASH_SIZE) != 0)
        return used_otherwise(key, err);
    answer->status = (unsigned)store_column_u64(st, 1);
    answer->body = strdup(store_column_text(st, 2));
    return answer->body ? 1 : error_set(err, ENOMEM, "out of memory");
}

static int once_new(struct core *core, const char *scope, const char *key,
                    const uint8_t asked[static HASH_SIZE], struct once **ret, struct error *err)
{
    struct once *once = calloc(1, sizeof(*once));

    if (!once)
        return error_set(err, ENOMEM, "out of memory");
    once->core = core;
    once->scope = strdup(scope);
    once->key = strdup(key);
    memcpy(once->asked, asked, HASH_SIZE);
    once->next = core->once;
    if (once->next)
        once->next->prev = once;
    core->once = once;
    core->n_once++;
    if (!once->scope || !once->key) {
        (void)once_free(once);
        return error_set(err, ENOMEM, "out of memory");
    }
    *ret = once;
    return 0;
}

int once_begin(struct core *core, const char *scope, const char *key, const char *asked,
               struct once **ret, struct once_answer *answer, struct error *err)
{
    uint8_t hash[HASH_SIZE];
    int r;

    if (key[0] == '\0' || strlen(key) > IDEMPOTENCY_KEY_MAX)
        return error_set(err, EINVAL, "Idempotency-Key: expected 1 to %u characters",
                         IDEMPOTENCY_KEY_MAX);
    (void)crypto_generichash(hash, sizeof(hash), (const uint8_t *)asked, strlen(asked), NULL, 0);
    for (const struct once *o = core->once; o; o = o->next) {
        if (strcmp(o->key, key) != 0 || strcmp(o->scope, scope) != 0)
            continue;
        if (memcmp(o->asked, hash, HASH_SIZE) != 0)
            return used_otherwise(key, err);
        return error_set_code(err, ERR_CONFLICT,
                              "Idempotency-Key '%.64s': the request is under way", key);
    }
    if (core->n_once >= IDEMPOTENCY_RUNNING_MAX)
        return error_set_code(err, ERR_TOO_MANY,
                              "%u requests with an Idempotency-Key are under way",
                              IDEMPOTENCY_RUNNING_MAX);
    r = find_answer(core->store, scope, key, hash, answer, err);
    return r != 0 ? r : once_new(core, scope, key, hash, ret, err);
}

/* Nothing grows for ever: old ones and what is too many go. */
static void forget_old(struct store *s)
{
    _cleanup_statement_ sqlite3_stmt *st = NULL;

    if (prepare(s,
                "DELETE FROM once WHERE created <= ?1 OR created < (SELECT created FROM once"
                " ORDER BY created DESC LIMIT 1 OFFSET ?2)",
                &st, NULL) < 0)
        return;
    store_bind_u64(st, 1, clock_wall_usec() - IDEMPOTENCY_KEPT_SEC * USEC_PER_SEC);
    store_bind_u64(st, 2, IDEMPOTENCY_KEPT_MAX - 1);
    (void)sqlite3_step(st);
}

void once_done(struct once *once, unsigned status, const char *body)
{
    struct store *s = once->core->store;
    _cleanup_statement_ sqlite3_stmt *st = NULL;
    struct error err = {0};
    int r = prepare(s,
                    "INSERT OR REPLACE INTO once (scope, key, asked, status, body, created)"
                    " VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    &st, &err);

    if (r >= 0) {
        store_bind_text(st, 1, once->scope);
        store_bind_text(st, 2, once->key);
        (void)sqlite3_bind_blob(st, 3, once->asked, HASH_SIZE, SQLITE_STATIC);
        store_bind_u64(st, 4, status);
        store_bind_text(st, 5, body);
        store_bind_u64(st, 6, clock_wall_usec());
        int rc = sqlite3_step(st);
        r = rc == SQLITE_DONE ? 0 : store_error(s, rc, "store an answer", &err);
    }
    if (r < 0)
        log_warning("Failed to keep the answer of a request: %s, ignoring", err.text);
    else
        forget_old(s);
    (void)once_free(once);
}

struct once *once_free(struct once *once)
{
    if (!once)
        return NULL;
    if (once->prev)
        once->prev->next = once->next;
    else
        once->core->once = once->next;
    if (once->next)
        once->next->prev = once->prev;
    once->core->n_once--;
    free(once->scope);
    free(once->key);
    free(once);
    return NULL;
}
