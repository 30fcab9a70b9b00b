#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/page-source.h"
#include "store/manifest.h"

/*
 * The store of snapshots of running sandboxes: ROOT/ID with `manifest.json`, `state`, `memory` and
 * `disk`. It is written beside (ROOT/.new-ID), the manifest last, synced, then renamed: a snapshot
 * is whole and verified, or absent. Its memory holds only pages that differ from its parent's: a
 * template (a whole memory file, the bottom of every chain) or another snapshot. Everything here
 * blocks and is called on workers; a store may be used by several threads at once.
 */
struct snapshot_store;

#define SNAPSHOT_STATE "state"
#define SNAPSHOT_MEMORY "memory"
#define SNAPSHOT_DISK "disk"
#define SNAPSHOT_WORKING_SET "working-set" /* a hint of hearth-pager's, not always there */
#define SNAPSHOT_CHAIN_MAX 32u
#define SNAPSHOT_META_MAX (1024u * 1024u)

enum snapshot_kind {
    SNAPSHOT_CHECKPOINT, /* named, of one sandbox; kept until removed */
    SNAPSHOT_HIBERNATED, /* what a paused sandbox resumes from; goes with it */
    SNAPSHOT_FORK,       /* goes when its last child no longer needs it */
};

/* What a snapshot lies over. Exactly one of the two is not "". */
struct snapshot_parent {
    char template_id[MANIFEST_ID_SIZE];
    char snapshot_id[MANIFEST_ID_SIZE];
};

struct snapshot_info {
    char id[MANIFEST_ID_SIZE];
    enum snapshot_kind kind;
    char name[65];    /* "" when it has none */
    char sandbox[65]; /* id of the sandbox it was taken of */
    struct snapshot_parent parent;
    struct origin origin;
    uint64_t created_wall_usec;
    char host_kernel[65];  /* for people; filled in at the seal */
    uint64_t memory_bytes; /* of the machine */
    uint64_t stored_bytes; /* on disk, all files */
    /* Filled in by the seal only: pages of its own, and what its files took that are not links. */
    uint64_t changed_bytes, written_bytes;
    bool compressed;
    uint64_t opened_wall_usec; /* when somebody last opened it or one over it; 0: not since the
                                  store was opened */
    json_t *meta;              /* owned; of the core, opaque here; NULL: none */
};
void snapshot_info_done(struct snapshot_info *info);

/* `templates` is where parents of the other kind lie; both absolute. Removes what a crash left. */
int snapshot_store_open(const char *root, const char *templates, struct snapshot_store **ret,
                        struct error *err);
/*
 * For another process beside the one that owns it (hearth-pager): opens snapshots and nothing else.
 * Their disks and the template's memory are not verified by it: its starter has done that.
 */
int snapshot_store_open_read_only(const char *root, const char *templates,
                                  struct snapshot_store **ret, struct error *err);
struct snapshot_store *snapshot_store_close(struct snapshot_store *s); /* always NULL */

/* ---- write ---- */
struct snapshot_writer;
int snapshot_writer_new(struct snapshot_store *s, struct snapshot_writer **ret, struct error *err);
const char *snapshot_writer_id(const struct snapshot_writer *w);
/* Where the caller puts the three files; `memory` as backend.h describes it. */
const char *snapshot_writer_dir(const struct snapshot_writer *w);
/*
 * Digests, turns zero pages into holes, syncs, renames. `info` says kind, name, sandbox, parent,
 * origin, meta; id, time and sizes are filled in. After it the writer is only good for freeing.
 */
int snapshot_writer_seal(struct snapshot_writer *w, struct snapshot_info *info, struct error *err);
/* Removes what was not sealed. Always NULL. */
struct snapshot_writer *snapshot_writer_free(struct snapshot_writer *w);

/* ---- read ---- */
struct snapshot;
/*
 * Reads and checks the manifests of the whole chain, and state and disk by digest; the template's
 * memory by digest once, later by what stat() says of it. ERR_SNAPSHOT_INVALID names what is wrong.
 * While it is open no file of the chain is removed.
 */
int snapshot_open(struct snapshot_store *s, const char *id, struct snapshot **ret,
                  struct error *err);
struct snapshot *snapshot_close(struct snapshot *snap); /* always NULL */
const struct snapshot_info *snapshot_get_info(const struct snapshot *snap);
const char *snapshot_dir(const struct snapshot *snap);
const char *snapshot_base_memory(const struct snapshot *snap); /* the template's memory file */
/*
 * 0, or ERR_SNAPSHOT_INVALID and which of backend, its version, accelerator or CPU model is not
 * that of `host`; other fields of `host` are not looked at.
 */
int snapshot_fits(const struct snapshot *snap, const struct origin *host, struct error *err);
/* Its disk as a new sparse file, whether it is compressed or not. Blocks. */
int snapshot_copy_disk(const struct snapshot *snap, const char *to, struct error *err);
/*
 * All pages of the chain over the base, newest first wins, verified as they are read. The snapshot
 * stays open while the source is used; each source is walked on its own.
 */
int snapshot_pages(struct snapshot *snap, struct page_source **ret, struct error *err);

