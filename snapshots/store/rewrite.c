#include <fcntl.h>
#include <linux/fs.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "store/output.h"
#include "store/snapshot-internal.h"
#include "store/step.h"

/*
 * Theory of operation. A snapshot is made anew in a directory beside, in which unchanged files are
 * links; then the two directories change places in one step, and the old one is removed. At any
 * crash one of them has the snapshot's name and is whole. A snapshot that somebody else has open is
 * left as it is: his paths stay good.
 */
struct rewrite {
    struct snapshot_store *store;      /* ref */
    struct snapshot *snap;             /* owned */
    struct snapshot_manifest manifest; /* weak meta: that of snap */
    char *dir;                         /* owned: the new one */
    struct rewrite_options options;
    uint64_t done, total;
};

static int begin(struct snapshot_store *s, const char *id, struct rewrite *w, struct error *err)
{
    int r = snapshot_open_quietly(s, id, &w->snap, err);

    if (r < 0)
        return r;
    w->store = s;
    w->manifest = w->snap->layers[0].manifest;
    w->dir = store_dir(s, STORE_NEW_PREFIX, id);
    r = w->dir ? store_step("mkdir") : -ENOMEM;
    if (r >= 0 && mkdir(w->dir, 0700) < 0)
        r = -errno;
    if (r < 0) {
        (void)error_set(err, -r, "make '%s' anew: %s", id, errno_text(-r));
        free(w->dir);
        w->dir = NULL;
    }
    return r;
}

static void end(struct rewrite *w)
{
    if (w->dir)
        (void)dir_remove(w->dir, NULL);
    free(w->dir);
    w->snap = snapshot_close(w->snap);
}

static int keep_file(struct rewrite *w, const char *name, bool optional, struct error *err)
{
    _cleanup_free_ char *from = string_printf("%s/%s", w->snap->layers[0].dir, name);
    _cleanup_free_ char *to = string_printf("%s/%s", w->dir, name);
    int r = from && to ? store_step("link") : -ENOMEM;

    if (r >= 0 && link(from, to) < 0 && !(optional && errno == ENOENT))
        r = -errno;
    return r < 0 ? error_set(err, -r, "link '%s/%s': %s", w->dir, name, errno_text(-r)) : 0;
}

/* So much more is done; negative: it shall stop. */
static int report(struct rewrite *w, uint64_t bytes, struct error *err)
{
    const struct snapshot_care *care = w->options.care;

    w->done = MIN(w->done + bytes, w->total);
    if (w->options.progress)
        w->options.progress(w->done, w->total, w->options.userdata);
    if (care && care->stop && atomic_load(care->stop))
        return error_set_code(err, ERR_CANCELLED, "stopped");
    return 0;
}

/* Nobody waits for it: it does not take the last of the room for it. */
static int check_room(struct rewrite *w, uint64_t bytes, struct error *err)
{
    const struct snapshot_care *care = w->options.care;
    struct statvfs fs;
    uint64_t available;

    if (!care)
        return 0;
    if (statvfs(w->dir, &fs) < 0)
        return error_set(err, errno, "look at '%s': %s", w->dir, errno_text(errno));
    available = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (available < bytes || available - bytes < care->min_free_bytes)
        return error_set(err, ENOSPC, "%llu bytes available, up to %llu needed, %llu to stay free",
                         (unsigned long long)available, (unsigned long long)bytes,
                         (unsigned long long)care->min_free_bytes);
    return 0;
}

/* With the lock held: it must not make the store larger than it may be. */
static int check_quota(struct rewrite *w, const struct entry *e, struct error *err)
{
    const struct snapshot_quota *quota = &w->store->quota;
    uint64_t old = e->info.stored_bytes, new = w->manifest.info.stored_bytes;
    uint64_t used = store_used(w->store);

    if (quota->max_bytes == 0 || w->options.over_quota || new <= old ||
        used + (new - old) <= quota->max_bytes)
        return 0;
    return error_set_code(err, ERR_QUOTA_EXCEEDED,
                          "snapshots have %llu bytes, %llu more would pass the quota of %llu",
                          (unsigned long long)used, (unsigned long long)(new - old),
                          (unsigned long long)quota->max_bytes);
}

