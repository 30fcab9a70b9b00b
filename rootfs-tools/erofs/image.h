#pragma once

#include <stdint.h>
#include <stddef.h>

#include "base/error.h"

/*
 * Images in the cache: CACHE/images/blobs/SHA256.erofs, content-addressed and read-only, and
 * CACHE/images/names/NAME.json that points to one. Both written beside and renamed.
 */
struct image {
    char name[64];
    char sha256[65];
    char path[256]; /* absolute, of the EROFS file */
    uint64_t size_bytes;
    uint64_t created_wall_usec;
};

int image_find(const char *name, struct image *ret, struct error *err); /* ERR_IMAGE_NOT_FOUND */
/* Sorted by name; *ret is a malloc'd array, owned by the caller. */
int image_list(struct image **ret, size_t *ret_count, struct error *err);

/* Percent done (0 to 100, or -1: unknown) and what is being done. May be called from a worker. */
typedef void (*image_progress_fn)(int percent, const char *what, void *userdata);

/*
 * Makes an image of a directory or a rootfs tar (plain or compressed), deterministically, and names
 * it. The source is only read. A name that was there points to the new image from then on; the old
 * blob stays, because sandboxes and templates may run from it. Blocks; for workers and tools.
 */
int image_import(const char *name, const char *source, image_progress_fn progress, void *userdata,
                 struct image *ret, struct error *err);
/* Removes the name, and the blob when no other name points to it. */
int image_remove(const char *name, struct error *err);
