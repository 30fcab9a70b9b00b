#pragma once

#include "store/map.h"

/*
 * A data file that is being written, plain or compressed, and its map with it. Runs come in
 * ascending order; those of data do not cross a chunk. Writes are several in flight.
 */
struct output;

/* `fd` stays the caller's; `path` (weak) is for messages. */
int output_new(int fd, const char *path, uint64_t size_bytes, bool compressed, struct output **ret,
               struct error *err);
struct output *output_free(struct output *o); /* always NULL */
static inline void output_cleanup(struct output **o)
{
    *o = output_free(*o);
}
/* NULL for zeros, which may be of any length. */
int output_run(struct output *o, uint64_t offset, const void *data, uint64_t size,
               struct error *err);
/* Writes the rest, sets the length, syncs. The map goes to the caller; *ret_size as stored. */
int output_finish(struct output *o, struct map *ret_map, uint64_t *ret_size, struct error *err);
