#pragma once

#include "core/core-private.h"
#include "core/recipe.h"
#include "core/resolve.h"
#include "store/manifest.h"

/*
 * Templates: a machine with an image, booted once and kept as a snapshot in STATE/templates/ID/
 * with `memory`, `state`, `disk` and `manifest.json`. They are found by what they stand on (struct
 * origin) and made when there is none; whoever asks for one that is being made waits for it.
 */
#define TEMPLATE_MEMORY "memory"
#define TEMPLATE_STATE "state"
#define TEMPLATE_DISK "disk"
#define TEMPLATE_RECIPE "recipe.json" /* of one that was made by a recipe */

struct template_wait;

struct template_callbacks {
    /* May be NULL. */
    void (*on_progress)(const char *step, int percent, void *userdata);
    /* The end of what a step printed that failed; may be NULL. */
    void (*on_output)(const char *text, size_t size, void *userdata);
    /*
     * A template with a reference that the callee drops with template_unref(); or NULL and err.
     * NULL without err: this machine boots but cannot be snapshotted, boot it cold.
     */
    void (*on_ready)(struct template *t, const struct error *err, void *userdata);
};

/*
 * Callbacks come from the loop, never from inside this call. Freeing the wait cancels it; the
 * making goes on. `recipe` (copied, may be NULL) is how to make resolution->template_id when it is
 * not there; a template of a recipe is not made without it.
 */
int template_acquire(struct core *core, const struct resolution *resolution,
                     const struct recipe *recipe, const struct template_callbacks *cb,
                     void *userdata, struct template_wait **ret, struct error *err);
struct template_wait *template_wait_free(struct template_wait *wait);
struct template *template_unref(struct template *t);

/* By id or name: its id, or ERR_TEMPLATE_NOT_FOUND. */
int template_find_id(struct core *core, const char *id_or_name, char ret[MANIFEST_ID_SIZE],
                     struct error *err);
bool template_is_known(struct core *core, const char *id);
/* The name of its image; false: no such template. */
bool template_image(struct core *core, const char *id, char *ret, size_t size);
/* It was used just now, without template_acquire(). */
void template_touch(struct core *core, const char *id);
/* Processes of its set-up may run on in its clones; and it cannot be made of its image alone. */
bool template_has_recipe(struct core *core, const char *id);
/* Gives it a name, for good; whoever had that name loses it, and goes if nobody needs it. */
int template_set_name(struct core *core, const char *id, const char *name, struct error *err);
/* What a pooled clone runs, by number; NULL: that was all. Weak. */
char *template_warm_command(struct core *core, const char *id, size_t index);

const char *template_id(const struct template *t);
const char *template_dir(const struct template *t);

/* A clone of it works: later failures of single clones do not put the template in doubt. */
void template_set_proven(struct template *t);
bool template_is_proven(const struct template *t);
/* It does not work: nobody gets it any more, its files go with the last reference. */
void template_discard(struct template *t, const struct error *reason);

/* At start-up: what is there, without checking it. Removes half-made ones. Blocks: small files. */
int templates_load(struct core *core, struct error *err);
/* Nothing of them calls back any more; calls under way may still come home. */
void templates_quiesce(struct core *core);
void templates_free(struct core *core);
void template_makes_free(struct core *core);
bool templates_use_image(struct core *core, const char *image_sha256);
/* Appends the digests of the images of all templates to a strv. */
void templates_list_images(struct core *core, char ***list);
/* The VM of a template that is being made ended; false: no such VM. */
bool templates_vm_gone(struct core *core, const char *vm_id, const char *reason);
json_t *template_to_json(struct core *core, const struct template *t);
