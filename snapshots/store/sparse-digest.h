#pragma once

#include "store/blake.h"

/*
 * A digest for large sparse files: BLAKE2b over the size and the digests of all MiB of the file in
 * their order. That of a MiB of hole is known beforehand, and parts are made on several threads; so
 * it costs what the data costs, not what the size does. 0 or a negative errno. Blocks.
 */
int sparse_digest(int fd, char ret[DIGEST_TEXT_SIZE]);
