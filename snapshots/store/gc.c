#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"
#include "store/step.h"
#include "store/store-internal.h"

/*
 * A snapshot that was removed while something lay over it or had it open stays as a directory with
 * a mark in it, which outlives a crash. It goes when the last of them goes, and takes its own
 * parents along where they were waiting for it.
 */
static int move_away(struct snapshot_store *s, const char *id, char **ret)
{
    _cleanup_free_ char *from = store_dir(s, "", id);
    _cleanup_free_ char *to = store_dir(s, STORE_GONE_PREFIX, id);
    int r;

    if (!from || !to)
        return -ENOMEM;
    r = store_step("rename to remove");
    if (r < 0)
        return r;
    if (rename(from, to) < 0)
        return -errno;
    *ret = TAKE_PTR(to);
    return 0;
}

static bool is_garbage(struct snapshot_store *s, const struct entry *e)
{
    return e->removed && e->pins == 0 && store_children(s, e->id) == 0;
}

static struct entry *find_garbage(struct snapshot_store *s, size_t *from)
{
    for (; *from < s->n_entries; (*from)++)
        if (is_garbage(s, s->entries[*from]))
            return s->entries[*from];
    return NULL;
}

uint64_t store_sweep(struct snapshot_store *s)
{
    uint64_t freed = 0;
    size_t at = 0;

    while (!s->read_only) {
        struct entry *e = find_garbage(s, &at);
        _cleanup_free_ char *gone = NULL;
        int r;

        if (!e)
            break;
        r = move_away(s, e->id, &gone);
        if (r < 0 && r != -ENOENT) {
            log_warning("Remove snapshot '%s': %s, ignoring", e->id, errno_text(-r));
            at++;
            continue;
        }
        freed += e->info.stored_bytes;
        store_forget(s, e);
        /* It is gone from here on; what stays of its files goes at the next open. */
        (void)pthread_mutex_unlock(&s->lock);
        if (gone && store_step("remove") >= 0)
            (void)dir_remove(gone, NULL);
        (void)pthread_mutex_lock(&s->lock);
        at = 0; /* its parents may have waited for it */
    }
    return freed;
}

static int mark_removed(struct snapshot_store *s, const char *id)
{
    _cleanup_free_ char *dir = store_dir(s, "", id);
    _cleanup_free_ char *path = dir ? string_printf("%s/" STORE_REMOVED, dir) : NULL;
    _cleanup_close_ int fd = -EBADF;
    int r;

    if (!path)
        return -ENOMEM;
    r = store_step("mark removed");
    if (r < 0)
        return r;
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    r = store_step("sync mark");
    if (r >= 0)
        r = store_sync_dir(dir);
    if (r < 0)
        (void)unlink(path);
    return r;
}

int snapshot_remove(struct snapshot_store *s, const char *id, struct error *err)
{
    struct entry *e;
    int r = 0;

    (void)pthread_mutex_lock(&s->lock);
    e = store_find(s, id);
    if (!e || e->removed) {
        r = error_set_code(err, ERR_SNAPSHOT_NOT_FOUND, "no snapshot '%s'", id);
    } else if (e->pins > 0 || store_children(s, id) > 0) {
        r = mark_removed(s, id);
        if (r < 0)
            (void)error_set(err, -r, "remove snapshot '%s': %s", id, errno_text(-r));
        else
            e->removed = true;
    } else {
        e->removed = true;
        (void)store_sweep(s);
        e = store_find(s, id);
        if (e) {
            e->removed = false;
            r = error_set(err, EIO, "remove snapshot '%s': its directory stays", id);
        }
    }
    (void)pthread_mutex_unlock(&s->lock);
    return r;
}

int snapshot_collect(struct snapshot_store *s, uint64_t *ret_bytes, struct error *err)
{
    uint64_t freed;

    (void)err;
    (void)pthread_mutex_lock(&s->lock);
    freed = store_sweep(s);
    (void)pthread_mutex_unlock(&s->lock);
    if (ret_bytes)
        *ret_bytes = freed;
    return 0;
}

/* ---- quota ---- */

void snapshot_store_set_quota(struct snapshot_store *s, const struct snapshot_quota *quota)
{
    (void)pthread_mutex_lock(&s->lock);
    s->quota = *quota;
    (void)pthread_mutex_unlock(&s->lock);
}

uint64_t store_used(const struct snapshot_store *s)
{
    uint64_t used = 0;

    for (size_t i = 0; i < s->n_entries; i++)
        used += s->entries[i]->info.stored_bytes;
    return used;
}

static struct entry *oldest_evictable(struct snapshot_store *s)
{
    struct entry *oldest = NULL;

    for (size_t i = 0; i < s->n_entries; i++) {
        struct entry *e = s->entries[i];

        if (e->removed || e->broken || e->pins > 0 || store_children(s, e->id) > 0)
            continue;
        if (oldest && oldest->info.created_wall_usec <= e->info.created_wall_usec)
            continue;
        if (s->quota.may && s->quota.may(&e->info, s->quota.userdata))
            oldest = e;
    }
    return oldest;
}

/* One that may go does; -EDQUOT: there is none. */
static int evict(struct snapshot_store *s, struct error *err)
{
    struct entry *victim = oldest_evictable(s);
    struct snapshot_info info;

    if (!victim)
        return -EDQUOT;
    info = victim->info;
    victim->removed = true;
    (void)store_sweep(s);
    victim = store_find(s, info.id);
    if (victim) {
        victim->removed = false;
        return error_set(err, EIO, "snapshot '%s' could not be removed to make room", info.id);
    }
    if (s->quota.evicted)
        s->quota.evicted(&info, s->quota.userdata);
    return 0;
}

int store_reserve(struct snapshot_store *s, uint64_t bytes, struct error *err)
{
    int r = 0;

    (void)pthread_mutex_lock(&s->lock);
    while (s->quota.max_bytes > 0 && r >= 0) {
        uint64_t used = store_used(s), max = s->quota.max_bytes;

        if (bytes <= max && used <= max - bytes)
            break;
        r = bytes <= max ? evict(s, err) : -EDQUOT;
        if (r == -EDQUOT)
            (void)error_set_code(
                err, ERR_QUOTA_EXCEEDED,
                "snapshots have %llu bytes, %llu more would pass the quota of %llu",
                (unsigned long long)used, (unsigned long long)bytes, (unsigned long long)max);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return r;
}
