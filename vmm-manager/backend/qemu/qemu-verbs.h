#pragma once

#include <stdatomic.h>

#include "backend/qemu/qemu-driver.h"

/* What the backend does to a VM, on a worker thread. All of them block, up to their deadline. */

/* Copies of all that a verb needs. */
struct verb_request {
    char *id, *dir;                 /* owned */
    char *kernel, *initramfs;       /* owned; NULL in a restore */
    char *image, *disk;             /* owned */
    char *memory_file, *state_file; /* owned; NULL where there is none */
    struct page_source *pages;      /* weak; lie over the memory file; NULL: none */
    uint32_t cpus, memory_mib;
    uint64_t deadline_usec;
    _Atomic bool cancel;      /* set by the loop: give up between two steps */
    _Atomic bool reads_pages; /* set by the worker while it needs `pages` */
};
void verb_request_done(struct verb_request *q);

/* ---- steps that verbs share ---- */

void verb_domain_cleanup(virDomainPtr *dom);
#define _cleanup_domain_ _cleanup_(verb_domain_cleanup)

/* A step may begin: not cancelled, and still in time. */
int verb_check(const struct verb_request *q, struct error *err);
/* libvirt's handle of a VM that runs; the caller frees it. */
int verb_find(struct driver *d, const char *id, virDomainPtr *ret, struct error *err);

/* ---- verbs ---- */

/* Paths of a VM in its directory; -ENAMETOOLONG when a Unix socket cannot have such a name. */
int verb_paths(const char *dir, struct backend_vm *ret, struct error *err);

/*
 * Boots, or restores when there is a state file. A booted VM runs; a restored one is complete, its
 * console can be connected, and it waits for verb_resume(). On success *ret_pidfd is the caller's;
 * on failure no process is left.
 */
int verb_start(struct driver *d, struct verb_request *q, struct backend_vm *ret, int *ret_pidfd,
               struct error *err);
/* Pauses it for good and writes its device state. The caller ends the process. */
int verb_save(struct driver *d, const struct verb_request *q, struct error *err);
/*
 * Pauses it and writes device state and changed memory. After a failure it runs, unless that
 * failed too, and there are no files.
 */
int verb_snapshot(struct driver *d, const struct verb_request *q, struct error *err);
int verb_pause(struct driver *d, const char *id, struct error *err);
int verb_resume(struct driver *d, const char *id, struct error *err);
/* Finds the process of an earlier daemon's VM. */
int verb_adopt(struct driver *d, const struct verb_request *q, struct backend_vm *ret,
               int *ret_pidfd, struct error *err);
