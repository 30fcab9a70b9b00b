#include <string.h>

#include "base/clock.h"
#include "store/snapshot-internal.h"

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

static bool wants_packing(const struct entry *e, const struct snapshot_care *care)
{
    uint64_t now = clock_wall_usec(),
             used = MAX(e->info.created_wall_usec, e->info.opened_wall_usec);

    return care->compress_after_usec > 0 && !e->info.compressed && e->info.kind != SNAPSHOT_FORK &&
           now > used && now - used >= care->compress_after_usec;
}

/*
 * The lowest of those that lie too high: when it is flat, those over it may lie low enough, and no
 * page is written for each of them. Then one that is cold. With the lock held; false: none.
 */
static bool choose(struct snapshot_store *s, const struct snapshot_care *care, char *ret_id,
                   enum rewrite_kind *ret_kind)
{
    const struct entry *high = NULL, *cold = NULL, *chosen;
    unsigned lowest = 0;
    uint64_t now = clock_now_usec();

    for (size_t i = 0; i < s->n_entries; i++) {
        const struct entry *e = s->entries[i];
        unsigned depth;

        if (e->removed || e->broken || e->pins > 0 || now < e->rest_until_usec)
            continue;
        depth = depth_of(s, e);
        if (care->chain_max > 0 && depth >= care->chain_max && (!high || depth < lowest)) {
            high = e;
            lowest = depth;
        }
        if (!cold && wants_packing(e, care))
            cold = e;
    }
    chosen = high ? high : cold;
    if (!chosen)
        return false;
    *ret_kind = high ? REWRITE_FLATTEN : REWRITE_COMPRESS;
    memcpy(ret_id, chosen->id, MANIFEST_ID_SIZE);
    return true;
}

/* The others have their turn. */
static void let_rest(struct snapshot_store *s, const char *id, uint64_t usec)
{
    struct entry *e;

    (void)pthread_mutex_lock(&s->lock);
    e = store_find(s, id);
    if (e)
        e->rest_until_usec = clock_now_usec() + usec;
    (void)pthread_mutex_unlock(&s->lock);
}

int snapshot_tend(struct snapshot_store *s, const struct snapshot_care *care, struct error *err)
{
    struct rewrite_options options = {.care = care};
    char id[MANIFEST_ID_SIZE];
    bool chosen;
    int r;

    (void)pthread_mutex_lock(&s->lock);
    (void)store_sweep(s);
    chosen = choose(s, care, id, &options.kind);
    (void)pthread_mutex_unlock(&s->lock);
    if (!chosen)
        return 0;
    r = snapshot_rewrite(s, id, &options, err);
    if (r < 0 && care->retry_usec > 0)
        let_rest(s, id, care->retry_usec);
    return r < 0 ? r : 1;
}
