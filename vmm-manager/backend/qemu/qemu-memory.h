#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend/qemu/qemu-process.h"
#include "base/error.h"
#include "base/page-source.h"

/*
 * Memory of a guest that does not run, seen from outside its VMM.
 *
 * A clone maps its base file privately, so a page that it ever wrote is an anonymous page of its
 * own, and the kernel tells these from the file's in /proc/PID/pagemap: nothing has to be tracked
 * while the guest runs, and it costs nothing until somebody asks. Which pages have changed is known
 * exactly, from the base on, also to a daemon that was started a moment ago.
 *
 * The process must be ours or the caller privileged (CAP_SYS_PTRACE). All calls block.
 */
struct memory {
    pid_t pid;
    uint64_t address, size; /* in the process */
    bool from_zeros;        /* no base file: what differs from zeros has changed */
    bool tracked;           /* the page map tells what changed; else all may have */
};

/* Asked between two batches: 0, or a negative errno with err filled, which ends the work. */
struct memory_check {
    int (*fn)(void *userdata, struct error *err);
    void *userdata;
};

/* Where the process has its guest's memory. -EOPNOTSUPP when that cannot be told for certain. */
int memory_find(pid_t pid, const struct ram *ram, struct memory *ret, struct error *err);

/*
 * Writes every page that may differ from the base to its place in the file, which becomes as long
 * as the memory, the rest holes. *ret_bytes (may be NULL): how much that was.
 */
int memory_save_changed(const struct memory *m, int fd, const struct memory_check *check,
                        uint64_t *ret_bytes, struct error *err);

/* Puts all pages of the source in their place. */
int memory_install(const struct memory *m, struct page_source *pages,
                   const struct memory_check *check, struct error *err);
