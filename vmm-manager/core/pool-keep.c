#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/host-stats.h"
#include "core/lifecycle.h"
#include "core/pool-private.h"
#include "core/resolve-cache.h"
#include "core/template.h"

/*
 * Theory of operation. pool_keep() brings a pool to its target: it is called by the pool's timer
 * and whenever something changed. An entry goes
 *
 *   FILLING   an ordinary creation, at most POOL_FILLING_MAX of all pools at a time, and not while
 *             somebody's own creation is under way, unless that lasts
 *   WARMING   the guest answers; the warm-up runs in it
 *   READY     may be claimed; a ping now and then shows that it lives
 *
 * and leaves by a claim, by the end of its console (the watch tells) or as surplus. An entry is
 * only freed when no call to its guest is under way or the console is over. The sandbox of an entry
 * that is gone keeps its mark and is removed by the sweep, from the loop; so is, after a restart,
 * one that no pool wants: a mark without an entry is all it takes, so nothing can be leaked.
 */
#define PROBE_USEC (30 * USEC_PER_SEC)
#define PROBE_TIMEOUT_USEC (5 * USEC_PER_SEC)
#define QUIET_USEC (60 * USEC_PER_SEC)     /* without a miss, until the target goes down */
#define STEP_DOWN_USEC (20 * USEC_PER_SEC) /* by one */
#define BUSY_USEC (50 * USEC_PER_MSEC)
#define PATIENCE_USEC (2 * USEC_PER_SEC) /* for the creations of others */
#define BACKOFF_FIRST_USEC (1 * USEC_PER_SEC)
#define BACKOFF_MAX_USEC (60 * USEC_PER_SEC)
#define WARM_MSEC 30000u
#define SPARE_MEMORY_MIB 256u /* of the host, that a refill leaves */
#define STOP_USEC (10 * USEC_PER_SEC)

/* ---- entries ---- */

void pooled_forget(struct pooled *e)
{
    for (struct pooled **p = &e->pool->entries; *p; p = &(*p)->next) {
        if (*p == e) {
            *p = e->next;
            break;
        }
    }
    if (e->sandbox)
        e->sandbox->entry = NULL;
    if (e->state != POOLED_READY)
        e->pool->core->n_filling--;
    (void)sandbox_watch_free(e->watch);
    (void)guest_run_free(e->run);
    free(e);
}

static struct pooled *pooled_new(struct pool *pool, enum pooled_state state)
{
    struct pooled *e = calloc(1, sizeof(*e)), **p = &pool->entries;

    if (!e)
        return NULL;
    e->pool = pool;
    e->state = state;
    while (*p)
        p = &(*p)->next;
    *p = e;
    pool->core->n_filling++;
    return e;
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct pooled *e = userdata;
    struct pool *pool = e->pool;

    log_sandbox(LOG_LEVEL_DEBUG, sb->id, "Leaves its pool: %s", reason->text);
    if (e->state == POOLED_READY && pool_count(pool) <= pool->target)
        pool->n_replaced++;
    pooled_forget(e);
    pools_sweep(sb->core);
    pool_wake(pool, clock_now_usec());
}

/* ---- sweep ---- */

static struct sandbox *find_stray(struct core *core)
{
    for (size_t i = 0; i < core->n_sandboxes; i++) {
        struct sandbox *sb = core->sandboxes[i];

        if (sb->pooled && !sb->entry && sb->state != SANDBOX_STOPPING)
            return sb;
    }
    return NULL;
}

static int on_sweep(struct source *s, void *userdata)
{
    struct core *core = userdata;
    struct sandbox *sb;

    (void)s;
    core->pools_sweep = source_free(core->pools_sweep);
    while ((sb = find_stray(core))) {
        if (sandbox_remove(sb, NULL, NULL) < 0) {
            log_error("Failed to remove a pooled sandbox: out of memory, ignoring");
            break;
        }
    }
    return 0;
}

void pools_sweep(struct core *core)
{
    if (core->pools_sweep || core->closing || core->recovery)
        return;
    if (loop_add_defer(core->loop, "pool-sweep", on_sweep, core, &core->pools_sweep) < 0)
        log_error("Failed to look for pooled sandboxes that are left: out of memory, ignoring");
}

