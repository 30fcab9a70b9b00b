#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "core/store-private.h"

/* Names of templates; several may stand for one. */

int store_template_name(struct store *s, const char *name, const char *id, struct error *err)
{
    sqlite3_stmt *st = s->statements[STATEMENT_NAME_PUT];

    store_bind_text(st, 1, name);
    store_bind_text(st, 2, id);
    return store_run(s, STATEMENT_NAME_PUT, err);
}

void store_template_unname(struct store *s, const char *name)
{
    struct error err = {0};

    store_bind_text(s->statements[STATEMENT_NAME_DELETE], 1, name);
    if (store_run(s, STATEMENT_NAME_DELETE, &err) < 0)
        log_warning("Failed to forget the name '%s': %s, ignoring", name, err.text);
}

bool store_template_by_name(struct store *s, const char *name, char ret[33])
{
    sqlite3_stmt *st = s->statements[STATEMENT_NAME_FIND];
    bool found = false;

    store_bind_text(st, 1, name);
    if (sqlite3_step(st) == SQLITE_ROW) {
        (void)snprintf(ret, 33, "%s", store_column_text(st, 0));
        found = true;
    }
    (void)sqlite3_reset(st);
    (void)sqlite3_clear_bindings(st);
    return found;
}

json_t *store_template_names(struct store *s, const char *id)
{
    sqlite3_stmt *st = s->statements[STATEMENT_NAME_EACH];
    json_t *names = json_array();

    store_bind_text(st, 1, id);
    while (names && sqlite3_step(st) == SQLITE_ROW)
        (void)json_array_append_new(names, json_string(store_column_text(st, 0)));
    (void)sqlite3_reset(st);
    (void)sqlite3_clear_bindings(st);
    return names;
}

bool store_template_has_name(struct store *s, const char *id)
{
    json_t *names = store_template_names(s, id);
    bool has = json_array_size(names) > 0;

    json_decref(names);
    return has;
}
