#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "store/snapshot-internal.h"

/*
 * What can be saved of a damaged store. A snapshot is proven by its own digests and those of its
 * chain. One whose parent is damaged may still have all pages that it needs: flattening reads no
 * others. Nothing is guessed.
 */
struct patient {
    char id[MANIFEST_ID_SIZE];
    bool lost;
    struct error why;
};

static int list_all(struct snapshot_store *s, struct patient **ret, size_t *ret_count)
{
    struct patient *all;
    size_t count;

    (void)pthread_mutex_lock(&s->lock);
    count = s->n_entries;
    all = calloc(count + 1, sizeof(*all));
    for (size_t i = 0; all && i < count; i++)
        memcpy(all[i].id, s->entries[i]->id, MANIFEST_ID_SIZE);
    (void)pthread_mutex_unlock(&s->lock);
    if (!all)
        return -ENOMEM;
    *ret = all;
    *ret_count = count;
    return 0;
}

static bool is_removed(struct snapshot_store *s, const char *id)
{
    const struct entry *e;
    bool removed;

    (void)pthread_mutex_lock(&s->lock);
    e = store_find(s, id);
    removed = !e || e->removed;
    (void)pthread_mutex_unlock(&s->lock);
    return removed;
}

int snapshot_repair(struct snapshot_store *s, bool drop, snapshot_repair_fn fn, void *userdata,
                    struct error *err)
{
    struct patient *all;
    size_t count;
    int lost = 0, r = list_all(s, &all, &count);

    if (r < 0)
        return error_set(err, -r, "repair snapshots: %s", errno_text(-r));
    for (size_t i = 0; i < count; i++) {
        struct patient *p = &all[i];

        if (is_removed(s, p->id) || snapshot_verify(s, p->id, NULL, NULL, &p->why) >= 0 ||
            p->why.code != ERR_SNAPSHOT_INVALID)
            continue;
        if (drop && snapshot_flatten(s, p->id, NULL, NULL, NULL) >= 0 &&
            snapshot_verify(s, p->id, NULL, NULL, NULL) >= 0)
            fn(p->id, SNAPSHOT_RESCUED, p->why.text, userdata);
        else
            p->lost = true;
    }
    for (size_t i = 0; i < count; i++) {
        if (!all[i].lost)
            continue;
        lost++;
        if (drop && snapshot_remove(s, all[i].id, err) < 0) {
            r = -EIO;
            break;
        }
        fn(all[i].id, SNAPSHOT_LOST, all[i].why.text, userdata);
    }
    free(all);
    return r < 0 ? r : lost;
}
