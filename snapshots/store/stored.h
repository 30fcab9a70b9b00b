#pragma once

#include "store/feed.h"
#include "store/manifest.h"
#include "store/map.h"

/* One data file of a snapshot, opened together with its map. */
struct stored {
    int fd;     /* owned */
    char *path; /* owned, for messages */
    struct map map;
};

/* Opens a file for reading that must have this size, or ERR_SNAPSHOT_INVALID. */
int stored_open_file(const char *path, uint64_t size, int *ret_fd, struct error *err);
/*
 * Opens DIR/file->name and DIR/map->name and checks sizes, the map's digest, and that nothing lies
 * outside of the map; the data is verified as it is read.
 */
int stored_open(const char *dir, const struct manifest_file *file, const struct manifest_file *map,
                struct stored *ret, struct error *err);
void stored_done(struct stored *s);

#define STORED_READ_MAX MAP_STORED_MAX /* size of the largest item */
/* What to read for a chunk; the item's tag is left alone. */
void stored_plan(const struct stored *s, const struct map_chunk *chunk, struct feed_item *ret);
/*
 * Verifies what was read. *ret_image is the chunk from *ret_start on: `data` itself, or, for
 * compressed ones, `scratch` of MAP_CHUNK_BYTES. Bytes of it outside of data runs mean nothing.
 */
int stored_unpack(const struct stored *s, const struct map_chunk *chunk, const uint8_t *data,
                  uint8_t *scratch, const uint8_t **ret_image, uint64_t *ret_start,
                  struct error *err);
typedef int (*stored_chunk_fn)(const struct stored *s, const struct map_chunk *chunk,
                               const uint8_t *image, uint64_t start, void *userdata,
                               struct error *err);
/*
 * Reads and verifies all of it, on several threads where it is much, which also call `fn` (may be
 * NULL). Blocks.
 */
int stored_verify(const struct stored *s, stored_chunk_fn fn, void *userdata, struct error *err);
/* Reads all of it, verified, in ascending order. Blocks. */
int stored_walk(const struct stored *s, stored_chunk_fn fn, void *userdata, struct error *err);
