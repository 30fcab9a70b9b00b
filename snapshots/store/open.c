#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "store/snapshot-internal.h"

struct snapshot *snapshot_close(struct snapshot *snap)
{
    if (!snap)
        return NULL;
    for (size_t i = 0; i < snap->n_layers; i++) {
        struct layer *l = &snap->layers[i];

        stored_done(&l->memory);
        if (l->pinned)
            store_unpin(snap->store, l->manifest.info.id);
        snapshot_manifest_done(&l->manifest);
        free(l->dir);
    }
    free(snap->layers);
    stored_done(&snap->disk);
    template_base_done(&snap->base);
    free(snap);
    return NULL;
}

/* The layer `id`, which must have this seal when one lies over it. */
static int open_layer(struct snapshot *snap, const char *id, const char *seal, struct error *err)
{
    struct layer *l = &snap->layers[snap->n_layers];
    const bool top = snap->n_layers == 0;
    int r;

    l->memory.fd = -EBADF;
    if (store_pin(snap->store, id, /* removed_too= */ !top) < 0) {
        if (top)
            return error_set_code(err, ERR_SNAPSHOT_NOT_FOUND, "no snapshot '%s'", id);
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "its parent '%s' is missing", id);
    }
    snap->n_layers++;
    l->pinned = true;
    memcpy(l->manifest.info.id, id, MANIFEST_ID_SIZE);
    l->dir = store_dir(snap->store, "", id);
    if (!l->dir)
        return error_set(err, ENOMEM, "out of memory");
    r = snapshot_manifest_read(l->dir, id, &l->manifest, err);
    if (r < 0) {
        /* Whoever closes it unpins by this id. */
        memcpy(l->manifest.info.id, id, MANIFEST_ID_SIZE);
        if (r == -ENOENT && !top)
            return error_set_code(err, ERR_SNAPSHOT_INVALID, "its parent '%s' is missing", id);
        return r;
    }
    if (seal && strcmp(seal, l->manifest.seal) != 0)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "its parent '%s' is not what it was", id);
    if (l->manifest.info.memory_bytes != snap->layers[0].manifest.info.memory_bytes)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "its parent '%s' has another memory size",
                              id);
    r = stored_open(l->dir, &l->manifest.files[SNAPSHOT_FILE_MEMORY],
                    &l->manifest.files[SNAPSHOT_FILE_MEMORY_MAP], &l->memory, err);
    if (r >= 0 && l->memory.map.size_bytes != l->manifest.info.memory_bytes)
        r = error_set_code(err, ERR_SNAPSHOT_INVALID, "its memory has another size than it says");
    return r;
}

static int open_chain(struct snapshot *snap, const char *id, bool read_only, struct error *err)
{
    int r = open_layer(snap, id, NULL, err);
    const struct layer *l;

    while (r >= 0) {
        l = &snap->layers[snap->n_layers - 1];
        if (l->manifest.info.parent.template_id[0])
            break;
        if (snap->n_layers == SNAPSHOT_CHAIN_MAX)
            return error_set_code(err, ERR_SNAPSHOT_INVALID, "it lies over more than %u others",
                                  SNAPSHOT_CHAIN_MAX);
        r = open_layer(snap, l->manifest.info.parent.snapshot_id, l->manifest.parent_digest, err);
    }
    if (r < 0)
        return r;
    r = template_base_open(snap->store->templates, l->manifest.info.parent.template_id,
                           /* digest= */ !read_only, &snap->base, err);
    if (r < 0)
        return r;
    if (strcmp(snap->base.seal, l->manifest.parent_digest) != 0)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "its template '%s' is not what it was",
                              l->manifest.info.parent.template_id);
    if (snap->base.memory_bytes != l->manifest.info.memory_bytes)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "its template has another memory size");
    return 0;
}

static int check_state(const struct layer *l, struct error *err)
{
    const struct manifest_file *file = &l->manifest.files[SNAPSHOT_FILE_STATE];
    _cleanup_free_ char *path = string_printf("%s/%s", l->dir, file->name);
    _cleanup_close_ int fd = -EBADF;
    char digest[DIGEST_TEXT_SIZE];
    int r;

    if (!path)
        return error_set(err, ENOMEM, "out of memory");
    r = stored_open_file(path, file->size_bytes, &fd, err);
    if (r < 0)
        return r;
    r = blake_fd(fd, digest);
    if (r < 0)
        return error_set(err, -r, "read '%s': %s", path, errno_text(-r));
    if (strcmp(digest, file->digest) != 0)
        return error_set_code(err, ERR_SNAPSHOT_INVALID,
                              "'%s' is damaged: it does not have the digest of its manifest", path);
    return 0;
}

