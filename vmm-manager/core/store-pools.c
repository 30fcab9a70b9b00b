#include "base/log.h"
#include "core/store-private.h"

int store_pool_put(struct store *s, const char *template_id, uint32_t size, struct error *err)
{
    sqlite3_stmt *st = s->statements[STATEMENT_POOL_PUT];

    store_bind_text(st, 1, template_id);
    store_bind_u64(st, 2, size);
    return store_run(s, STATEMENT_POOL_PUT, err);
}

void store_pool_delete(struct store *s, const char *template_id)
{
    struct error err = {0};

    store_bind_text(s->statements[STATEMENT_POOL_DELETE], 1, template_id);
    if (store_run(s, STATEMENT_POOL_DELETE, &err) < 0)
        log_warning("Failed to forget the pool of '%s': %s, ignoring", template_id, err.text);
}

int64_t store_pool_size(struct store *s, const char *template_id)
{
    sqlite3_stmt *st = s->statements[STATEMENT_POOL_SIZE];
    int64_t size = -1;

    store_bind_text(st, 1, template_id);
    if (sqlite3_step(st) == SQLITE_ROW)
        size = (int64_t)(store_column_u64(st, 0) & INT32_MAX);
    (void)sqlite3_reset(st);
    (void)sqlite3_clear_bindings(st);
    return size;
}

void store_pool_each(struct store *s, store_pool_fn fn, void *userdata)
{
    sqlite3_stmt *st = s->statements[STATEMENT_POOL_EACH];

    while (sqlite3_step(st) == SQLITE_ROW)
        fn(store_column_text(st, 0), (uint32_t)(store_column_u64(st, 1) & INT32_MAX), userdata);
    (void)sqlite3_reset(st);
}
