#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/pool.h"
#include "core/resolve-cache.h"
#include "core/sandbox-private.h"
#include "core/template-private.h"
#include "store/snapshot.h"

/* Templates by name, and what clients see of them. */

#define RECIPE_FILE_MAX (16u * 1024u * 1024u)

int template_find_id(struct core *core, const char *id_or_name, char ret[MANIFEST_ID_SIZE],
                     struct error *err)
{
    struct template *t = template_lookup(core, id_or_name);
    char id[MANIFEST_ID_SIZE];

    if (!t && store_template_by_name(core->store, id_or_name, id))
        t = template_lookup(core, id);
    if (!t)
        return error_set_code(err, ERR_TEMPLATE_NOT_FOUND, "template '%.64s': no such template",
                              id_or_name);
    memcpy(ret, t->manifest.id, MANIFEST_ID_SIZE);
    return 0;
}

bool template_is_known(struct core *core, const char *id)
{
    return template_lookup(core, id) != NULL;
}

bool template_image(struct core *core, const char *id, char *ret, size_t size)
{
    struct template *t = template_lookup(core, id);

    if (t)
        (void)snprintf(ret, size, "%s", t->manifest.origin.image_name);
    return t != NULL;
}

void template_touch(struct core *core, const char *id)
{
    struct template *t = template_lookup(core, id);

    if (t)
        t->used_wall_usec = clock_wall_usec();
}

bool template_has_recipe(struct core *core, const char *id)
{
    struct template *t = template_lookup(core, id);

    return t && t->recipe;
}

char *template_warm_command(struct core *core, const char *id, size_t index)
{
    struct template *t = template_lookup(core, id);

    return t && t->recipe && index < strv_length(t->recipe->warm) ? t->recipe->warm[index] : NULL;
}

/* ---- recipes ---- */

void template_load_recipe(struct template *t)
{
    _cleanup_free_ char *path = string_printf("%s/" TEMPLATE_RECIPE, t->dir), *text = NULL;
    struct error err = {0};
    struct recipe *recipe;
    json_t *json;
    size_t size;

    if (!path || !file_exists(path) || t->recipe)
        return;
    recipe = calloc(1, sizeof(*recipe));
    json = file_read(path, RECIPE_FILE_MAX, &text, &size, &err) < 0
               ? NULL
               : json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    /* Its digest is checked with the others'; an empty one keeps it from being taken for an image.
     */
    if (recipe && recipe_from_json(json, recipe, &err) < 0)
        log_warning("Recipe '%s': %s, ignoring", path, err.text);
    json_decref(json);
    t->recipe = recipe;
}

/* ---- names ---- */

static bool has_snapshots(const struct template *t)
{
    return t->core->snapshots && snapshot_template_in_use(t->core->snapshots, t->manifest.id);
}

/* One that is being made boots cold without it, and one of a pool goes with it. */
static bool has_sandboxes(const struct template *t)
{
    const struct core *core = t->core;

    for (size_t i = 0; i < core->n_sandboxes; i++) {
        const struct sandbox *sb = core->sandboxes[i];

        if (sb->state != SANDBOX_CREATING && !sb->pooled &&
            strcmp(sb->template_id, t->manifest.id) == 0)
            return true;
    }
    return false;
}

const char *template_in_use(const struct template *t)
{
    if (has_snapshots(t))
        return "snapshots of sandboxes lie over it";
    return has_sandboxes(t) ? "sandboxes stand on it" : NULL;
}

bool template_is_needed(const struct template *t)
{
    return store_template_has_name(t->core->store, t->manifest.id) || template_in_use(t);
}

int template_set_name(struct core *core, const char *id, const char *name, struct error *err)
{
    char old[MANIFEST_ID_SIZE] = "";
    struct template *t;
    int r;

    if (store_template_by_name(core->store, name, old) && strcmp(old, id) == 0)
        return 0;
    r = store_template_name(core->store, name, id, err);
    if (r < 0)
        return r;
    resolve_cache_clear(core);
    log_notice("Template '%s' is '%s' from now on", id, name);
    t = old[0] ? template_lookup(core, old) : NULL;
    if (t && t->recipe && t->refs == 0 && t->state != TEMPLATE_MAKING && !template_is_needed(t)) {
        log_info("Removing template '%s', which was '%s'", old, name);
        template_discard(t, NULL);
    }
    return 0;
}

