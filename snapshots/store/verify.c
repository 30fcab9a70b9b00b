#include <stdatomic.h>
#include <string.h>

#include "store/snapshot-internal.h"

/* What several threads have read. */
struct reading {
    _Atomic uint64_t done;
    uint64_t total;
    snapshot_progress_fn progress;
    void *userdata;
};

static int on_chunk(const struct stored *s, const struct map_chunk *chunk, const uint8_t *image,
                    uint64_t start, void *userdata, struct error *err)
{
    struct reading *r = userdata;
    uint64_t done = atomic_fetch_add(&r->done, MAP_CHUNK_BYTES) + MAP_CHUNK_BYTES;

    (void)s;
    (void)chunk;
    (void)image;
    (void)start;
    (void)err;
    r->progress(done, r->total, r->userdata);
    return 0;
}

int snapshot_verify(struct snapshot_store *s, const char *id, snapshot_progress_fn progress,
                    void *userdata, struct error *err)
{
    struct reading reading = {.progress = progress, .userdata = userdata};
    struct snapshot *snap;
    /* State, disk and base are verified by it. */
    int r = snapshot_open(s, id, &snap, err);

    if (r < 0)
        return r;
    for (size_t i = 0; i < snap->n_layers; i++)
        reading.total += snap->layers[i].memory.map.n_chunks * (uint64_t)MAP_CHUNK_BYTES;
    for (size_t i = 0; i < snap->n_layers && r >= 0; i++)
        r = stored_verify(&snap->layers[i].memory, progress ? on_chunk : NULL, &reading, err);
    if (r < 0)
        error_wrap(err, "snapshot '%s'", id);
    (void)snapshot_close(snap);
    return r;
}