/* Puts the new directory in the place of the old. */
static int swap(struct rewrite *w, struct error *err)
{
    struct snapshot_store *s = w->store;
    const char *id = w->manifest.info.id;
    _cleanup_free_ char *at = store_dir(s, "", id);
    struct entry *e;
    int r = at ? store_step("exchange") : -ENOMEM;

    (void)pthread_mutex_lock(&s->lock);
    e = store_find(s, id);
    if (r >= 0 && (!e || e->removed))
        r = error_set_code(err, ERR_SNAPSHOT_NOT_FOUND, "no snapshot '%s'", id);
    else if (r >= 0 && e->pins > 1)
        r = error_set_code(err, ERR_SNAPSHOT_IN_USE, "snapshot '%s' is in use", id);
    if (r >= 0)
        r = check_quota(w, e, err);
    if (r >= 0 && renameat2(AT_FDCWD, w->dir, AT_FDCWD, at, RENAME_EXCHANGE) < 0)
        r = -errno;
    if (r >= 0) {
        w->manifest.info.opened_wall_usec = e->info.opened_wall_usec;
        e->info = w->manifest.info;
        e->info.meta = NULL;
        memcpy(e->parent, w->manifest.info.parent.snapshot_id, MANIFEST_ID_SIZE);
        memcpy(e->template_id, w->manifest.info.parent.template_id, MANIFEST_ID_SIZE);
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (r < 0)
        return error_fill(err, r, "put '%s' in its place", id);
    /* The old one has the name of the new now and goes with the rewrite, after a crash at open. */
    r = store_step("sync root");
    if (r >= 0)
        r = store_sync_dir(s->root);
    return r < 0 ? error_set(err, -r, "sync '%s': %s", s->root, errno_text(-r)) : 0;
}

static int finish(struct rewrite *w, struct error *err)
{
    _cleanup_free_ char *text = NULL;
    size_t size;
    int r;

    w->manifest.info.stored_bytes = store_dir_bytes(w->dir);
    r = snapshot_manifest_print(&w->manifest, &text, &size, err);
    if (r >= 0)
        r = store_write_file(w->dir, SNAPSHOT_MANIFEST, text, size, err);
    if (r < 0)
        return r;
    r = store_step("sync directory");
    if (r >= 0)
        r = store_sync_dir(w->dir);
    if (r < 0)
        return error_set(err, -r, "sync '%s': %s", w->dir, errno_text(-r));
    w->manifest.info.stored_bytes = store_dir_bytes(w->dir);
    return swap(w, err);
}

/* A new data file; the source of its runs is the callback's business. */
typedef int (*fill_fn)(struct rewrite *w, struct output *o, const void *from, struct error *err);

static int make_file(struct rewrite *w, enum snapshot_file which, uint64_t size_bytes, fill_fn fill,
                     const void *from, struct error *err)
{
    const bool compressed = w->manifest.info.compressed;
    struct manifest_file *file = &w->manifest.files[which], *map_file = file + 1;
    const char *name = snapshot_file_name(which, compressed);
    _cleanup_free_ char *path = string_printf("%s/%s", w->dir, name);
    _cleanup_(output_cleanup) struct output *o = NULL;
    _cleanup_(map_done) struct map map = {0};
    _cleanup_close_ int fd = -EBADF;
    int r = path ? store_step("create") : -ENOMEM;

    if (r >= 0) {
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        r = fd < 0 ? -errno : 0;
    }
    if (r < 0)
        return error_set(err, -r, "create '%s/%s': %s", w->dir, name, errno_text(-r));
    r = output_new(fd, path, size_bytes, compressed, &o, err);
    if (r >= 0)
        r = fill(w, o, from, err);
    if (r >= 0)
        r = output_finish(o, &map, &file->size_bytes, err);
    if (r >= 0)
        r = store_write_map(w->dir, snapshot_file_name(which + 1, compressed), &map, map_file, err);
    if (r >= 0)
        (void)snprintf(file->name, sizeof(file->name), "%s", name);
    return r;
}

/* ---- flatten ---- */

static int fill_pages(struct rewrite *w, struct output *o, const void *from, struct error *err)
{
    struct page_source *source;
    int r = snapshot_pages(w->snap, &source, err);

    (void)from;
    if (r < 0)
        return r;
    for (;;) {
        const void *data;
        uint64_t offset;
        size_t size;

        r = source->ops->next(source, &offset, &data, &size, err);
        if (r <= 0)
            break;
        r = output_run(o, offset, data, size, err);
        if (r >= 0)
            r = report(w, size, err);
        if (r < 0)
            break;
    }
    (void)source->ops->free(source);
    return r;
}

static int flatten(struct rewrite *w, struct error *err)
{
    const struct layer *last = &w->snap->layers[w->snap->n_layers - 1];
    struct snapshot_manifest *m = &w->manifest;
    uint64_t bytes = 0;
    int r;

    w->total = m->info.memory_bytes;
    for (size_t i = 0; i < w->snap->n_layers; i++)
        bytes += map_bytes(&w->snap->layers[i].memory.map, MAP_DATA);
    r = check_room(w, bytes, err);
    if (r < 0)
        return r;
    m->info.parent = last->manifest.info.parent;
    memcpy(m->parent_digest, last->manifest.parent_digest, sizeof(m->parent_digest));
    r = keep_file(w, m->files[SNAPSHOT_FILE_STATE].name, false, err);
    if (r >= 0)
        r = keep_file(w, m->files[SNAPSHOT_FILE_DISK].name, false, err);
    if (r >= 0)
        r = keep_file(w, m->files[SNAPSHOT_FILE_DISK_MAP].name, false, err);
    if (r >= 0)
        r = keep_file(w, SNAPSHOT_WORKING_SET, true, err);
    if (r >= 0)
        r = make_file(w, SNAPSHOT_FILE_MEMORY, m->info.memory_bytes, fill_pages, NULL, err);
    return r < 0 ? r : finish(w, err);
}

/* ---- compress ---- */

struct runs {
    struct rewrite *rewrite;
    struct output *output;
    uint64_t next; /* where the runs not yet passed on begin */
};

/* Runs up to `to`; those of data are in the image, which begins at `start`. */
static int pass_runs(struct runs *p, const struct map *m, uint64_t to, const uint8_t *image,
                     uint64_t start, struct error *err)
{
    for (size_t i = map_find_run(m, p->next); i < m->n_runs && m->runs[i].offset < to; i++) {
        uint64_t at = MAX(m->runs[i].offset, p->next),
                 stop = MIN(m->runs[i].offset + m->runs[i].size, to);
        int r = output_run(p->output, at, m->runs[i].kind == MAP_DATA ? image + (at - start) : NULL,
                           stop - at, err);

        if (r < 0)
            return r;
    }
    p->next = to;
    return 0;
}

static int pass_chunk(const struct stored *s, const struct map_chunk *chunk, const uint8_t *image,
                      uint64_t start, void *userdata, struct error *err)
{
    struct runs *p = userdata;
    uint64_t from = (uint64_t)chunk->index * MAP_CHUNK_BYTES;
    int r = pass_runs(p, &s->map, from, NULL, 0, err); /* zeros before it */

    if (r >= 0)
        r = pass_runs(p, &s->map, from + MAP_CHUNK_BYTES, image, start, err);
    return r < 0 ? r : report(p->rewrite, MAP_CHUNK_BYTES, err);
}

static int fill_stored(struct rewrite *w, struct output *o, const void *from, struct error *err)
{
    const struct stored *s = from;
    struct runs p = {.rewrite = w, .output = o};
    int r = stored_walk(s, pass_chunk, &p, err);

    return r < 0 ? r : pass_runs(&p, &s->map, s->map.size_bytes, NULL, 0, err);
}

static int compress(struct rewrite *w, struct error *err)
{
    struct snapshot_manifest *m = &w->manifest;
    const struct stored *memory = &w->snap->layers[0].memory, *disk = &w->snap->disk;
    int r;

    w->total = (memory->map.n_chunks + disk->map.n_chunks) * (uint64_t)MAP_CHUNK_BYTES;
    r = check_room(w, map_bytes(&memory->map, MAP_DATA) + map_bytes(&disk->map, MAP_DATA), err);
    if (r < 0)
        return r;
    m->info.compressed = true;
    r = keep_file(w, m->files[SNAPSHOT_FILE_STATE].name, false, err);
    if (r >= 0)
        r = keep_file(w, SNAPSHOT_WORKING_SET, true, err);
    if (r >= 0)
        r = make_file(w, SNAPSHOT_FILE_MEMORY, memory->map.size_bytes, fill_stored, memory, err);
    if (r >= 0)
        r = make_file(w, SNAPSHOT_FILE_DISK, disk->map.size_bytes, fill_stored, disk, err);
    return r < 0 ? r : finish(w, err);
}

/* 1 when there is nothing to do. */
static int is_so(struct snapshot_store *s, const char *id, bool want_flat, struct error *err)
{
    const struct entry *e;
    int r;

    (void)pthread_mutex_lock(&s->lock);
    e = store_find(s, id);
    if (!e || e->removed)
        r = error_set_code(err, ERR_SNAPSHOT_NOT_FOUND, "no snapshot '%s'", id);
    else
        r = !e->broken && (want_flat ? e->parent[0] == '\0' : e->info.compressed);
    (void)pthread_mutex_unlock(&s->lock);
    return r;
}

int snapshot_rewrite(struct snapshot_store *s, const char *id,
                     const struct rewrite_options *options, struct error *err)
{
    const bool flat = options->kind == REWRITE_FLATTEN;
    struct rewrite w = {.options = *options};
    int r = is_so(s, id, flat, err);

    if (r != 0)
        return MIN(r, 0);
    r = begin(s, id, &w, err);
    if (r >= 0)
        r = flat ? flatten(&w, err) : compress(&w, err);
    end(&w);
    (void)snapshot_collect(s, NULL, NULL); /* a parent may have waited for this */
    if (r < 0)
        error_wrap(err, "%s '%s'", flat ? "flatten" : "compress", id);
    return r;
}

int snapshot_flatten(struct snapshot_store *s, const char *id, snapshot_progress_fn progress,
                     void *userdata, struct error *err)
{
    const struct rewrite_options options = {
        .kind = REWRITE_FLATTEN,
        .progress = progress,
        .userdata = userdata,
    };

    return snapshot_rewrite(s, id, &options, err);
}

int snapshot_compress(struct snapshot_store *s, const char *id, snapshot_progress_fn progress,
                      void *userdata, struct error *err)
{
    const struct rewrite_options options = {
        .kind = REWRITE_COMPRESS,
        .progress = progress,
        .userdata = userdata,
    };

    return snapshot_rewrite(s, id, &options, err);
}
