#pragma once

#include <stdbool.h>

#include "store/map.h"

/*
 * Makes the map of a sparse file: its data extents are read once, digested by chunk, and pages of
 * zeros in them become holes. With `keep_zeros` they stay in the map as zeros, else they are not in
 * it. `path` is for messages. Blocks.
 */
int scan_file(int fd, const char *path, bool keep_zeros, struct map *ret, struct error *err);
/*
 * The file has no data but where its map says so (zeros do not count): what would be found by no
 * digest. Blocks; cheap, it asks for extents.
 */
int scan_holes(int fd, const char *path, const struct map *m, struct error *err);
/*
 * Whether files of this directory have holes of single pages: without that the memory file of a
 * snapshot would not say which pages it holds. ERR_UNSUPPORTED when not.
 */
int scan_probe(const char *dir, struct error *err);
/* Pages of zeros become holes, in a file that has no map. 0 or a negative errno. Blocks. */
int scan_punch(int fd);
bool scan_is_zero(const void *data, size_t size);
