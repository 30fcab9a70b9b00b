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

int snapshot_mend(struct snapshot_store *s, const char *id, snapshot_progress_fn progress,
                  void *userdata, struct error *why, struct error *err)
{
    const struct rewrite_options options = {
        .kind = REWRITE_FLATTEN,
        .over_quota = true,
        .progress = progress,
        .userdata = userdata,
    };
    struct error wrong = {0}, left = {0};
    int r = snapshot_verify(s, id, progress, userdata, &wrong);

    if (r < 0 && wrong.code == ERR_SNAPSHOT_INVALID) {
        r = snapshot_rewrite(s, id, &options, &left);
        if (r >= 0)
            r = snapshot_verify(s, id, progress, userdata, &left);
        if (r >= 0) {
            if (why)
                error_copy(why, &wrong);
            return 1;
        }
    }
    if (r < 0 && left.errnum && left.code != ERR_SNAPSHOT_INVALID)
        error_copy(err, &left); /* another time */
    else if (r < 0)
        error_copy(err, &wrong);
    return MIN(r, 0);
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
        struct error left = {0};

        if (is_removed(s, p->id))
            continue;
        if (drop && snapshot_mend(s, p->id, NULL, NULL, &p->why, &left) > 0)
            fn(p->id, SNAPSHOT_RESCUED, p->why.text, userdata);
        else if (!drop)
            (void)snapshot_verify(s, p->id, NULL, NULL, &left);
        p->lost = left.code == ERR_SNAPSHOT_INVALID && left.errnum != 0;
        if (p->lost)
            error_copy(&p->why, &left);
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
