#include <string.h>

#include "store/snapshot-internal.h"

struct progress {
    snapshot_progress_fn fn;
    void *userdata;
    uint64_t done, total;
};

static int count_chunk(const struct stored *s, const struct map_chunk *chunk, const uint8_t *image,
                       uint64_t start, void *userdata, struct error *err)
{
    struct progress *p = userdata;

    (void)s;
    (void)chunk;
    (void)image;
    (void)start;
    (void)err;
    p->done = MIN(p->done + MAP_CHUNK_BYTES, p->total);
    if (p->fn)
        p->fn(p->done, p->total, p->userdata);
    return 0;
}

int snapshot_verify(struct snapshot_store *s, const char *id, snapshot_progress_fn progress,
                    void *userdata, struct error *err)
{
    struct progress p = {.fn = progress, .userdata = userdata};
    struct snapshot *snap;
    int r = snapshot_open(s, id, &snap, err); /* state, disk and base are verified by it */

    if (r < 0)
        return r;
    for (size_t i = 0; i < snap->n_layers; i++)
        p.total += snap->layers[i].memory.map.n_chunks * (uint64_t)MAP_CHUNK_BYTES;
    for (size_t i = 0; i < snap->n_layers && r >= 0; i++)
        r = stored_walk(&snap->layers[i].memory, count_chunk, &p, err);
    if (r < 0)
        error_wrap(err, "snapshot '%s'", id);
    (void)snapshot_close(snap);
    return r;
}
