#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "oci/config.h"

/*
 * Images in the cache.
 *   CACHE/images/names/NAME.json       what an image is called, made of and configured to do
 *   CACHE/images/blobs/SHA256.erofs    what a sandbox boots from; read-only, content-addressed
 *   CACHE/images/layers/SHA256.*       files of the layers of images, shared by all that have them
 *   CACHE/images/download, tmp         work under way
 * An image made of layers gets its EROFS file when it is first used, and may lose it again when
 * nothing uses it. That file holds little but names: the bytes stay in the layers, see packs.h.
 * Everything is written beside and renamed.
 */
struct image {
    char name[REFERENCE_SIZE];
    char sha256[65];          /* of the EROFS file, or of all that it is made from */
    char path[256];           /* absolute, of the EROFS file */
    char digest[DIGEST_SIZE]; /* of the manifest it was pulled by; "" when imported */
    char architecture[32];    /* "" when not known */
    uint64_t size_bytes;      /* of all that it is made of, shared with other images or not */
    uint64_t own_bytes;       /* on disk, of the EROFS file alone; 0 when that is not there */
    uint64_t created_wall_usec;
    uint64_t used_wall_usec;
    size_t n_layers; /* 0: one file, made at once */
    bool ready;      /* the EROFS file is there */
};

/* By its name, or by a reference that means the same. ERR_IMAGE_NOT_FOUND. */
int image_find(const char *name, struct image *ret, struct error *err);
/* The same, and the EROFS file is there afterwards. Blocks. */
int image_ready(const char *name, struct image *ret, struct error *err);
/* Its content goes by another name too that is not hidden. Reads all records. */
bool image_has_other_name(const struct image *image);
/* For who looks for the least used. */
void image_note_use(const char *sha256);
/* Names that a build gives to what it has come to so far; nobody else sees them. */
bool image_name_is_hidden(const char *name);
/* The file that says what a name is, whether it is there or not; to notice that it changes. */
int image_record_path(const char *name, char path[256]);
/* How it wants to be run; empty for an imported root. */
int image_get_config(const char *name, struct image_config *ret, struct error *err);
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
/*
 * Removes the name, and what no other name needs. What images with a digest in `in_use` (strv, may
 * be NULL) are made of stays for those that stand on them; a prune takes it later.
 */
int image_remove(const char *name, char *const *in_use, struct error *err);
