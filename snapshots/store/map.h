#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "store/blake.h"

/*
 * What a stored file holds, in a file of its own beside it (`memory.map`, `disk.map`): runs of data
 * and of zeros, and a digest for every chunk of MAP_CHUNK_BYTES that has data. What is in no run is
 * not in the file at all: for memory it is the parent's, for a disk it is a hole. Zeros are holes
 * of the stored file, and only the map tells them from what is not there.
 *
 * A chunk's digest is over its data runs, one after the other. A compressed file is a row of zstd
 * frames, one for each chunk with data, that unpack to the chunk from its first data to its last;
 * the digest is over the frame then, so that nothing unverified is unpacked.
 *
 * On disk, little endian: "HEARTHM1", u32 flags (1: compressed), u32 chunk bytes, u64 size, u32
 * runs, u32 chunks; then runs of {u64 offset | kind, u64 size}; then chunks of {u32 index, u32
 * stored size, u64 stored offset, digest}.
 */
#define MAP_PAGE_BYTES 4096u
#define MAP_CHUNK_BYTES (1024u * 1024u)
#define MAP_SIZE_MAX (UINT64_C(1) << 40)                        /* of the file that it describes */
#define MAP_FILE_BYTES_MAX (64u * 1024u * 1024u)                /* of the map itself */
#define MAP_STORED_MAX (MAP_CHUNK_BYTES + MAP_CHUNK_BYTES / 8u) /* a frame */

enum map_kind {
    MAP_DATA = 1,
    MAP_ZERO = 2,
};

struct map_run {
    uint64_t offset; /* whole pages */
    uint64_t size;   /* whole pages, but for the end of the file */
    enum map_kind kind;
};

struct map_chunk {
    uint32_t index;         /* offset / MAP_CHUNK_BYTES */
    uint32_t stored_size;   /* of the frame; 0 when not compressed */
    uint64_t stored_offset; /* of the frame; 0 when not compressed */
    uint8_t digest[DIGEST_BYTES];
};

struct map {
    uint64_t size_bytes;
    bool compressed;
    struct map_run *runs; /* owned, ascending, apart */
    size_t n_runs, runs_room;
    struct map_chunk *chunks; /* owned, ascending: those that hold data */
    size_t n_chunks, chunks_room;
};

void map_done(struct map *m);
/* Appends; joins with the last run where it continues it. Ascending order is the caller's duty. */
int map_add_run(struct map *m, uint64_t offset, uint64_t size, enum map_kind kind);
int map_add_chunk(struct map *m, const struct map_chunk *chunk);
uint64_t map_bytes(const struct map *m, enum map_kind kind);
/* First run that ends after `offset`; n_runs when there is none. */
size_t map_find_run(const struct map *m, uint64_t offset);
const struct map_chunk *map_find_chunk(const struct map *m, uint64_t offset);
/* Where the data of a chunk begins and ends; false when it has none. */
bool map_chunk_span(const struct map *m, uint32_t index, uint64_t *ret_start, uint64_t *ret_end);
/* Of `image`, the bytes from `start` on, over the data runs of the chunk. */
void map_chunk_digest(const struct map *m, uint32_t index, const uint8_t *image, uint64_t start,
                      uint8_t ret[DIGEST_BYTES]);

/* The bytes of a map; owned by the caller. */
int map_encode(const struct map *m, uint8_t **ret, size_t *ret_size, struct error *err);
/* Strict: ERR_SNAPSHOT_INVALID for anything that map_encode() would not have made. */
int map_decode(const uint8_t *data, size_t size, struct map *ret, struct error *err);
