#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/macros.h"

/*
 * Patterns of paths, as .dockerignore and COPY have them: `*` and `?` stay within a name, `**`
 * crosses directories, [a-z] and \x as everywhere.
 */
struct glob;
#define GLOB_BYTES_MAX 1024u

int glob_new(const char *pattern, struct glob **ret); /* -EINVAL: no such pattern, -E2BIG */
struct glob *glob_free(struct glob *g);
/* Does it name this path? or_below: or a directory above it. In time of the product of both. */
bool glob_match(const struct glob *g, const char *path, bool or_below);
bool glob_has_magic(const char *pattern);

/* What a .dockerignore keeps out. */
struct ignore {
    struct ignore_rule {
        struct glob *glob; /* owned */
        bool keep;         /* of a line that begins with ! */
    } * rules;
    size_t n;
};
#define IGNORE_RULES_MAX 1000u
int ignore_parse(const char *data, size_t size, struct ignore *ret, struct error *err);
void ignore_done(struct ignore *ignore);
#define _cleanup_ignore_ _cleanup_(ignore_done)
/* The last rule that fits decides. `path` is relative, without a slash at its ends. */
bool ignore_match(const struct ignore *ignore, const char *path);
/* Something below an ignored directory may be kept. */
bool ignore_has_keeps(const struct ignore *ignore);
