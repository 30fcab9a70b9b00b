#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

/* A file, link or directory of this host with all that is in it, in an order that is always the
 * same: parents first, names sorted. Links are not followed. Everything here blocks. */
#define TREE_ENTRIES_MAX 100000u

struct tree_entry {
    char *path; /* owned; relative to the root, "" for the root itself */
    mode_t mode;
    uint64_t size_bytes; /* of a file */
    char *target;        /* owned; of a link, else NULL */
};

struct tree {
    char *root; /* owned */
    struct tree_entry *entries;
    size_t n;
};

/* Sockets, devices and pipes are refused by name. */
int tree_scan(const char *root, struct tree *ret, struct error *err);
void tree_done(struct tree *tree);
/* Opens a file of it for reading, or a negative errno; a link in its place is refused. */
int tree_open(const struct tree *tree, const struct tree_entry *entry, struct error *err);

/* Adds paths, modes, link targets and contents to a running BLAKE2b. */
struct crypto_generichash_blake2b_state;
int tree_digest(const struct tree *tree, struct crypto_generichash_blake2b_state *state,
                struct error *err);
