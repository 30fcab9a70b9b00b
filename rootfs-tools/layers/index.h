#pragma once

#include "base/buf.h"
#include "layers/layer.h"

/* The index of a layer as a file: written by us, read again with suspicion. */
#define INDEX_BYTES_MAX ((size_t)1024 * 1024 * 1024)

int index_begin(struct buf *b);
int index_add(struct buf *b, const struct layer_entry *entry);
/* Completes the header and writes the file. Nobody sees it before it is renamed. */
int index_write(struct buf *b, const char *path, size_t n_entries, uint64_t pack_bytes,
                struct error *err);
