#include "cli/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/macros.h"

#define ROWS_MAX 100000u

void text_make_printable(char *text)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = ' ';
}

void table_init(struct table *t, unsigned columns)
{
    *t = (struct table){.columns = columns};
}

void table_done(struct table *t)
{
    for (size_t i = 0; i < (size_t)t->rows * t->columns; i++)
        free(t->cells[i]);
    free(t->cells);
    *t = (struct table){0};
}

int table_add(struct table *t, const char *const *cells)
{
    size_t used = (size_t)t->rows * t->columns;
    char **more;

    if (t->rows >= ROWS_MAX)
        return -ENOBUFS;
    more = reallocarray(t->cells, used + t->columns, sizeof(char *));
    if (!more)
        return -ENOMEM;
    t->cells = more;
    for (unsigned i = 0; i < t->columns; i++) {
        const char *cell = cells[i] && cells[i][0] ? cells[i] : "-";

        more[used + i] = strdup(cell);
        if (!more[used + i]) {
            while (i-- > 0)
                free(more[used + i]);
            return -ENOMEM;
        }
        text_make_printable(more[used + i]);
    }
    t->rows++;
    return 0;
}

int table_print(const struct table *t)
{
    size_t widths[TABLE_COLUMNS_MAX] = {0};

    for (size_t i = 0; i < (size_t)t->rows * t->columns; i++)
        widths[i % t->columns] = MAX(widths[i % t->columns], MIN(strlen(t->cells[i]), (size_t)200));
    for (size_t i = 0; i < (size_t)t->rows * t->columns; i++) {
        if (i % t->columns + 1 == t->columns)
            (void)printf("%s\n", t->cells[i]);
        else
            (void)printf("%-*s  ", (int)widths[i % t->columns], t->cells[i]);
    }
    return ferror(stdout) ? -EPIPE : 0;
}

void text_size(uint64_t bytes, char *text, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    unsigned unit = 0;

    while (value >= 1024 && unit + 1 < ARRAY_SIZE(units)) {
        value /= 1024;
        unit++;
    }
    if (unit == 0 || value >= 100)
        (void)snprintf(text, size, "%.0f %s", value, units[unit]);
    else
        (void)snprintf(text, size, "%.1f %s", value, units[unit]);
}

void text_age(const char *rfc3339, uint64_t now_wall_usec, char *text, size_t size)
{
    struct tm tm = {0};
    const char *end = strptime(rfc3339, "%Y-%m-%dT%H:%M:%S", &tm);
    int64_t now = (int64_t)(now_wall_usec / USEC_PER_SEC), age;

    if (!end) {
        (void)snprintf(text, size, "-");
        return;
    }
    age = MAX(now - (int64_t)timegm(&tm), (int64_t)0);
    if (age < 120)
        (void)snprintf(text, size, "%" PRId64 " s", age);
    else if (age < INT64_C(2) * 3600)
        (void)snprintf(text, size, "%" PRId64 " min", age / 60);
    else if (age < INT64_C(2) * 86400)
        (void)snprintf(text, size, "%" PRId64 " h", age / 3600);
    else
        (void)snprintf(text, size, "%" PRId64 " d", age / 86400);
}
