#include "core/disk-copy.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/core-private.h"
#include "core/extent-copy.h"
#include "erofs/disk.h"

/*
 * A copy runs on io_uring, from the loop; where there is none it is a worker's job, as the making
 * of an empty disk (which runs a tool) always is.
 */
struct disk_copy {
    struct core *core;           /* weak, not for the worker */
    struct extent_copy *extents; /* owned; NULL: on a worker */
    char *from, *to;             /* owned; from may be NULL */
    uint32_t disk_mib;
    backend_done_fn done;
    void *userdata;
    struct error err;
};

struct disk_copy *disk_copy_free(struct disk_copy *copy)
{
    if (!copy)
        return NULL;
    (void)extent_copy_free(copy->extents);
    free(copy->from);
    free(copy->to);
    free(copy);
    return NULL;
}

void disk_copy_quiesce(struct disk_copy *copy)
{
    if (copy)
        copy->extents = extent_copy_free(copy->extents);
}

static void copy_run(void *userdata)
{
    struct disk_copy *copy = userdata;

    if (copy->from)
        (void)file_copy_sparse(copy->from, copy->to, 0600, &copy->err);
    else
        (void)disk_make(copy->to, copy->disk_mib, &copy->err);
}

static void copy_done(void *userdata, int cancelled)
{
    struct disk_copy *copy = userdata;

    if (!cancelled && !copy->core->closing)
        copy->done(copy->err.errnum ? &copy->err : NULL, copy->userdata);
}

static void on_extents(const struct error *err, void *userdata)
{
    struct disk_copy *copy = userdata;

    copy->done(err, copy->userdata);
}

int disk_copy_start(struct core *core, const char *from, const char *to, uint32_t disk_mib,
                    backend_done_fn done, void *userdata, struct disk_copy **ret)
{
    struct disk_copy *copy = calloc(1, sizeof(*copy));
    int r;

    if (!copy)
        return -ENOMEM;
    copy->core = core;
    copy->disk_mib = disk_mib;
    copy->done = done;
    copy->userdata = userdata;
    if (from && core->uring) {
        r = extent_copy_start(core->loop, core->uring, from, to, on_extents, copy, &copy->extents,
                              &copy->err);
        if (r >= 0) {
            *ret = copy;
            return 0;
        }
        log_debug("%s; trying it on a worker", copy->err.text);
        error_clear(&copy->err);
    }
    r = string_set(&copy->from, from);
    if (r >= 0)
        r = string_set(&copy->to, to);
    if (r >= 0)
        r = workers_submit(core->io_workers, copy_run, copy_done, copy);
    if (r < 0) {
        (void)disk_copy_free(copy);
        return r;
    }
    *ret = copy;
    return 0;
}
