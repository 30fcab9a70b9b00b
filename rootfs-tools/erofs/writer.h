#pragma once

#include "base/error.h"
#include "layers/tree.h"

/*
 * Writes a tree as an EROFS image, uncompressed, straight from the packs of its layers: nothing is
 * unpacked to a directory, no privilege is needed, and the same tree gives the same bytes. Layer i
 * of the tree (from 1) is layers[i - 1]. `path` is created. Blocks.
 *
 * With `packs`, the digests of the layers (64 digits each), the largest packs are not copied: the
 * image names them as its devices (erofs/packs.h), and holds itself only names, small files and
 * what is in other layers. NULL: the image needs no other file.
 *
 * mkfs.erofs would need every file of the image on disk once more; see docs/ARCHITECTURE.md.
 */
int erofs_write(struct tree *tree, const struct layer *layers, size_t n_layers,
                const char *const *packs, const char *path, uint64_t *ret_size, struct error *err);
