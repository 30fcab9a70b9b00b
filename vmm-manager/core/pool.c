#include "core/pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/pool-private.h"
#include "core/resolve-cache.h"
#include "core/template.h"

#define REFILL_DELAY_USEC (100 * USEC_PER_MSEC) /* the claimant's first command goes before */
#define SILENT_USEC (90 * USEC_PER_SEC)         /* three probes were missed */

/* ---- the list ---- */

struct pool *pool_lookup(struct core *core, const char *template_id)
{
    for (struct pool *pool = core->pools; pool; pool = pool->next) {
        if (!pool->dropped && strcmp(pool->template_id, template_id) == 0)
            return pool;
    }
    return NULL;
}

size_t pool_count(const struct pool *pool)
{
    size_t n = 0;

    for (const struct pooled *e = pool->entries; e; e = e->next)
        n++;
    return n;
}

size_t pool_ready(const struct pool *pool)
{
    size_t n = 0;

    for (const struct pooled *e = pool->entries; e; e = e->next)
        n += e->state == POOLED_READY;
    return n;
}

static struct pool *pool_free(struct pool *pool)
{
    while (pool->entries)
        pooled_forget(pool->entries);
    (void)source_free(pool->timer);
    sandbox_spec_done(&pool->spec);
    free(pool->image);
    free(pool);
    return NULL;
}

static void pool_unlist(struct pool *pool)
{
    for (struct pool **p = &pool->core->pools; *p; p = &(*p)->next) {
        if (*p == pool) {
            *p = pool->next;
            return;
        }
    }
}

void pool_free_if_over(struct pool *pool)
{
    if (!pool->dropped || pool->entries)
        return;
    pool_unlist(pool);
    (void)pool_free(pool);
}

/* How another clone is made: what the user asked for beyond the machine is not in it. */
static int take_spec(struct pool *pool, const struct sandbox_spec *spec)
{
    pool->spec.cpus = spec->cpus;
    pool->spec.memory_mib = spec->memory_mib;
    pool->spec.disk_mib = spec->disk_mib;
    if (string_set(&pool->spec.image, spec->image) < 0 ||
        string_set(&pool->spec.template, spec->template) < 0 ||
        string_set(&pool->spec.backend, spec->backend) < 0)
        return -ENOMEM;
    return 0;
}

static struct pool *pool_new(struct core *core, const char *template_id,
                             const struct sandbox_spec *spec, const char *image)
{
    struct pool *pool = calloc(1, sizeof(*pool));
    int64_t size;

    if (!pool)
        return NULL;
    pool->core = core;
    (void)snprintf(pool->template_id, sizeof(pool->template_id), "%s", template_id);
    if (take_spec(pool, spec) < 0 || string_set(&pool->image, image) < 0)
        return pool_free(pool);
    size = store_pool_size(core->store, template_id);
    pool->configured = size >= 0;
    pool->size = size >= 0 ? MIN((uint32_t)size, CORE_POOLED_MAX) : core->pool_size;
    pool->target = pool->size;
    pool->used_usec = clock_now_usec();
    pool->next = core->pools;
    core->pools = pool;
    return pool;
}

/* ---- use ---- */

/* Somebody came and there was none: more are kept for a while. */
static void press(struct pool *pool, uint64_t now)
{
    pool->n_misses++;
    pool->pressed_usec = now;
    if (pool->size > 0 && pool->target < MAX(pool->size, POOL_BURST_MAX))
        pool->target++;
}

static void short_of_one(struct pool *pool, uint64_t now)
{
    pool->used_usec = now;
    if (pool->wanted_usec == 0)
        pool->wanted_usec = now;
    pool->refill_at_usec = MAX(pool->refill_at_usec, now + REFILL_DELAY_USEC);
    pool_wake(pool, pool->refill_at_usec);
}

struct sandbox *pool_claim(struct core *core, const struct sandbox_spec *spec)
{
    const struct resolution *resolution =
        core->pools ? resolve_cache_find(core, spec, false) : NULL;
    struct pool *pool = resolution ? pool_lookup(core, resolution->template_id) : NULL;
    uint64_t now = clock_now_usec();
    struct pooled *e;
    struct sandbox *sb;

    if (!pool || core->stopping || core_count_sandboxes(core) >= core->max_sandboxes)
        return NULL;
    for (e = pool->entries; e; e = e->next) {
        if (e->state == POOLED_READY && now - e->alive_usec < SILENT_USEC &&
            guest_link_console(e->sandbox->link))
            break;
    }
    if (!e) {
        press(pool, now);
        short_of_one(pool, now);
        return NULL;
    }
    sb = e->sandbox;
    pooled_forget(e);
    template_touch(core, pool->template_id);
    pool->n_claims++;
    short_of_one(pool, now);
    return sb;
}

void pool_give_up(struct sandbox *sb)
{
    sb->pooled = true;
    pools_sweep(sb->core);
}

void pools_used(struct core *core, const struct resolution *resolution,
                const struct sandbox_spec *spec)
{
    struct pool *pool = pool_lookup(core, resolution->template_id);
    uint64_t now = clock_now_usec();

    if (core->stopping || (pool && pool->target > 0 && pool->wanted_usec > 0))
        return;
    if (!pool && core->pool_size > 0)
        pool = pool_new(core, resolution->template_id, spec, resolution->origin.image_name);
    if (pool && pool->target > 0)
        short_of_one(pool, now);
}

