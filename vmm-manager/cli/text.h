#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Words for people: tables, sizes, ages. */

#define TABLE_COLUMNS_MAX 16u

/* Rows of cells, printed in columns to stdout. A cell is a copy, made printable. */
struct table {
    unsigned columns;
    unsigned rows;
    char **cells; /* owned */
};

void table_init(struct table *t, unsigned columns);
void table_done(struct table *t);
/* `columns` strings; NULL is printed as "-". -ENOMEM, -ENOBUFS beyond 100000 rows. */
int table_add(struct table *t, const char *const *cells);
int table_print(const struct table *t);

/* "1.5 GiB"; text holds at least 16 bytes. */
void text_size(uint64_t bytes, char *text, size_t size);
/* "42 s", "3 min", "5 h", "8 d" since an RFC 3339 time; "-" when it is none. */
void text_age(const char *rfc3339, uint64_t now_wall_usec, char *text, size_t size);
/* Replaces control bytes in place: what comes from a guest must not drive our terminal. */
void text_make_printable(char *text);
