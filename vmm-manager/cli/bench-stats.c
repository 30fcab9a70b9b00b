#include "cli/bench-stats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"

void samples_done(struct samples *s)
{
    free(s->values);
    *s = (struct samples){0};
}

int samples_add(struct samples *s, double value)
{
    if (!(value >= 0.0))
        return -EINVAL;
    if (s->count >= SAMPLES_MAX)
        return -ENOBUFS;
    if (s->count == s->room) {
        size_t room = s->room ? s->room * 2 : 64;
        double *values = reallocarray(s->values, room, sizeof(*values));

        if (!values)
            return -ENOMEM;
        s->values = values;
        s->room = room;
    }
    s->values[s->count++] = value;
    return 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The smallest value that at least `percent` of all do not exceed. */
static double at(const double *ordered, size_t count, size_t percent)
{
    size_t rank = (count * percent + 99) / 100;

    return ordered[rank > 0 ? rank - 1 : 0];
}

int samples_summary(const struct samples *s, struct summary *ret)
{
    _cleanup_free_ double *ordered = NULL;

    *ret = (struct summary){.count = s->count};
    if (s->count == 0)
        return 0;
    ordered = reallocarray(NULL, s->count, sizeof(*ordered));
    if (!ordered)
        return -ENOMEM;
    memcpy(ordered, s->values, s->count * sizeof(*ordered));
    qsort(ordered, s->count, sizeof(*ordered), compare);
    ret->min = ordered[0];
    ret->p50 = at(ordered, s->count, 50);
    ret->p95 = at(ordered, s->count, 95);
    ret->p99 = at(ordered, s->count, 99);
    ret->max = ordered[s->count - 1];
    return 0;
}