void pools_template_gone(struct core *core, const char *template_id)
{
    struct pool *pool = pool_lookup(core, template_id);

    if (!pool)
        return;
    log_info("The pool of template '%s' goes with it", template_id);
    pool->dropped = true;
    pool->target = 0;
    pool_wake(pool, clock_now_usec());
}

/* ---- start and end ---- */

void pool_adopt(struct sandbox *sb)
{
    struct core *core = sb->core;
    struct pool *pool = pool_lookup(core, sb->template_id);

    if (!pool && core->pool_size > 0 && template_is_known(core, sb->template_id))
        pool = pool_new(core, sb->template_id, &sb->spec, sb->origin.image_name);
    if (!pool || pool_count(pool) >= pool->target || pooled_add(pool, sb) < 0)
        return; /* the sweep takes it */
    log_sandbox(LOG_LEVEL_INFO, sb->id, "Back in the pool of template '%s'", pool->template_id);
}

static void start_configured(const char *template_id, uint32_t size, void *userdata)
{
    struct core *core = userdata;
    struct sandbox_spec spec = {0};
    char image[64];

    if (size == 0 || pool_lookup(core, template_id) ||
        !template_image(core, template_id, image, sizeof(image)))
        return;
    sandbox_spec_init(&spec);
    if (string_set(&spec.image, NULL) >= 0 && string_set(&spec.template, template_id) >= 0)
        (void)pool_new(core, template_id, &spec, image);
    sandbox_spec_done(&spec);
}

/* So that the first claim after a restart finds what its spec means. */
static void on_resolved(const struct resolution *resolution, const struct error *err,
                        void *userdata)
{
    (void)resolution;
    (void)err;
    (void)userdata;
}

void pools_start(struct core *core)
{
    if (core->pool_size > 0)
        store_pool_each(core->store, start_configured, core);
    for (struct pool *pool = core->pools; pool; pool = pool->next) {
        (void)resolve_start(core, &pool->spec, NULL, on_resolved, NULL, NULL);
        pool_wake(pool, clock_now_usec());
    }
    pools_sweep(core);
}

void pools_quiesce(struct core *core)
{
    core->pools_sweep = source_free(core->pools_sweep);
    core->claims_fold = source_free(core->claims_fold);
    core->stop_deadline = source_free(core->stop_deadline);
    for (struct pool *pool = core->pools; pool; pool = pool->next) {
        pool->timer = source_free(pool->timer);
        for (struct pooled *e = pool->entries; e; e = e->next) {
            e->watch = sandbox_watch_free(e->watch);
            e->run = guest_run_free(e->run);
        }
    }
}

void pools_free(struct core *core)
{
    while (core->pools) {
        struct pool *pool = core->pools;

        core->pools = pool->next;
        (void)pool_free(pool);
    }
}

/* ---- what clients see and set ---- */

static json_t *pool_to_json(const struct pool *pool)
{
    /* After a restart a claim first needs to know what its spec means: until then none can be had.
     */
    size_t ready = resolve_cache_peek(pool->core, &pool->spec) ? pool_ready(pool) : 0;

    return json_pack("{s:s, s:s, s:i, s:b, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I}", "template",
                     pool->template_id, "image", pool->image, "size", (int)pool->size, "configured",
                     pool->configured, "target", (int)pool->target, "ready", (int)ready, "filling",
                     (int)(pool_count(pool) - ready), "claims", (json_int_t)pool->n_claims,
                     "misses", (json_int_t)pool->n_misses, "refills", (json_int_t)pool->n_refills,
                     "failures", (json_int_t)pool->n_failures, "replaced",
                     (json_int_t)pool->n_replaced);
}

json_t *core_pools_to_json(struct core *core)
{
    json_t *array = json_array();

    for (struct pool *pool = core->pools; pool; pool = pool->next) {
        if (!pool->dropped)
            (void)json_array_append_new(array, pool_to_json(pool));
    }
    return array;
}

int core_pool_unset(struct core *core, const char *template, struct error *err)
{
    struct pool *pool;
    char id[MANIFEST_ID_SIZE];
    int r = template_find_id(core, template, id, err);

    if (r < 0)
        return r;
    store_pool_delete(core->store, id);
    pool = pool_lookup(core, id);
    if (pool) {
        pool->configured = false;
        pool->size = pool->target = core->pool_size;
        pool_wake(pool, clock_now_usec());
    }
    return 0;
}

int core_pool_set(struct core *core, const char *template, uint32_t size, json_t **ret,
                  struct error *err)
{
    struct pool *pool;
    char id[MANIFEST_ID_SIZE];
    int r;

    if (size > CORE_POOLED_MAX)
        return error_set(err, EINVAL, "size %u: a pool has at most %u", size, CORE_POOLED_MAX);
    r = template_find_id(core, template, id, err);
    if (r < 0)
        return r;
    r = store_pool_put(core->store, id, size, err);
    if (r < 0)
        return r;
    start_configured(id, size, core);
    pool = pool_lookup(core, id);
    if (pool) {
        pool->configured = true;
        pool->size = pool->target = size;
        pool->backoff_usec = 0;
        pool_wake(pool, clock_now_usec());
    }
    *ret = pool ? pool_to_json(pool) : json_pack("{s:s, s:i}", "template", id, "size", (int)size);
    return *ret ? 0 : error_set(err, ENOMEM, "out of memory");
}
