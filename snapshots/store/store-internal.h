#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/map.h"
#include "store/snapshot-manifest.h"
#include "store/snapshot.h"

/* What the files of the store share; no part of its contract. */
#define STORE_NEW_PREFIX ".new-"   /* not yet sealed */
#define STORE_GONE_PREFIX ".gone-" /* being removed */
#define STORE_REMOVED "removed"    /* marks a snapshot that is only kept for those over it */
#define STORE_SNAPSHOTS_MAX 16384u

struct entry {
    char id[MANIFEST_ID_SIZE];
    char parent[MANIFEST_ID_SIZE]; /* snapshot it lies over; "" when a template */
    char template_id[MANIFEST_ID_SIZE];
    struct snapshot_info info; /* all but meta, which is read from its file when asked for */
    unsigned pins;             /* opened, or being made into something */
    uint64_t rest_until_usec;  /* monotonic: snapshot_tend() leaves it alone after a failure */
    bool removed;
    bool broken; /* its manifest cannot be read; kept, never listed */
};

struct snapshot_store {
    char *root, *templates; /* owned */
    bool read_only;
    pthread_mutex_t lock; /* for all below */
    struct entry **entries;
    size_t n_entries, room;
    struct snapshot_quota quota;
};

/* With the lock held. */
struct entry *store_find(struct snapshot_store *s, const char *id);
int store_insert(struct snapshot_store *s, const struct snapshot_manifest *m);
void store_forget(struct snapshot_store *s, struct entry *e);
unsigned store_children(struct snapshot_store *s, const char *id);

/* Takes the lock. A pinned snapshot's files stay. -ENOENT: there is none (or it is removed). */
int store_pin(struct snapshot_store *s, const char *id, bool removed_too);
/* Drops the pin, and the files where it was the last thing that held them. */
void store_unpin(struct snapshot_store *s, const char *id);
char *store_dir(const struct snapshot_store *s, const char *prefix, const char *id);

/* Checks the template's manifest and its memory: by digest once, then by what stat() says. */
struct template_base {
    char *memory;                /* owned: path */
    char seal[DIGEST_TEXT_SIZE]; /* digest of its manifest's bytes */
    uint64_t memory_bytes;
};
void template_base_done(struct template_base *b);
/* `digest`: also the memory; else its size only. */
int template_base_open(const char *templates, const char *id, bool digest,
                       struct template_base *ret, struct error *err);

/*
 * gc.c, with the lock held: removes what is marked so and held by nobody. Returns bytes freed. It
 * lets go of the lock while files are removed: entries that the caller knew may be gone.
 */
uint64_t store_sweep(struct snapshot_store *s);
/* With the lock held: what all files have. */
uint64_t store_used(const struct snapshot_store *s);
/* Room for `bytes` more under the quota, by eviction where that may be. Takes the lock. */
int store_reserve(struct snapshot_store *s, uint64_t bytes, struct error *err);

/* Small files of a snapshot that is being made: written, synced. */
int store_write_file(const char *dir, const char *name, const void *data, size_t size,
                     struct error *err);
int store_write_map(const char *dir, const char *name, const struct map *map,
                    struct manifest_file *ret, struct error *err);
int store_sync_dir(const char *dir);
uint64_t store_dir_bytes(const char *dir);
uint64_t store_dir_own_bytes(const char *dir); /* without links to others' files */
