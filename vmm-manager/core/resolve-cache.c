#include "core/resolve-cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/strv.h"

#define ENTRIES_MAX 64u
#define RECENT_USEC (100 * USEC_PER_MSEC)

struct resolve_entry {
    struct sandbox_spec spec; /* owned; only what resolving looks at is compared */
    struct resolution resolution;
    struct image_config config; /* owned, the resolution's */
    struct watched_files watched;
    uint64_t looked_usec;       /* when those that decide were last looked at */
    struct resolve_entry *next; /* owned; the last used first */
};

/* ---- files ---- */

static void look(const char *path, struct stat *ret)
{
    if (stat(path, ret) < 0)
        *ret = (struct stat){0};
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           same_time(&a->st_mtim, &b->st_mtim) && same_time(&a->st_ctim, &b->st_ctim);
}

void watched_files_add(struct watched_files *w, const char *path)
{
    struct watched_file *file = &w->files[w->n];

    if (w->n >= WATCHED_FILES_MAX || strlen(path) >= sizeof(file->path)) {
        w->overflow = true;
        return;
    }
    (void)snprintf(file->path, sizeof(file->path), "%s", path);
    look(path, &file->st);
    w->n++;
}

bool watched_files_same(const struct watched_files *w, size_t n)
{
    struct stat st;

    for (size_t i = 0; i < n; i++) {
        look(w->files[i].path, &st);
        if (!same_file(&st, &w->files[i].st))
            return false;
    }
    return !w->overflow;
}

/* ---- entries ---- */

static struct resolve_entry *entry_free(struct resolve_entry *e)
{
    sandbox_spec_done(&e->spec);
    image_config_done(&e->config);
    free(e);
    return NULL;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_machine(const struct sandbox_spec *a, const struct sandbox_spec *b)
{
    return a->cpus == b->cpus && a->memory_mib == b->memory_mib && a->disk_mib == b->disk_mib &&
           same_text(a->image, b->image) && same_text(a->template, b->template) &&
           same_text(a->backend, b->backend);
}

/* The found one moves to the front. */
static struct resolve_entry *lookup(struct core *core, const struct sandbox_spec *spec)
{
    for (struct resolve_entry **p = &core->resolved; *p; p = &(*p)->next) {
        struct resolve_entry *e = *p;

        if (!same_machine(&e->spec, spec))
            continue;
        *p = e->next;
        e->next = core->resolved;
        core->resolved = e;
        return e;
    }
    return NULL;
}

static void drop_first(struct core *core)
{
    struct resolve_entry *e = core->resolved;

    core->resolved = e->next;
    (void)entry_free(e);
}

const struct resolution *resolve_cache_find(struct core *core, const struct sandbox_spec *spec,
                                            bool all)
{
    struct resolve_entry *e = lookup(core, spec);
    uint64_t now = clock_now_usec();
    size_t n;

    if (!e)
        return NULL;
    n = all ? e->watched.n : e->watched.n_deciding;
    if (!all && now - e->looked_usec < RECENT_USEC)
        n = MIN(n, 1u); /* a burst: only what a request can change */
    else
        e->looked_usec = now;
    if (watched_files_same(&e->watched, n))
        return &e->resolution;
    drop_first(core);
    return NULL;
}

const struct resolution *resolve_cache_peek(struct core *core, const struct sandbox_spec *spec)
{
    struct resolve_entry *e = lookup(core, spec);

    return e ? &e->resolution : NULL;
}

bool resolve_cache_differs(struct core *core, const struct sandbox_spec *spec,
                           const char *template_id)
{
    struct resolve_entry *e = lookup(core, spec);

    return e && (strcmp(e->resolution.template_id, template_id) != 0 ||
                 !watched_files_same(&e->watched, e->watched.n_deciding));
}

static void drop_beyond(struct core *core, size_t max)
{
    struct resolve_entry **p = &core->resolved;

    for (size_t i = 0; *p && i < max; i++)
        p = &(*p)->next;
    while (*p) {
        struct resolve_entry *e = *p;

        *p = e->next;
        (void)entry_free(e);
    }
}

/* A cache: for want of memory it only stays as it is. */
void resolve_cache_put(struct core *core, const struct sandbox_spec *spec,
                       const struct resolution *resolution, const struct watched_files *watched)
{
    struct resolve_entry *e;

    if (lookup(core, spec))
        drop_first(core);
    e = calloc(1, sizeof(*e));
    if (!e)
        return;
    if (sandbox_spec_copy(spec, &e->spec) < 0 ||
        (resolution->config && image_config_copy(resolution->config, &e->config) < 0)) {
        (void)entry_free(e);
        return;
    }
    e->resolution = *resolution;
    e->resolution.config = resolution->config ? &e->config : NULL;
    e->watched = *watched;
    e->next = core->resolved;
    core->resolved = e;
    drop_beyond(core, ENTRIES_MAX);
}

void resolve_cache_clear(struct core *core)
{
    drop_beyond(core, 0);
}
