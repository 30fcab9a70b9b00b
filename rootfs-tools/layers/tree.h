#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "layers/layer.h"

/*
 * What layers look like together, in memory: names and attributes only, the bytes stay in the
 * packs. Strings are those of the layers' indexes, which must outlive the tree.
 */
#define TREE_DEPTH_MAX 1000u

struct tree_inode {
    uint16_t mode; /* with its type */
    uint16_t layer;
    uint32_t uid, gid;
    uint32_t rdev_major, rdev_minor;
    uint32_t nlink; /* names of it; for a directory 1 */
    uint32_t mtime_nsec;
    int64_t mtime;
    uint64_t size;
    uint64_t offset;    /* in its layer's pack */
    const char *target; /* of a symbolic link */
    const uint8_t *xattrs;
    uint32_t xattrs_size;
    /* For who writes it. */
    uint32_t block;
    uint64_t place;
};

struct tree_node {
    const char *name; /* not terminated */
    uint8_t name_size;
    uint16_t layer; /* the last that had an entry for it */
    uint16_t depth;
    uint32_t hash;
    uint32_t n_children;
    struct tree_inode *inode;
    struct tree_node *parent;        /* NULL: the root */
    struct tree_node *children;      /* first one */
    struct tree_node *next, *before; /* siblings */
    struct tree_node *bucket;        /* next with this hash */
};

struct tree;
int tree_new(struct tree **ret);
struct tree *tree_free(struct tree *tree);
/* Puts the next layer on top; `name` is for error texts. */
int tree_apply(struct tree *tree, const struct layer *layer, const char *name, struct error *err);

struct tree_node *tree_root(const struct tree *tree);
size_t tree_count(const struct tree *tree); /* nodes that are left */
/* Sorts the children of a directory by name, byte by byte. */
int tree_sort(struct tree_node *dir);
/* What a path leads to, following links inside the image; NULL: nothing. */
struct tree_node *tree_lookup(struct tree *tree, const char *path);
