#pragma once

#include <stdbool.h>

#include "pager/handover.h"

/*
 * The memory of a running VM as its userfaultfd shows it: which pages are there, and putting pages
 * in. For one thread.
 */
enum page_state {
    PAGE_ABSENT,  /* never there */
    PAGE_THERE,   /* installed: it belongs to the guest */
    PAGE_REMOVED, /* given back by the VMM: zero from now on, never the snapshot's again */
};

struct guest_stats {
    uint64_t faults;     /* asked for by the guest */
    uint64_t pages;      /* installed, zeros too */
    uint64_t zeros;      /* of these */
    uint64_t installs;   /* calls of the kernel for that */
    uint64_t removed;    /* pages given back */
    uint64_t retries;    /* because something was being given back */
    uint64_t prefetched; /* pages of the working set, part of `pages` */
};

struct guest {
    int uffd; /* owned */
    struct handover at;
    uint8_t *states; /* owned; enum page_state for each page of the snapshot's memory */
    uint64_t n_pages;
    struct guest_stats stats;
};

int guest_init(struct guest *g, const struct handover *at, int uffd_consume, uint64_t n_pages);
void guest_done(struct guest *g);

/* A fault's address to its page; -ENOENT when no region has it. */
int guest_page(const struct guest *g, uint64_t address, uint64_t *ret_page);
/* A range that the VMM gave back. */
void guest_remove(struct guest *g, uint64_t start, uint64_t end);
/*
 * Installs pages that are absent (with `data`, or zeros when NULL) and, unless `quietly`, wakes who
 * waits for them; others are left as they are. -EAGAIN: events must be read first, then again;
 * -ESRCH: the VMM is gone.
 */
int guest_install(struct guest *g, uint64_t page, const void *data, size_t count, bool quietly);
/* A zero page where one was removed. */
int guest_install_removed(struct guest *g, uint64_t page);
/* Who waits for a page that is there looks again. */
void guest_wake(struct guest *g, uint64_t page);
