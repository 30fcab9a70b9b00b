#pragma once

#include <stdbool.h>
#include <sys/stat.h>

#include "core/core-private.h"
#include "core/resolve.h"

/*
 * What specs meant when they were last looked up, for the way of a claim: an answer is good as long
 * as no file that it was drawn from has changed, which a few stat() calls tell. Loop only, but for
 * struct watched_files, which a worker fills.
 */
#define WATCHED_FILES_MAX 10u

struct watched_file {
    char path[256];
    struct stat st; /* all zeros: it was not there, and appearing is a change too */
};

/*
 * First what says which image or template a name means: that can change with every request, so each
 * claim looks at it. Then the other files that decide which template fits, those of the
 * installation: of claims in quick succession only one in a tenth of a second looks at them. The
 * rest only have to be there.
 */
struct watched_files {
    struct watched_file files[WATCHED_FILES_MAX];
    size_t n, n_deciding;
    bool overflow; /* one did not fit: never good */
};

/* Notes what the file is like now; taken before it is read, so that a later change is seen. */
void watched_files_add(struct watched_files *w, const char *path);
bool watched_files_same(const struct watched_files *w, size_t n);

/*
 * NULL: not known, or no longer true. Which template fits is sure; with `all` also that everything
 * to make it with is there. Weak, until the next call of this header.
 */
const struct resolution *resolve_cache_find(struct core *core, const struct sandbox_spec *spec,
                                            bool all);
/* Without looking at the files: just after resolve_cache_find() has done so. */
const struct resolution *resolve_cache_peek(struct core *core, const struct sandbox_spec *spec);
/* It was known, and this template no longer is what it means. */
bool resolve_cache_differs(struct core *core, const struct sandbox_spec *spec,
                           const char *template_id);
void resolve_cache_put(struct core *core, const struct sandbox_spec *spec,
                       const struct resolution *resolution, const struct watched_files *watched);
void resolve_cache_clear(struct core *core);
