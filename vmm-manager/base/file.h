#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

/* Whole-file and tree helpers. All of them block: loop code calls them only on small local files.
 */

/* Reads a file of at most `max` bytes; the result has a NUL after it. Owned by the caller. */
int file_read(const char *path, size_t max, char **ret_data, size_t *ret_size, struct error *err);

/* Writes beside, fsyncs, renames: readers see the old content or the new, never half. */
int file_write_atomic(const char *path, const void *data, size_t size, mode_t mode,
                      struct error *err);

/*
 * A file for reading and writing that has no name in `dir` and goes with its descriptor, also where
 * the file system (overlayfs of some kernels, 9p) makes none without a name. Or a negative errno.
 */
int file_open_unnamed(const char *dir);

/* mkdir -p; existing directories are fine. */
int dir_create(const char *path, mode_t mode, struct error *err);

/* Removes a tree without following symlinks and without leaving the file system. Missing is fine.
 */
int dir_remove(const char *path, struct error *err);

/* fsync of the directory that holds `path`. */
int dir_sync_parent(const char *path);

/*
 * Copies a file by reflink where the file system can, else its data extents only: holes stay holes.
 * `to` must not exist; it is removed again on failure.
 */
int file_copy_sparse(const char *from, const char *to, mode_t mode, struct error *err);

bool file_exists(const char *path);
/*
 * The last `size` bytes of a file, fewer when it is shorter; none of one that is not there (also
 * with path NULL). Bytes, or a negative errno.
 */
ssize_t file_read_tail(const char *path, void *data, size_t size);
