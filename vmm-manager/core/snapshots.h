#pragma once

#include "core/core-private.h"
#include "store/snapshot.h"

/*
 * The store of snapshots as the core uses it: everything in it blocks, so each call is a worker's
 * job whose `done` comes once from the loop, unless the core is being freed.
 */

typedef void (*snapshots_prepared_fn)(struct snapshot_writer *writer, /* owned by the callee */
                                      const struct backend_caps *caps, const struct error *err,
                                      void *userdata);
int snapshots_prepare(struct core *core, struct backend_slot *slot, snapshots_prepared_fn done,
                      void *userdata);

/* Takes writer and info; `done` may take what is in its info by clearing it. */
typedef void (*snapshots_sealed_fn)(struct snapshot_info *info, const struct error *err,
                                    void *userdata);
int snapshots_seal(struct core *core, struct snapshot_writer **writer, struct snapshot_info *info,
                   snapshots_sealed_fn done, void *userdata);
/* Frees a writer that was not sealed, and its files. NULL is fine. */
void snapshots_writer_drop(struct core *core, struct snapshot_writer *writer);

/* What a machine is restored from: checked, and fit for this host. Owned by the callee of done. */
struct opened_snapshot {
    struct snapshot *snapshot;
    struct page_source *pages;
    struct backend_caps caps;
};
typedef void (*snapshots_opened_fn)(struct opened_snapshot *opened, const struct error *err,
                                    void *userdata);
int snapshots_open(struct core *core, const char *id, snapshots_opened_fn done, void *userdata);
/* Its disk as a new file. The snapshot stays open until `done`. */
int snapshots_copy_disk(struct core *core, const struct snapshot *snapshot, const char *to,
                        backend_done_fn done, void *userdata);
/* Closes what it holds, on a worker. Safe on a zeroed one. */
void snapshots_close(struct core *core, struct opened_snapshot *opened);

/* -ENOENT through err is not hidden. */
int snapshots_remove(struct core *core, const char *id, backend_done_fn done, void *userdata);
/* The same with nobody waiting: failure is logged. */
void snapshots_drop(struct core *core, const char *id);
/* A sandbox sleeps on it, or has its memory over it. */
bool snapshots_in_use(const struct core *core, const char *id);
/*
 * Drops a snapshot that only sandboxes kept (of a sleep, of a fork) when none needs it any more: to
 * resume from, or to lie over. "" is fine.
 */
void snapshots_release(struct core *core, const char *id);
