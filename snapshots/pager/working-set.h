#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/*
 * Pages in the order of their first touch after a restore, in SNAPSHOT/working-set. A hint: when it
 * is damaged or of another snapshot it is as if it were not there. "HEARTHW1", 64 hex digits of the
 * snapshot's seal, u32 count, u32 page numbers, BLAKE2b-256 of all before; little endian.
 */
#define WORKING_SET_PAGES_MAX (1024u * 1024u)
#define WORKING_SET_BYTES_MAX (WORKING_SET_PAGES_MAX * 4u + 256u)

struct working_set {
    uint32_t *pages; /* owned */
    size_t count, room;
};

void working_set_done(struct working_set *w);
/* -EFBIG when it is full. */
int working_set_add(struct working_set *w, uint32_t page);

int working_set_encode(const struct working_set *w, const char *seal, uint8_t **ret,
                       size_t *ret_size);
/* -EBADMSG for anything that is not whole, of this snapshot, and below `n_pages`. */
int working_set_decode(const uint8_t *data, size_t size, const char *seal, uint64_t n_pages,
                       struct working_set *ret);
int working_set_read(const char *path, const char *seal, uint64_t n_pages, struct working_set *ret);
/* Written beside and renamed. */
int working_set_write(const struct working_set *w, const char *path, const char *seal,
                      struct error *err);
