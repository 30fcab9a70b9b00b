#pragma once

#include "pager/working-set.h"
#include "store/snapshot-internal.h"

/*
 * The memory of a snapshot at any page: from the template's file, from the layer of the chain that
 * holds it, or zero. What layers hold is verified before it is given out. For one thread.
 */
struct memory;

enum memory_kind {
    MEMORY_ZERO,
    MEMORY_DATA,
};

/* The snapshot stays open while it is used. */
int memory_new(const struct snapshot *snap, struct memory **ret, struct error *err);
struct memory *memory_free(struct memory *m); /* always NULL */
uint64_t memory_pages(const struct memory *m);
/*
 * What lies at `page`, and at up to `max` pages from it on that come from the same place:
 * *ret_pages of them, *ret_data valid until the next call and NULL for zeros. ERR_SNAPSHOT_INVALID
 * when it is not what was stored.
 */
int memory_read(struct memory *m, uint64_t page, size_t max, const void **ret_data,
                size_t *ret_pages, struct error *err);

/*
 * Many pages at once: reads of the working set, several in flight, in the order of the first touch
 * of each part.
 */
struct memory_batch;
int memory_batch_new(struct memory *m, const struct working_set *set, struct memory_batch **ret,
                     struct error *err);
struct memory_batch *memory_batch_free(struct memory_batch *b); /* always NULL */
/* 1 and the next run of pages (data as above), 0 after the last, negative on errors. */
int memory_batch_next(struct memory_batch *b, uint64_t *ret_page, const void **ret_data,
                      size_t *ret_pages, struct error *err);