int core_template_name(struct core *core, const char *id_or_name, const char *name,
                       struct error *err)
{
    char id[MANIFEST_ID_SIZE];
    int r = template_find_id(core, id_or_name, id, err);

    if (r < 0)
        return r;
    if (!name_is_valid(name) || template_lookup(core, name))
        return error_set(err, EINVAL, "template '%.64s': not a name for a template", name);
    return template_set_name(core, id, name, err);
}

/* ---- what clients see ---- */

json_t *template_to_json(struct core *core, const struct template *t)
{
    static const char *const names[] = {
        [TEMPLATE_UNCHECKED] = "ready", [TEMPLATE_MAKING] = "making",
        [TEMPLATE_READY] = "ready",     [TEMPLATE_UNSAVABLE] = "unsavable",
        [TEMPLATE_DISCARDED] = "gone",
    };
    const struct origin *o = &t->manifest.origin;
    char created[32];
    uint64_t size = 0;
    json_t *json;

    for (size_t i = 0; i < t->manifest.n_files; i++)
        size += t->manifest.files[i].size_bytes;
    clock_format_wall(t->manifest.created_wall_usec, created, sizeof(created));
    json = json_pack("{s:s, s:o, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:s, s:I}", "id",
                     t->manifest.id, "names", store_template_names(core->store, t->manifest.id),
                     "state", names[t->state], "image", o->image_name, "backend", o->backend,
                     "accelerator", o->accelerator, "kernel", o->kernel_version, "cpus",
                     (int)o->cpus, "memory_mib", (int)o->memory_mib, "disk_mib", (int)o->disk_mib,
                     "created", created, "size_bytes", (json_int_t)size);
    if (json && t->recipe)
        (void)json_object_set_new(json, "recipe", recipe_to_json(t->recipe));
    return json;
}

json_t *core_templates_to_json(struct core *core)
{
    json_t *array = json_array();

    for (struct template *t = core->templates; t; t = t->next) {
        json_t *json = template_to_json(core, t);

        if (json)
            (void)json_object_del(json, "recipe");
        (void)json_array_append_new(array, json);
    }
    return array;
}

json_t *core_template_to_json(struct core *core, const char *id_or_name, struct error *err)
{
    char id[MANIFEST_ID_SIZE];
    json_t *json;

    if (template_find_id(core, id_or_name, id, err) < 0)
        return NULL;
    json = template_to_json(core, template_lookup(core, id));
    if (!json)
        (void)error_set(err, ENOMEM, "template '%s': out of memory", id);
    return json;
}

/* By name: the name goes, and the template when it was its last and no sandbox stands on it. */
int core_template_remove(struct core *core, const char *id_or_name, struct error *err)
{
    char id[MANIFEST_ID_SIZE];
    struct template *t;
    bool by_name;
    int r;

    r = template_find_id(core, id_or_name, id, err);
    if (r < 0)
        return r;
    t = template_lookup(core, id);
    by_name = strcmp(id_or_name, id) != 0;
    if (t->state == TEMPLATE_MAKING)
        return error_set_code(err, ERR_CONFLICT, "template '%s': is being made", id_or_name);
    if (has_snapshots(t) || (!by_name && has_sandboxes(t)))
        return error_set_code(err, ERR_CONFLICT, "template '%s': %s; remove them first", id_or_name,
                              template_in_use(t));
    if (by_name) {
        store_template_unname(core->store, id_or_name);
        resolve_cache_clear(core);
        if (store_template_has_name(core->store, id))
            return 0;
        if (has_sandboxes(t)) { /* goes later, like any that nobody asks for */
            pools_template_gone(core, id);
            store_pool_delete(core->store, id);
            return 0;
        }
    }
    log_info("Removing template '%s'", id);
    template_discard(t, NULL);
    resolve_cache_clear(core);
    return 0;
}
