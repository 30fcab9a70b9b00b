#pragma once

#include <stdbool.h>
#include <sys/stat.h>

/*
 * Walks a directory tree without following symlinks and without recursion. Entries are named by a
 * directory descriptor and a name, so that a path swapped meanwhile leads nowhere.
 */
#define WALK_DEPTH_MAX 256u

enum walk_order {
    WALK_BEFORE, /* a directory comes before its entries */
    WALK_AFTER,  /* and after them */
};

struct walk_entry {
    int dir_fd;       /* weak */
    const char *name; /* weak; in dir_fd */
    const char *path; /* weak; relative to the top, cut to 4095 bytes */
    unsigned depth;   /* 1: an entry of the top itself */
    struct stat st;
    enum walk_order order; /* for directories that are entered */
};

/* A negative errno stops the walk and is returned. */
typedef int (*walk_fn)(const struct walk_entry *e, void *userdata);

/* Takes the descriptor of the top. Directories below max_depth (at most WALK_DEPTH_MAX) are not
 * entered. */
int walk_tree_consume(int top_fd, unsigned max_depth, walk_fn fn, void *userdata);
