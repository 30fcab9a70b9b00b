#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "erofs/image.h"

/*
 * A layer of an image, taken apart once and kept for all images that have it: PACK holds the bytes
 * of its files, INDEX the entries in their order. Nothing of a layer is ever unpacked to a
 * directory, so no name in it can lead anywhere; and two images that share a layer share its files.
 *
 * A pack can be a block device of a guest, which reads files in it where they are (erofs/packs.h):
 * a file has blocks of its own, with zeros behind its end, because a guest that maps it sees them.
 * Only the small ones, which an image keeps beside their inodes, share blocks.
 */
#define LAYER_ENTRIES_MAX 1000000u /* of all layers of an image together */
#define LAYER_BYTES_MAX (UINT64_C(64) * 1024 * 1024 * 1024)
#define LAYER_RATIO_MAX 100u /* of unpacked to packed bytes, beyond the free part */
#define LAYER_RATIO_FREE (UINT64_C(4) * 1024 * 1024 * 1024)
#define LAYER_PATH_MAX 4096u
#define LAYER_NAME_MAX 255u
#define LAYER_DEPTH_MAX 200u
#define LAYER_XATTRS_MAX ((size_t)60 * 1024) /* of one file */
#define LAYER_ALIGN 4096u
#define LAYER_SMALL_MAX 1024u /* a file of at most this size shares its block */

/* What one image may use, counted over all its layers from several threads. */
struct layer_budget {
    _Atomic uint64_t entries;
    _Atomic uint64_t bytes;
    _Atomic uint64_t packed; /* compressed bytes of all layers, set before */
};

/*
 * Takes a layer tar (plain, gzip or zstd) apart into two new files. `diff_id` is the digest that
 * its uncompressed bytes must have, or NULL. `cancel` is looked at now and then; may be NULL.
 * Blocks; several may run at once.
 */
struct layer_unpack {
    const char *blob; /* path of the tar */
    const char *name; /* for error texts */
    const char *diff_id;
    const char *pack, *index; /* paths, to be created */
    struct layer_budget *budget;
    const _Atomic bool *cancel;
    char ret_diff_id[72];
    uint64_t ret_bytes; /* on disk, of pack and index */
};
int layer_unpack(struct layer_unpack *u, struct error *err);

/* An entry of the index. Strings are weak: they live as long as the index. */
enum layer_type {
    LAYER_FILE = 1,
    LAYER_DIR,
    LAYER_SYMLINK,
    LAYER_HARDLINK,
    LAYER_CHAR,
    LAYER_BLOCK,
    LAYER_FIFO,
    LAYER_WHITEOUT, /* path and all below it in lower layers is gone */
    LAYER_OPAQUE,   /* all below path in lower layers is gone */
};
struct layer_entry {
    enum layer_type type;
    uint16_t mode; /* permission bits */
    uint32_t uid, gid;
    uint32_t major, minor;
    int64_t mtime;
    uint32_t mtime_nsec;
    uint64_t size;
    uint64_t offset;    /* of its bytes in the pack */
    const char *path;   /* relative, "" is the root, no `.`, no `..`, no empty component */
    const char *target; /* of links; of hard links like path */
    const uint8_t *xattrs;
    size_t xattrs_size; /* in the form that EROFS keeps them in, each padded to 4 bytes */
};

struct layer {
    int pack_fd;        /* owned */
    const uint8_t *map; /* owned */
    size_t map_size;
    size_t n_entries;
    uint64_t pack_bytes;
    bool in_blocks; /* files have blocks of their own; packs of older versions hold them in a row */
};
int layer_open(const char *pack, const char *index, struct layer *ret, struct error *err);
void layer_close(struct layer *layer);
/* Entries in order: start with *position 0; false at the end. */
bool layer_next(const struct layer *layer, size_t *position, struct layer_entry *ret);
/* Did the index end as it should? A damaged one ends early. */
bool layer_is_whole(const struct layer *layer);
