#include <string.h>

#include "store/snapshot-internal.h"

int snapshot_verify(struct snapshot_store *s, const char *id, snapshot_progress_fn progress,
                    void *userdata, struct error *err)
{
    struct snapshot *snap;
    uint64_t done = 0, total = 0;
    int r = snapshot_open(s, id, &snap, err); /* state, disk and base are verified by it */

    if (r < 0)
        return r;
    for (size_t i = 0; i < snap->n_layers; i++)
        total += map_bytes(&snap->layers[i].memory.map, MAP_DATA);
    for (size_t i = 0; i < snap->n_layers && r >= 0; i++) {
        r = stored_verify(&snap->layers[i].memory, err);
        done += map_bytes(&snap->layers[i].memory.map, MAP_DATA);
        if (r >= 0 && progress)
            progress(done, total, userdata);
    }
    if (r < 0)
        error_wrap(err, "snapshot '%s'", id);
    (void)snapshot_close(snap);
    return r;
}
