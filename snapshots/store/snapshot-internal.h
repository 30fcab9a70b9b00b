#pragma once

#include "store/store-internal.h"
#include "store/stored.h"

/* One snapshot of a chain, opened. */
struct layer {
    char *dir; /* owned */
    struct snapshot_manifest manifest;
    struct stored memory;
    bool pinned;
};

struct snapshot {
    struct snapshot_store *store; /* ref */
    struct layer *layers;         /* owned; [0] is the snapshot itself, the last lies on the base */
    size_t n_layers;
    struct stored disk;
    struct template_base base;
};

/*
 * Who holds each page: 0 the base, else 1 + 2 * layer, one more when the page is zero there. Owned
 * by the caller; *ret_pages of them.
 */
int snapshot_owners(const struct snapshot *snap, uint8_t **ret, uint64_t *ret_pages);
#define OWNER_LAYER(owner) (((owner)-1u) / 2u)
#define OWNER_IS_ZERO(owner) ((owner) != 0 && (owner) % 2u == 0)
#define OWNER_IS_DATA(owner) ((owner) % 2u == 1)

/* snapshot_open() for the store's own work, which is no use of it. */
int snapshot_open_quietly(struct snapshot_store *s, const char *id, struct snapshot **ret,
                          struct error *err);

/* Flatten or compress, in the background when `care` is given. */
enum rewrite_kind {
    REWRITE_FLATTEN,
    REWRITE_COMPRESS,
};
struct rewrite_options {
    enum rewrite_kind kind;
    const struct snapshot_care *care; /* weak, may be NULL */
    bool over_quota;                  /* may pass it: nothing is lost for want of room */
    snapshot_progress_fn progress;
    void *userdata;
};
int snapshot_rewrite(struct snapshot_store *s, const char *id,
                     const struct rewrite_options *options, struct error *err);