/* ---- warm-up ---- */

static void warm_next(struct pooled *e);

static void on_warmed(const struct guest_run_result *result, const struct error *err,
                      void *userdata)
{
    struct pooled *e = userdata;

    if (err)
        log_sandbox(LOG_LEVEL_DEBUG, e->sandbox->id, "Warm-up: %s, ignoring", err->text);
    else if (result->exit_code != 0 && e->step > 1)
        log_sandbox(LOG_LEVEL_INFO, e->sandbox->id, "A warm-up command ended with status %d",
                    result->exit_code);
    e->run = guest_run_free(e->run);          /* and what it told with it */
    if (guest_link_console(e->sandbox->link)) /* else on_gone() is about to come */
        warm_next(e);
}

static void become_ready(struct pooled *e)
{
    struct pool *pool = e->pool;

    e->state = POOLED_READY;
    e->alive_usec = clock_now_usec();
    pool->core->n_filling--;
    pool->n_refills++;
    pool->backoff_usec = 0;
    log_sandbox(LOG_LEVEL_INFO, e->sandbox->id, "Ready in the pool of template '%s'",
                pool->template_id);
    pool_wake(pool, clock_now_usec());
}

/* First a shell that does nothing, then what the template asks for. */
static void warm_next(struct pooled *e)
{
    static char shell[] = "/bin/sh", option[] = "-c", nothing[] = ":";
    struct console *console = guest_link_console(e->sandbox->link);
    char *argv[] = {shell, option, nothing, NULL};
    struct error err = {0};
    char *command = NULL;

    if (e->step > 0) {
        command = template_warm_command(e->pool->core, e->pool->template_id, e->step - 1);
        if (!command) {
            become_ready(e);
            return;
        }
        argv[2] = command;
    }
    e->step++;
    if (guest_run_new(console, argv, NULL, WARM_MSEC, on_warmed, e, &e->run, &err) < 0) {
        log_sandbox(LOG_LEVEL_WARNING, e->sandbox->id, "Failed to warm it up: %s, ignoring",
                    err.text);
        become_ready(e);
    }
}

static int start_warming(struct pooled *e, struct sandbox *sb)
{
    int r;

    e->state = POOLED_WARMING;
    e->sandbox = sb;
    r = sandbox_watch_new(sb, on_gone, e, &e->watch);
    if (r < 0)
        return r;
    sb->entry = e;
    warm_next(e);
    return 0;
}

int pooled_add(struct pool *pool, struct sandbox *sb)
{
    struct pooled *e = pooled_new(pool, POOLED_WARMING);
    int r;

    if (!e)
        return -ENOMEM;
    r = start_warming(e, sb);
    if (r < 0)
        pooled_forget(e);
    return r;
}

/* ---- filling ---- */

static void note_failure(struct pool *pool)
{
    uint64_t now = clock_now_usec();

    pool->n_failures++;
    pool->backoff_usec =
        pool->backoff_usec ? MIN(pool->backoff_usec * 2, BACKOFF_MAX_USEC) : BACKOFF_FIRST_USEC;
    pool->refill_at_usec = now + pool->backoff_usec;
    pool_wake(pool, pool->refill_at_usec);
}

static void on_filled(struct sandbox *sb, const struct error *err, void *userdata)
{
    struct pooled *e = userdata;
    struct pool *pool = e->pool;

    if (err) {
        e->sandbox = NULL;
        pooled_forget(e);
        if (err->code != ERR_CANCELLED) {
            log_warning("Pool of template '%s': %s", pool->template_id, err->text);
            note_failure(pool);
        } else {
            pool_wake(pool, clock_now_usec());
        }
        return;
    }
    /* The image or the kernel is another by now: nobody will ask for these any more. */
    if (strcmp(sb->template_id, pool->template_id) != 0) {
        pooled_forget(e);
        pools_template_gone(pool->core, pool->template_id);
        pools_sweep(pool->core);
        return;
    }
    if (pool->target == 0 || start_warming(e, sb) < 0) {
        pooled_forget(e);
        pools_sweep(pool->core);
        pool_wake(pool, clock_now_usec());
    }
}

