#pragma once

#include "core/core-private.h"
#include "core/recipe.h"
#include "erofs/image.h"
#include "kernel/kernel.h"
#include "store/manifest.h"

/* What a spec means on this host, now: which backend, image, kernel and initramfs. */
struct resolution {
    struct backend_slot *slot; /* weak, of the core */
    struct backend_caps caps;
    char kernel[256]; /* "" when this template's kernel is gone: it can be restored, not rebuilt */
    char initramfs[256];
    struct origin origin;
    char template_id[MANIFEST_ID_SIZE]; /* of the template that fits */
    const struct image_config
        *config; /* of the image, weak: until the next return to the loop; NULL: none */
    bool recipe; /* it was made by a recipe: only a clone of it will do */
    char recipe_digest[RECIPE_DIGEST_SIZE]; /* while it is being made */
};

typedef void (*resolve_done_fn)(const struct resolution *resolution, const struct error *err,
                                void *userdata);
/* An image is being brought from a registry. */
typedef void (*resolve_progress_fn)(const char *step, int percent, void *userdata);

/*
 * Looks everything up on a worker and checks that the host has room; `done` comes from the loop,
 * once, unless the core is being freed. What was found is remembered: resolve-cache.h. An image
 * that is named by a reference and is not in the cache is pulled first; `progress` (may be NULL)
 * tells of it. *ret_job (may be NULL) is for resolve_cancel() and valid until `done`, or until the
 * core is being freed.
 */
struct resolve_job;
int resolve_start(struct core *core, const struct sandbox_spec *spec, resolve_progress_fn progress,
                  resolve_done_fn done, void *userdata, struct resolve_job **ret_job);
/* Nobody waits any more: a pull ends soon; `done` comes as always. */
void resolve_cancel(struct resolve_job *job);
/* From what is remembered, without a worker: 1 and *ret, 0: it has to be looked up. */
int resolve_now(struct core *core, const struct sandbox_spec *spec, struct resolution *ret);
