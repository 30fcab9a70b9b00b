#pragma once

#include <stddef.h>

/* Measured values of one thing, and what is said of them. */
struct samples {
    double *values; /* owned, in the order of measuring */
    size_t count, room;
};
#define SAMPLES_MAX 100000u

void samples_done(struct samples *s);
/* -ENOMEM, -ENOBUFS beyond SAMPLES_MAX; -EINVAL for a value that is negative or no number. */
int samples_add(struct samples *s, double value);

struct summary {
    size_t count; /* 0: nothing was measured, and the rest is zero */
    double min, p50, p95, p99, max;
};
/* Percentiles by nearest rank: each is a value that was measured. -ENOMEM. */
int samples_summary(const struct samples *s, struct summary *ret);
