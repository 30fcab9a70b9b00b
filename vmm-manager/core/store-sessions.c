#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/strv.h"
#include "core/store-private.h"

/* Environment as a JSON array of strings. Bytes that are no UTF-8 cannot come in: the API is JSON.
 */
static char *env_to_text(char *const *env)
{
    json_t *array = json_array();
    char *text = NULL;
    bool ok = array != NULL;

    for (size_t i = 0; ok && env && env[i]; i++)
        ok = json_array_append_new(array, json_string(env[i])) >= 0;
    if (ok)
        text = json_dumps(array, JSON_COMPACT);
    json_decref(array);
    return text;
}

static char **env_from_text(const char *text)
{
    json_t *array = json_loads(text, 0, NULL), *value;
    char **env = NULL;
    size_t i;

    json_array_foreach(array, i, value)
    {
        if (json_is_string(value))
            (void)strv_append(&env, json_string_value(value));
    }
    json_decref(array);
    return env;
}

int store_session_put(struct store *s, const char *sandbox, const struct session_spec *spec,
                      uint64_t created_wall_usec, struct error *err)
{
    sqlite3_stmt *st = s->statements[STATEMENT_SESSION_PUT];
    _cleanup_free_ char *env = env_to_text(spec->env);

    if (!env)
        return error_set(err, EINVAL, "session '%s': its environment is no UTF-8 text", spec->name);
    store_bind_text(st, 1, sandbox);
    store_bind_text(st, 2, spec->name);
    store_bind_text(st, 3, spec->kind == SESSION_TTY ? "tty" : "pipe");
    store_bind_text(st, 4, spec->user);
    store_bind_text(st, 5, spec->cwd);
    store_bind_text(st, 6, env);
    store_bind_u64(st, 7, spec->rows);
    store_bind_u64(st, 8, spec->cols);
    store_bind_u64(st, 9, created_wall_usec);
    return store_run(s, STATEMENT_SESSION_PUT, err);
}

int store_session_record(struct store *s, const char *sandbox, const char *name,
                         const struct session_record *record, struct error *err)
{
    sqlite3_stmt *st = s->statements[STATEMENT_SESSION_RECORD];

    store_bind_text(st, 1, sandbox);
    store_bind_text(st, 2, name);
    store_bind_u64(st, 3, record->process_id);
    store_bind_u64(st, 4, record->control_offset);
    store_bind_u64(st, 5, record->command);
    store_bind_u64(st, 6, record->running);
    for (int i = 0; i < 3; i++)
        store_bind_u64(st, 7 + i, record->start[i]);
    store_bind_u64(st, 10, record->started_wall_usec);
    store_bind_u64(st, 11, record->timeout_msec);
    if (record->line)
        (void)sqlite3_bind_blob64(st, 12, record->line, record->line_size, SQLITE_STATIC);
    store_bind_u64(st, 13, record->line_start);
    store_bind_u64(st, 14, record->line_size);
    return store_run(s, STATEMENT_SESSION_RECORD, err);
}

int store_session_delete(struct store *s, const char *sandbox, const char *name, struct error *err)
{
    sqlite3_stmt *st = s->statements[STATEMENT_SESSION_DELETE];

    store_bind_text(st, 1, sandbox);
    store_bind_text(st, 2, name);
    return store_run(s, STATEMENT_SESSION_DELETE, err);
}

static const char *text_or_null(sqlite3_stmt *st, int column)
{
    return (const char *)sqlite3_column_text(st, column);
}

int store_session_each(struct store *s, const char *sandbox, store_session_fn fn, void *userdata,
                       struct error *err)
{
    sqlite3_stmt *st = s->statements[STATEMENT_SESSION_EACH];
    int rc, r = 0;

    store_bind_text(st, 1, sandbox);
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        _cleanup_strv_ char **env = env_from_text(store_column_text(st, 4));
        struct session_spec spec = {
            .name = store_column_text(st, 0),
            .kind = strcmp(store_column_text(st, 1), "tty") == 0 ? SESSION_TTY : SESSION_PIPE,
            .user = text_or_null(st, 2),
            .cwd = text_or_null(st, 3),
            .env = env,
            .rows = (uint16_t)store_column_u64(st, 5),
            .cols = (uint16_t)store_column_u64(st, 6),
        };
        struct session_record record = {
            .process_id = store_column_u64(st, 8),
            .control_offset = store_column_u64(st, 9),
            .command = store_column_u64(st, 10),
            .running = store_column_u64(st, 11) != 0,
            .start = {store_column_u64(st, 12), store_column_u64(st, 13), store_column_u64(st, 14)},
            .started_wall_usec = store_column_u64(st, 15),
            .timeout_msec = store_column_u64(st, 16),
            .line = sqlite3_column_blob(st, 17),
            .line_start = store_column_u64(st, 18),
            .line_size = store_column_u64(st, 19),
        };

        /* The size must be that of the bytes, whatever the row says. */
        if (record.line && (uint64_t)sqlite3_column_bytes(st, 17) != record.line_size)
            record.line = NULL;
        fn(&spec, &record, store_column_u64(st, 7), userdata);
    }
    if (rc != SQLITE_DONE)
        r = store_error(s, rc, "read the sessions", err);
    (void)sqlite3_reset(st);
    (void)sqlite3_clear_bindings(st);
    return r;
}