static bool fill_one(struct pool *pool)
{
    static const struct sandbox_create_callbacks callbacks = {.on_done = on_filled};
    struct pooled *e = pooled_new(pool, POOLED_FILLING);
    struct error err = {0};
    struct sandbox *sb = NULL;

    if (!e)
        return false;
    if (sandbox_create_pooled(pool->core, &pool->spec, &callbacks, e, &sb, &err) < 0) {
        log_warning("Pool of template '%s': %s", pool->template_id, err.text);
        pooled_forget(e);
        note_failure(pool);
        return false;
    }
    e->sandbox = sb;
    sb->entry = e;
    return true;
}

static size_t count_pooled(const struct core *core)
{
    size_t n = 0;

    for (size_t i = 0; i < core->n_sandboxes; i++)
        n += core->sandboxes[i]->pooled;
    return n;
}

static size_t count_filling(const struct core *core)
{
    size_t n = 0;

    for (const struct pool *pool = core->pools; pool; pool = pool->next) {
        for (const struct pooled *e = pool->entries; e; e = e->next)
            n += e->state == POOLED_FILLING;
    }
    return n;
}

/* The pool that was not used for the longest time gives one up for `pool`. */
static void make_room(struct pool *pool)
{
    struct pool *oldest = NULL;

    for (struct pool *other = pool->core->pools; other; other = other->next) {
        if (other != pool && !other->configured && pool_ready(other) > 0 &&
            other->used_usec < pool->used_usec && (!oldest || other->used_usec < oldest->used_usec))
            oldest = other;
    }
    if (!oldest)
        return;
    oldest->target = 0;
    pool_wake(oldest, clock_now_usec());
}

/* 0: one may be filled now. Else the time of the next look. */
static uint64_t fill_later(struct pool *pool, uint64_t now)
{
    struct core *core = pool->core;
    bool busy = core->n_queued + core->n_creating > count_filling(core);

    if (now < pool->refill_at_usec)
        return pool->refill_at_usec;
    if (core->n_filling >= POOL_FILLING_MAX)
        return now + BUSY_USEC;
    if (busy && now - pool->wanted_usec < PATIENCE_USEC)
        return now + BUSY_USEC;
    if (core->n_sandboxes >= core->max_sandboxes)
        return now + PROBE_USEC;
    if (count_pooled(core) >= CORE_POOLED_MAX) {
        make_room(pool);
        return now + PROBE_USEC;
    }
    if (host_memory_available_mib() < (uint64_t)pool->spec.memory_mib + SPARE_MEMORY_MIB)
        return now + PROBE_USEC;
    return 0;
}

/* ---- probes ---- */

static void on_pong(struct console *c, const struct error *err, void *userdata)
{
    struct sandbox *sb = userdata;
    struct pooled *e = sb->entry;

    (void)c;
    if (!e) /* claimed since; its console tells its user when it is broken */
        return;
    e->probing = false;
    if (!err) {
        e->alive_usec = clock_now_usec();
        return;
    }
    log_sandbox(LOG_LEVEL_WARNING, sb->id, "A pooled sandbox does not answer, replacing it: %s",
                err->text);
    /* Not from inside a callback of its console. */
    e->pool->n_replaced++;
    pooled_forget(e);
    pools_sweep(sb->core);
}

static void probe(struct pooled *e, uint64_t now)
{
    struct console *console = guest_link_console(e->sandbox->link);

    if (e->probing || !console)
        return;
    e->probing = console_ping(console, now + PROBE_TIMEOUT_USEC, on_pong, e->sandbox) >= 0;
}

/* ---- keeping ---- */

static void step_down(struct pool *pool, uint64_t now)
{
    if (pool->target <= pool->size || now - pool->pressed_usec < QUIET_USEC)
        return;
    pool->target--;
    pool->pressed_usec += STEP_DOWN_USEC;
}