int snapshot_open_quietly(struct snapshot_store *s, const char *id, struct snapshot **ret,
                          struct error *err)
{
    struct snapshot *snap = calloc(1, sizeof(*snap));
    const struct layer *top;
    int r;

    if (!snap)
        return error_set(err, ENOMEM, "open snapshot '%s': out of memory", id);
    snap->store = s;
    snap->disk.fd = -EBADF;
    snap->layers = calloc(SNAPSHOT_CHAIN_MAX, sizeof(*snap->layers));
    if (!snap->layers)
        r = error_set(err, ENOMEM, "out of memory");
    else
        r = open_chain(snap, id, s->read_only, err);
    top = snap->layers;
    if (r >= 0)
        r = check_state(top, err);
    if (r >= 0 && !s->read_only)
        r = stored_open(top->dir, &top->manifest.files[SNAPSHOT_FILE_DISK],
                        &top->manifest.files[SNAPSHOT_FILE_DISK_MAP], &snap->disk, err);
    if (r >= 0 && !s->read_only)
        r = stored_verify(&snap->disk, NULL, NULL, err);
    if (r < 0) {
        if (r != -ENOENT)
            error_wrap(err, "snapshot '%s'", id);
        (void)snapshot_close(snap);
        return r;
    }
    *ret = snap;
    return 0;
}

int snapshot_open(struct snapshot_store *s, const char *id, struct snapshot **ret,
                  struct error *err)
{
    int r = snapshot_open_quietly(s, id, ret, err);

    for (size_t i = 0; r >= 0 && i < (*ret)->n_layers; i++)
        snapshot_note_use(s, (*ret)->layers[i].manifest.info.id);
    return r;
}

const struct snapshot_info *snapshot_get_info(const struct snapshot *snap)
{
    return &snap->layers[0].manifest.info;
}

const char *snapshot_dir(const struct snapshot *snap)
{
    return snap->layers[0].dir;
}

const char *snapshot_base_memory(const struct snapshot *snap)
{
    return snap->base.memory;
}

int snapshot_fits(const struct snapshot *snap, const struct origin *host, struct error *err)
{
    const struct origin *have = &snap->layers[0].manifest.info.origin;
    struct origin want = *have;
    struct error why = {0};

    memcpy(want.backend, host->backend, sizeof(want.backend));
    memcpy(want.backend_version, host->backend_version, sizeof(want.backend_version));
    memcpy(want.accelerator, host->accelerator, sizeof(want.accelerator));
    memcpy(want.cpu_model, host->cpu_model, sizeof(want.cpu_model));
    if (origin_compare(have, &want, &why) < 0)
        return error_set_code(err, ERR_SNAPSHOT_INVALID,
                              "snapshot '%s' does not fit this host: its %s",
                              snap->layers[0].manifest.info.id, why.text);
    return 0;
}

/* ---- disk ---- */

static int write_chunk(const struct stored *s, const struct map_chunk *chunk, const uint8_t *image,
                       uint64_t start, void *userdata, struct error *err)
{
    uint64_t from = (uint64_t)chunk->index * MAP_CHUNK_BYTES, to = from + MAP_CHUNK_BYTES;
    const int *fd = userdata;

    for (size_t i = map_find_run(&s->map, from); i < s->map.n_runs && s->map.runs[i].offset < to;
         i++) {
        uint64_t at = MAX(s->map.runs[i].offset, from),
                 end = MIN(s->map.runs[i].offset + s->map.runs[i].size, to);

        if (s->map.runs[i].kind != MAP_DATA)
            continue;
        while (at < end) {
            ssize_t n = pwrite(*fd, image + (at - start), end - at, (off_t)at);

            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0)
                return error_set(err, n < 0 ? errno : EIO, "write the disk: %s",
                                 errno_text(n < 0 ? errno : EIO));
            at += (uint64_t)n;
        }
    }
    return 0;
}

int snapshot_copy_disk(const struct snapshot *snap, const char *to, struct error *err)
{
    _cleanup_close_ int fd = -EBADF;
    int r;

    if (!snap->disk.map.compressed)
        return file_copy_sparse(snap->disk.path, to, 0600, err);
    fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(err, errno, "create '%s': %s", to, errno_text(errno));
    if (ftruncate(fd, (off_t)snap->disk.map.size_bytes) < 0)
        r = error_set(err, errno, "create '%s': %s", to, errno_text(errno));
    else
        r = stored_walk(&snap->disk, write_chunk, &fd, err);
    if (r < 0)
        (void)unlink(to);
    return r;
}
