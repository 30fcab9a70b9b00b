#pragma once

#include <sqlite3.h>

#include "base/buf.h"
#include "core/store.h"

#define STORE_CLAIMS_MAX ((size_t)1024 * 1024) /* bytes of notes */

/* One prepared statement each; names in the order of the table in store.c. */
enum store_statement {
    STATEMENT_SANDBOX_PUT,
    STATEMENT_SANDBOX_CLAIM,
    STATEMENT_SANDBOX_DELETE,
    STATEMENT_SANDBOX_EACH,
    STATEMENT_SESSION_PUT,
    STATEMENT_SESSION_RECORD,
    STATEMENT_SESSION_DELETE,
    STATEMENT_SESSION_EACH,
    STATEMENT_TEMPLATE_PUT,
    STATEMENT_TEMPLATE_DELETE,
    STATEMENT_TEMPLATE_USED,
    STATEMENT_NAME_PUT,
    STATEMENT_NAME_DELETE,
    STATEMENT_NAMES_DELETE,
    STATEMENT_NAME_FIND,
    STATEMENT_NAME_EACH,
    STATEMENT_POOL_PUT,
    STATEMENT_POOL_DELETE,
    STATEMENT_POOL_SIZE,
    STATEMENT_POOL_EACH,
};
#define STORE_STATEMENT_COUNT (STATEMENT_POOL_EACH + 1)

struct store {
    sqlite3 *db;                                     /* owned */
    sqlite3_stmt *statements[STORE_STATEMENT_COUNT]; /* owned */
    int claims_fd;                                   /* owned: store-claims.c */
    uint64_t claims_bytes;                           /* in the file; what is folded may be left */
    struct buf claims;                               /* notes whose rows are not written yet */
};

/* Runs a statement whose parameters are bound, to its end, and resets it. */
int store_run(struct store *s, enum store_statement which, struct error *err);
int store_error(struct store *s, int rc, const char *what, struct error *err);
void store_bind_text(sqlite3_stmt *st, int index, const char *text); /* NULL is SQL NULL */
void store_bind_u64(sqlite3_stmt *st, int index, uint64_t value);
/* idempotency.c: its table; called by store_open(). */
int store_once_set_up(struct store *s, struct error *err);
const char *store_column_text(sqlite3_stmt *st, int column); /* "" for NULL */
uint64_t store_column_u64(sqlite3_stmt *st, int column);

/* store-claims.c: the file of notes; those of an earlier daemon become rows. */
int store_claims_open(struct store *s, const char *path, struct error *err);
void store_claims_close(struct store *s);
/* A note of a claim, and back: id, spec, timings, created, identity. -EBADMSG for anything that is
 * none; the row's strings are in the line, which is taken apart. */
int store_claim_encode(struct buf *b, const struct sandbox_row *row);
int store_claim_decode(char *line, struct sandbox_row *ret);
