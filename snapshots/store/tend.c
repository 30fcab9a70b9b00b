#include <string.h>

#include "base/clock.h"
#include "store/store-internal.h"

/* How many snapshots it lies over; with the lock held. */
static unsigned depth_of(struct snapshot_store *s, const struct entry *e)
{
    unsigned depth = 0;

    while (e && e->parent[0] && depth < SNAPSHOT_CHAIN_MAX) {
        e = store_find(s, e->parent);
        depth++;
    }
    return depth;
}

static bool wants_flat(struct snapshot_store *s, const struct entry *e,
                       const struct snapshot_care *care)
{
    return care->chain_max > 0 && depth_of(s, e) >= care->chain_max;
}

static bool wants_packing(const struct entry *e, const struct snapshot_care *care)
{
    uint64_t now = clock_wall_usec();

    return care->compress_after_usec > 0 && !e->info.compressed && e->info.kind != SNAPSHOT_FORK &&
           now > e->info.created_wall_usec &&
           now - e->info.created_wall_usec >= care->compress_after_usec;
}

int snapshot_tend(struct snapshot_store *s, const struct snapshot_care *care, struct error *err)
{
    char id[MANIFEST_ID_SIZE] = "";
    bool flat = false;
    int r;

    (void)pthread_mutex_lock(&s->lock);
    (void)store_sweep(s);
    for (size_t i = 0; i < s->n_entries && !id[0]; i++) {
        const struct entry *e = s->entries[i];

        if (e->removed || e->broken || e->pins > 0)
            continue;
        flat = wants_flat(s, e, care);
        if (flat || wants_packing(e, care))
            memcpy(id, e->id, sizeof(id));
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (!id[0])
        return 0;
    r = flat ? snapshot_flatten(s, id, NULL, NULL, err) : snapshot_compress(s, id, NULL, NULL, err);
    return r < 0 ? r : 1;
}
