#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/strv.h"
#include "core/template-private.h"

/*
 * Theory of operation. What the image and the host are (resolve), then what the steps are (digest)
 * make the template's id; template_acquire() finds it or has it made; then it gets its name. The
 * first two run on workers and cannot be taken back: a make that is freed meanwhile only loses its
 * callbacks, and goes when they have returned.
 */
struct template_make {
    struct core *core; /* weak */
    char *name;        /* owned */
    struct sandbox_spec machine;
    struct recipe recipe;
    struct resolution resolution;
    struct template_make_callbacks cb;
    void *userdata;
    bool freed, on_worker;
    struct template_wait *wait; /* owned */
    struct error err;
    struct template_make *next; /* in core->makes */
};

static void make_free(struct template_make *make)
{
    for (struct template_make **p = &make->core->makes; *p; p = &(*p)->next) {
        if (*p == make) {
            *p = make->next;
            break;
        }
    }
    (void)template_wait_free(make->wait);
    sandbox_spec_done(&make->machine);
    recipe_done(&make->recipe);
    free(make->name);
    free(make);
}

struct template_make *template_make_free(struct template_make *make)
{
    if (!make)
        return NULL;
    make->wait = template_wait_free(make->wait);
    if (make->on_worker)
        make->freed = true;
    else
        make_free(make);
    return NULL;
}

/* The core ends, and workers no longer come back: those whose owners have gone go too. */
void template_makes_free(struct core *core)
{
    struct template_make *next;

    for (struct template_make *make = core->makes; make; make = next) {
        next = make->next;
        if (make->freed)
            make_free(make);
    }
}

static void finish(struct template_make *make, const json_t *json, const struct error *err)
{
    struct error why = {0};

    if (err) {
        error_copy(&why, err);
        error_wrap(&why, "template '%s'", make->name);
    }
    make->cb.on_done(json, err ? &why : NULL, make->userdata);
}

/* ---- the template ---- */

static void on_progress(const char *step, int percent, void *userdata)
{
    struct template_make *make = userdata;

    if (!make->freed)
        make->cb.on_progress(step, percent, make->userdata);
}

static void on_output(const char *text, size_t size, void *userdata)
{
    struct template_make *make = userdata;

    make->cb.on_output(text, size, make->userdata);
}

static void on_ready(struct template *t, const struct error *err, void *userdata)
{
    struct template_make *make = userdata;
    struct error why = {0};
    json_t *json = NULL;

    make->wait = template_wait_free(make->wait);
    if (err)
        error_copy(&why, err);
    else if (!t)
        (void)error_set_code(&why, ERR_TEMPLATE_INVALID, "its machine could not be saved");
    else if (template_set_name(make->core, template_id(t), make->name, &why) >= 0)
        json = template_to_json(make->core, t);
    if (t && !json && !why.errnum)
        (void)error_set(&why, ENOMEM, "out of memory");
    finish(make, json, json ? NULL : &why);
    json_decref(json);
    (void)template_unref(t);
}

/* ---- digest ---- */

/* A recipe that does nothing is the image's own template. */
static void set_id(struct template_make *make)
{
    crypto_generichash_state state;
    unsigned char hash[16];
    char origin[MANIFEST_ID_SIZE];

    if (recipe_is_empty(&make->recipe))
        return;
    memcpy(origin, make->resolution.template_id, sizeof(origin));
    (void)crypto_generichash_init(&state, NULL, 0, sizeof(hash));
    (void)crypto_generichash_update(&state, (const unsigned char *)origin, sizeof(origin));
    (void)crypto_generichash_update(&state, (const unsigned char *)make->resolution.recipe_digest,
                                    sizeof(make->resolution.recipe_digest));
    (void)crypto_generichash_final(&state, hash, sizeof(hash));
    hex_encode(hash, sizeof(hash), make->resolution.template_id);
    make->resolution.recipe = true;
}

static void digest_run(void *userdata)
{
    struct template_make *make = userdata;

    (void)recipe_digest(&make->recipe, make->resolution.recipe_digest, &make->err);
}

static void digest_done(void *userdata, int cancelled)
{
    static const struct template_callbacks callbacks = {on_progress, on_output, on_ready};
    struct template_make *make = userdata;

    make->on_worker = false;
    if (make->freed) {
        make_free(make);
        return;
    }
    if (cancelled || make->core->closing)
        return;
    if (make->err.errnum) {
        finish(make, NULL, &make->err);
        return;
    }
    set_id(make);
    if (template_acquire(make->core, &make->resolution,
                         make->resolution.recipe ? &make->recipe : NULL, &callbacks, make,
                         &make->wait, &make->err) < 0)
        finish(make, NULL, &make->err);
}

/* ---- resolve ---- */

static void on_resolved(const struct resolution *resolution, const struct error *err,
                        void *userdata)
{
    struct template_make *make = userdata;
    int r;

    make->on_worker = false;
    if (make->freed) {
        make_free(make);
        return;
    }
    if (err) {
        finish(make, NULL, err);
        return;
    }
    make->resolution = *resolution;
    make->resolution.config = NULL; /* is the resolver's */
    if (!resolution->caps.snapshot_memory) {
        (void)error_set_code(&make->err, ERR_BACKEND_UNAVAILABLE,
                             "backend '%s' has no snapshots here", resolution->origin.backend);
        finish(make, NULL, &make->err);
        return;
    }
    make->cb.on_progress("look at the steps", 5, make->userdata);
    make->on_worker = true;
    r = workers_submit(make->core->io_workers, digest_run, digest_done, make);
    if (r < 0) {
        make->on_worker = false;
        (void)error_set(&make->err, -r, "%s", errno_text(-r));
        finish(make, NULL, &make->err);
    }
}

int core_template_make(struct core *core, const char *name, const struct sandbox_spec *machine,
                       const struct recipe *recipe, const struct template_make_callbacks *cb,
                       void *userdata, struct template_make **ret, struct error *err)
{
    struct template_make *make;
    int r;

    if (!name_is_valid(name) || template_lookup(core, name))
        return error_set(err, EINVAL, "template '%.64s': not a name for a template", name);
    make = calloc(1, sizeof(*make));
    if (!make)
        return error_set(err, ENOMEM, "template '%s': out of memory", name);
    make->core = core;
    make->next = core->makes;
    core->makes = make;
    make->cb = *cb;
    make->userdata = userdata;
    r = string_set(&make->name, name);
    if (r >= 0)
        r = sandbox_spec_copy(machine, &make->machine);
    if (r >= 0)
        r = recipe_copy(recipe, &make->recipe);
    if (r >= 0) {
        make->on_worker = true;
        r = resolve_start(core, &make->machine, on_progress, on_resolved, make, NULL);
    }
    if (r < 0) {
        make_free(make);
        return error_set(err, -r, "template '%s': %s", name, errno_text(-r));
    }
    *ret = make;
    return 0;
}