/* ---- keep ---- */
/* Somebody is about to use it, as by opening it. */
void snapshot_note_use(struct snapshot_store *s, const char *id);
typedef void (*snapshot_each_fn)(const struct snapshot_info *info, void *userdata);
int snapshot_each(struct snapshot_store *s, snapshot_each_fn fn, void *userdata, struct error *err);
typedef void (*snapshot_progress_fn)(uint64_t done_bytes, uint64_t total_bytes, void *userdata);
/*
 * Every byte of it and of its chain against the digests. `progress` may be called by several
 * threads at once.
 */
int snapshot_verify(struct snapshot_store *s, const char *id, snapshot_progress_fn progress,
                    void *userdata, struct error *err);
/*
 * Mends one that snapshot_verify() finds damaged, where that can be: one that does not need the
 * damaged part of its parents is put directly over its template. 0: it was whole; 1: it is whole
 * now, and `why` (may be NULL) says what was wrong. ERR_SNAPSHOT_INVALID: what it needs is lost,
 * and nothing was changed; other errors say nothing about it.
 */
int snapshot_mend(struct snapshot_store *s, const char *id, snapshot_progress_fn progress,
                  void *userdata, struct error *why, struct error *err);
/*
 * Looks at every snapshot as snapshot_verify() does and calls `fn` for each that is damaged. With
 * `drop`, one that does not need the damaged part of its parents is put directly over its template,
 * and what cannot be proven is removed; without, nothing changes and SNAPSHOT_RESCUED is never
 * said. Returns how many are (or would be) lost. What cannot be read for another reason stays.
 */
enum snapshot_fate {
    SNAPSHOT_RESCUED,
    SNAPSHOT_LOST,
};
typedef void (*snapshot_repair_fn)(const char *id, enum snapshot_fate fate, const char *reason,
                                   void *userdata);
int snapshot_repair(struct snapshot_store *s, bool drop, snapshot_repair_fn fn, void *userdata,
                    struct error *err);
/*
 * Gone from the list at once; its files when no snapshot lies over it and nobody has it open. Not
 * finding it is ERR_SNAPSHOT_NOT_FOUND.
 */
int snapshot_remove(struct snapshot_store *s, const char *id, struct error *err);
/* How many memory files lie over the template's, this one included; 0: no such snapshot. */
unsigned snapshot_depth(struct snapshot_store *s, const char *id);
/*
 * Makes it lie directly over the template; the same pages in one file. Those over it do not notice.
 * ERR_SNAPSHOT_IN_USE when somebody has it, or one over it, open: then another time.
 */
int snapshot_flatten(struct snapshot_store *s, const char *id, snapshot_progress_fn progress,
                     void *userdata, struct error *err);
/*
 * zstd in frames of one chunk; reading it stays possible at any offset, its disk by
 * snapshot_copy_disk(). ERR_SNAPSHOT_IN_USE as above.
 */
int snapshot_compress(struct snapshot_store *s, const char *id, snapshot_progress_fn progress,
                      void *userdata, struct error *err);
/* Removes what nobody refers to; returns bytes freed through ret_bytes (may be NULL). */
int snapshot_collect(struct snapshot_store *s, uint64_t *ret_bytes, struct error *err);
/*
 * One piece of work for the background, on a worker: drops what nobody needs, then flattens one
 * that lies over `chain_max` others or more, or compresses one that nobody has opened for that long
 * and that is not for a fork. 1 when something was made anew (then there may be more), 0 when there
 * is nothing to do. An error is of that one snapshot, ERR_SNAPSHOT_IN_USE among them, which is then
 * left alone for `retry_usec`; ERR_CANCELLED when *stop became true.
 */
struct snapshot_care {
    unsigned chain_max;           /* 0: never flatten */
    uint64_t compress_after_usec; /* 0: never compress */
    uint64_t min_free_bytes;      /* of the file system: what may not be filled up */
    uint64_t retry_usec;
    const _Atomic bool *stop; /* weak; NULL: never */
};
int snapshot_tend(struct snapshot_store *s, const struct snapshot_care *care, struct error *err);
/* A template on which a snapshot lies must stay. */
bool snapshot_template_in_use(struct snapshot_store *s, const char *template_id);
uint64_t snapshot_store_bytes(struct snapshot_store *s);
/*
 * A quota for all files of the store, 0 for none. A seal that would pass it first evicts, oldest
 * first, what `may` allows, nobody has open and nothing lies over; else it fails with
 * ERR_QUOTA_EXCEEDED, which names what is used and the limit, and leaves nothing. Flattening, which
 * may take more room than before, evicts nothing. `may` is called with the store locked, by any
 * thread: it must not call the store. NULL: nothing may be evicted. `evicted` (may be NULL) is
 * called likewise when one has gone.
 */
struct snapshot_quota {
    uint64_t max_bytes;
    bool (*may)(const struct snapshot_info *info, void *userdata);
    void (*evicted)(const struct snapshot_info *info, void *userdata);
    void *userdata;
};
void snapshot_store_set_quota(struct snapshot_store *s, const struct snapshot_quota *quota);
