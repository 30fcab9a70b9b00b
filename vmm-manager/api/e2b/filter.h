#pragma once

#include <stdbool.h>

#include "base/error.h"

/*
 * What a list is asked for: states ("running,paused") and metadata, which travels as a form inside
 * the query whose keys and values are percent-encoded once more.
 */
#define FILTER_PAIRS_MAX 64u

struct list_filter {
    bool running, paused;
    char **metadata; /* owned, "K=V" */
};

/* Both may be NULL: everything fits. */
int list_filter_init(struct list_filter *f, const char *state, const char *metadata,
                     struct error *err);
void list_filter_done(struct list_filter *f);
bool list_filter_fits(const struct list_filter *f, bool is_paused, char *const *metadata);
