#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/*
 * What a VMM says when it hands its memory over: the userfaultfd comes beside, as a descriptor, and
 * this text tells where the memory lies in its address space:
 *
 *     [{"base_host_virt_addr": N, "size": N, "offset": N, "page_size": N, …}, …]
 *
 * `offset` is that of the region in the memory of the snapshot. Keys that are not known are
 * skipped.
 */
#define HANDOVER_BYTES_MAX (64u * 1024u)
#define HANDOVER_REGIONS_MAX 64u
#define HANDOVER_PAGE 4096u

struct region {
    uint64_t address; /* in the VMM */
    uint64_t size;    /* bytes, whole pages */
    uint64_t offset;  /* in the snapshot's memory, whole pages */
};

struct handover {
    struct region regions[HANDOVER_REGIONS_MAX];
    size_t n_regions;
};

/* Strict about what it uses: no overlaps, nothing beyond `memory_bytes`, pages of 4 KiB only. */
int handover_parse(const char *text, size_t size, uint64_t memory_bytes, struct handover *ret,
                   struct error *err);
/* The region of an address, or of an offset; NULL when there is none. */
const struct region *handover_at_address(const struct handover *h, uint64_t address);
const struct region *handover_at_offset(const struct handover *h, uint64_t offset);

/*
 * Takes one from a connected socket: text and descriptor, which goes to the caller. `timeout_usec`
 * for all of it. Blocks.
 */
int handover_receive(int socket, uint64_t memory_bytes, uint64_t timeout_usec, struct handover *ret,
                     int *ret_uffd, struct error *err);
