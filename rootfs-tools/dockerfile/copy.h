#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dockerfile/ignore.h"
#include "dockerfile/parse.h"
#include "layers/stack.h"

/*
 * COPY and ADD: which files of one tree come to which places of another, made into a layer. Both
 * trees are in memory (layers/tree.h), so no name and no link leads to a file of this host.
 */
struct copy_spec {
    struct stack *from;          /* weak: where the files are */
    struct stack *into;          /* weak: the stage so far */
    const struct ignore *ignore; /* weak; NULL: nothing is */
    char *const *sources;        /* weak */
    const struct heredoc *texts; /* weak: files that the Dockerfile itself has */
    size_t n_texts;
    const char *dest; /* weak: absolute; with a slash at its end it is a directory */
    bool keep_owner;  /* else everything is root's */
    bool own;         /* or of these */
    uint32_t uid, gid;
    int mode;    /* of files and directories, or -1: as they have it */
    bool unpack; /* archives become their content */
};

struct copy_item {
    char *path;             /* owned: in the image, relative */
    struct tree_node *node; /* weak; NULL: a text, or a directory on the way */
    const char *text;       /* weak */
    bool unpack;
};

struct copy_list {
    const struct copy_spec *spec; /* weak */
    struct copy_item *items;      /* owned */
    size_t n, room;
};

/* The spec and its trees must outlive the list. */
int copy_plan(const struct copy_spec *spec, struct copy_list *ret, struct error *err);
/* Only the directory `dest` itself, and those on the way to it. */
int copy_plan_dir(const struct copy_spec *spec, struct copy_list *ret, struct error *err);
void copy_list_done(struct copy_list *list);
#define _cleanup_copy_list_ _cleanup_(copy_list_done)
/* Of names, owners, modes and contents; times do not count. Blocks. */
int copy_digest(const struct copy_list *list, char ret[65], struct error *err);
/* Writes the layer as a tar. Blocks. */
int copy_write(const struct copy_list *list, const char *tar_path, const _Atomic bool *cancel,
               struct error *err);

/* "user", "user:group", numbers too, by the image's own /etc/passwd and /etc/group. */
int copy_owner(struct stack *image, const char *text, uint32_t *ret_uid, uint32_t *ret_gid,
               struct error *err);
/* A small file of a tree; -ENOENT. Owned by the caller, with a NUL behind it. */
int copy_read_file(struct stack *stack, const char *path, size_t max, char **ret, size_t *ret_size);

/* Is there a tar in this file, compressed or not? */
bool copy_is_archive(const struct stack *stack, const struct tree_inode *inode);
