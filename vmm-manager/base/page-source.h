#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/*
 * Pages that lie over a base memory file: what a snapshot of a running VM adds to the memory it was
 * restored from. A source is walked once, in ascending order, by one thread (often a worker); what
 * it gives is already verified. Sources come from the snapshot store, backends consume them and
 * know nothing of how they are kept.
 */
#define PAGE_BYTES 4096u

struct page_source;

struct page_source_ops {
    /*
     * The next run: 1 and *ret_offset, *ret_size (multiples of PAGE_BYTES), *ret_data valid until
     * the next call, NULL for zeros; 0 after the last; negative and err when it cannot be read or
     * is not what was stored.
     */
    int (*next)(struct page_source *s, uint64_t *ret_offset, const void **ret_data,
                size_t *ret_size, struct error *err);
    struct page_source *(*free)(struct page_source *s); /* always NULL */
};

struct page_source {
    const struct page_source_ops *ops;
};