/* Ready ones that are too many; the oldest goes first, its guest's clock has run the longest. */
static void drop_surplus(struct pool *pool)
{
    while (pool_count(pool) > pool->target) {
        struct pooled *e = pool->entries;
        size_t before = pool_count(pool);

        /* With its console goes the entry, see on_gone(); a creation tells on_filled(). */
        if (sandbox_remove(e->sandbox, NULL, NULL) < 0)
            log_error("Failed to remove a pooled sandbox: out of memory, ignoring");
        if (pool_count(pool) >= before) /* a creation: it ends from the loop */
            break;
    }
}

static int on_timer(struct source *s, uint64_t now_usec, void *userdata)
{
    (void)s;
    (void)now_usec;
    pool_keep(userdata);
    return 0;
}

void pool_wake(struct pool *pool, uint64_t at_usec)
{
    if (pool->core->closing)
        return;
    if (pool->wake_usec != 0 && pool->wake_usec <= at_usec)
        return;
    pool->wake_usec = at_usec;
    if (pool->timer) {
        (void)source_set_time(pool->timer, at_usec);
        return;
    }
    if (loop_add_timer(pool->core->loop, "pool", at_usec, on_timer, pool, &pool->timer) < 0)
        log_error("Failed to look after a pool: out of memory, ignoring");
}

void pool_keep(struct pool *pool)
{
    uint64_t now = clock_now_usec(), next = now + PROBE_USEC, later;

    pool->wake_usec = 0;
    if (pool->core->stopping)
        return;
    if (!pool->dropped && resolve_cache_differs(pool->core, &pool->spec, pool->template_id)) {
        log_info("Pool of template '%s': what it was made of has changed", pool->template_id);
        pools_template_gone(pool->core, pool->template_id);
    }
    step_down(pool, now);
    if (pool->target > pool->size)
        next = MIN(next, now + STEP_DOWN_USEC);
    drop_surplus(pool);
    for (struct pooled *e = pool->entries; e; e = e->next) {
        if (e->state == POOLED_READY && now - e->alive_usec >= PROBE_USEC)
            probe(e, now);
    }
    if (pool_count(pool) >= pool->target) {
        pool->wanted_usec = 0;
    } else {
        if (pool->wanted_usec == 0)
            pool->wanted_usec = now;
        later = fill_later(pool, now);
        if (later == 0)
            later = fill_one(pool) && pool_count(pool) < pool->target ? now + BUSY_USEC : next;
        next = MIN(next, later);
    }
    pool_wake(pool, next);
    pool_free_if_over(pool);
}

/* ---- the end of the daemon ---- */

static void stop_done(struct core *core)
{
    void (*done)(void *userdata) = core->stop_done;

    core->stop_deadline = source_free(core->stop_deadline);
    core->stop_done = NULL;
    if (done)
        done(core->stop_userdata);
}

static void on_stopped_one(const struct error *err, void *userdata)
{
    struct core *core = userdata;

    if (err)
        log_warning("A pooled sandbox stays: %s", err->text);
    if (--core->stop_left == 0)
        stop_done(core);
}

static int on_stop_deadline(struct source *s, uint64_t now_usec, void *userdata)
{
    (void)s;
    (void)now_usec;
    log_warning("Pooled sandboxes did not end in time; the next daemon finds them");
    stop_done(userdata);
    return 0;
}

void core_stop(struct core *core, void (*done)(void *userdata), void *userdata)
{
    struct sandbox *marked[CORE_POOLED_MAX + POOL_FILLING_MAX];
    size_t n = 0;

    if (core->stopping) { /* asked twice: at once */
        core->stop_done = NULL;
        done(userdata);
        return;
    }
    core->stopping = true;
    core->stop_done = done;
    core->stop_userdata = userdata;
    core->stop_left = 1;
    for (size_t i = 0; i < core->n_sandboxes && n < ARRAY_SIZE(marked); i++) {
        if (core->sandboxes[i]->pooled)
            marked[n++] = core->sandboxes[i];
    }
    if (n > 0 && loop_add_timer(core->loop, "stop", clock_now_usec() + STOP_USEC, on_stop_deadline,
                                core, &core->stop_deadline) < 0)
        n = 0;
    for (size_t i = 0; i < n; i++) {
        core->stop_left++;
        if (sandbox_remove(marked[i], on_stopped_one, core) < 0)
            core->stop_left--;
    }
    on_stopped_one(NULL, core);
}
