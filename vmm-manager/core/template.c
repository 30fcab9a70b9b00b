#include "core/template.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/pool.h"
#include "core/template-private.h"

#define EVICTIONS_AT_ONCE 4u

const char *template_id(const struct template *t)
{
    return t->manifest.id;
}

const char *template_dir(const struct template *t)
{
    return t->dir;
}

bool template_is_proven(const struct template *t)
{
    return t->proven;
}

void template_set_proven(struct template *t)
{
    t->proven = true;
}

/* ---- the list ---- */

static struct template *template_free(struct template *t)
{
    if (!t)
        return NULL;
    t->build = template_build_free(t->build);
    while (t->waits) {
        struct template_wait *wait = t->waits;

        t->waits = wait->next;
        wait->template = NULL;
    }
    if (t->recipe)
        recipe_done(t->recipe);
    free(t->recipe);
    free(t->dir);
    free(t);
    return NULL;
}

struct template *template_lookup(struct core *core, const char *id)
{
    for (struct template *t = core->templates; t; t = t->next) {
        if (strcmp(t->manifest.id, id) == 0)
            return t;
    }
    return NULL;
}

static void template_unlist(struct template *t)
{
    for (struct template **p = &t->core->templates; *p; p = &(*p)->next) {
        if (*p == t) {
            *p = t->next;
            t->next = NULL;
            t->core->n_templates--;
            return;
        }
    }
}

static struct template *template_add(struct core *core, const char *id)
{
    struct template *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    t->core = core;
    t->dir = string_printf("%s/%s", core->templates_dir, id);
    if (!t->dir) {
        free(t);
        return NULL;
    }
    memcpy(t->manifest.id, id, MANIFEST_ID_SIZE);
    t->used_wall_usec = clock_wall_usec();
    t->next = core->templates;
    core->templates = t;
    core->n_templates++;
    return t;
}

struct remove_job {
    char *dir; /* owned */
};

static void remove_run(void *userdata)
{
    struct remove_job *job = userdata;
    struct error err = {0};

    if (dir_remove(job->dir, &err) < 0)
        log_warning("Failed to remove '%s': %s, ignoring", job->dir, err.text);
}

static void remove_done(void *userdata, int cancelled)
{
    struct remove_job *job = userdata;

    (void)cancelled; /* the next daemon finds it and removes it */
    free(job->dir);
    free(job);
}

/*
 * The directory is renamed first: its name is free at once, and a daemon that dies in between finds
 * a half-made one, which it removes.
 */
void template_remove_dir(struct core *core, const char *dir)
{
    struct remove_job *job = calloc(1, sizeof(*job));
    char suffix[9] = "";

    (void)random_id(suffix, 8);
    if (job)
        job->dir = string_printf("%s.tmp-%s", dir, suffix);
    if (!job || !job->dir) {
        free(job);
        log_error("Failed to remove '%s': out of memory, ignoring", dir);
        return;
    }
    if (rename(dir, job->dir) < 0) {
        if (errno != ENOENT)
            (void)log_warning_errno(-errno, "Failed to rename '%s', ignoring", dir);
        remove_done(job, 1);
        return;
    }
    if (workers_submit(core->io_workers, remove_run, remove_done, job) < 0) {
        remove_run(job);
        remove_done(job, 0);
    }
}

static void template_delete(struct template *t)
{
    struct core *core = t->core;

    store_template_delete(core->store, t->manifest.id);
    store_pool_delete(core->store, t->manifest.id);
    template_remove_dir(core, t->dir);
}

struct template *template_unref(struct template *t)
{
    if (!t)
        return NULL;
    t->refs--;
    if (t->refs == 0 && t->state == TEMPLATE_DISCARDED)
        (void)template_free(t);
    return NULL;
}

/*
 * The files go at once even when a clone is still being restored from them: what it has opened it
 * keeps, and if it has not, its creation falls back to a cold boot like any that cannot be
 * restored. They stay while something lies over them: that one clone could not be restored may have
 * been its VMM's fault.
 */
void template_discard(struct template *t, const struct error *reason)
{
    const char *use;

    if (t->state == TEMPLATE_DISCARDED)
        return;
    if (reason)
        log_warning("Discarding template '%s': %s", t->manifest.id, reason->text);
    t->state = TEMPLATE_DISCARDED;
    pools_template_gone(t->core, t->manifest.id);
    template_unlist(t);
    use = template_in_use(t);
    if (use)
        log_warning("Files of template '%s' stay: %s", t->manifest.id, use);
    else
        template_delete(t);
    if (t->refs == 0)
        (void)template_free(t);
}

static struct template *oldest_spare(const struct core *core)
{
    struct template *oldest = NULL;

    for (struct template *t = core->templates; t; t = t->next) {
        if (t->spare && (!oldest || t->used_wall_usec < oldest->used_wall_usec))
            oldest = t;
    }
    return oldest;
}

/* Makes room for a new one. A few at a time: after the end of a large batch there may be many. */
static int templates_evict(struct core *core, struct error *err)
{
    size_t n_spare = 0;

    if (core->n_templates < CORE_TEMPLATES_SPARE_MAX)
        return 0;
    for (struct template *t = core->templates; t; t = t->next) {
        t->spare = t->refs == 0 && t->state != TEMPLATE_MAKING && !template_is_needed(t);
        n_spare += t->spare;
    }
    for (unsigned i = 0; i < EVICTIONS_AT_ONCE && n_spare >= CORE_TEMPLATES_SPARE_MAX; i++) {
        struct template *t = oldest_spare(core);

        log_info("Removing template '%s', the least recently used of %zu", t->manifest.id, n_spare);
        template_discard(t, NULL);
        n_spare--;
    }
    if (core->n_templates >= CORE_TEMPLATES_MAX)
        return error_set_code(err, ERR_TOO_MANY, "there are %zu templates, the limit of this host",
                              core->n_templates);
    return 0;
}

/* ---- waiting ---- */

struct template_wait *template_wait_free(struct template_wait *wait)
{
    if (!wait)
        return NULL;
    if (wait->template) {
        for (struct template_wait **p = &wait->template->waits; *p; p = &(*p)->next) {
            if (*p == wait) {
                *p = wait->next;
                break;
            }
        }
    }
    (void)source_free(wait->answer);
    free(wait);
    return NULL;
}

/* Takes the wait off the list, with a reference for its owner when there is something to refer to.
 */
static void wait_answer(struct template_wait *wait, const struct error *err)
{
    struct template *t = wait->template;

    for (struct template_wait **p = &t->waits; *p; p = &(*p)->next) {
        if (*p == wait) {
            *p = wait->next;
            break;
        }
    }
    wait->template = NULL;
    wait->answer = source_free(wait->answer);
    if (err || t->state != TEMPLATE_READY) {
        wait->cb.on_ready(NULL, err, wait->userdata);
        return;
    }
    t->refs++;
    t->used_wall_usec = clock_wall_usec();
    wait->cb.on_ready(t, NULL, wait->userdata);
}

static int on_answer(struct source *s, void *userdata)
{
    struct template_wait *wait = userdata;

    (void)s;
    if (wait->template)
        wait_answer(wait, NULL);
    else /* discarded since: boot cold */
        wait->cb.on_ready(NULL, NULL, wait->userdata);
    return 0;
}

void template_progress(struct template *t, const char *step, int percent)
{
    for (struct template_wait *wait = t->waits; wait; wait = wait->next) {
        if (wait->cb.on_progress)
            wait->cb.on_progress(step, percent, wait->userdata);
    }
}

void template_output(struct template *t, const char *text, size_t size)
{
    for (struct template_wait *wait = t->waits; wait; wait = wait->next) {
        if (wait->cb.on_output)
            wait->cb.on_output(text, size, wait->userdata);
    }
}

/* What stat() says of its files; a missing one is all zeros. */
static void look_at_files(const struct template *t, struct stat ret[static 3])
{
    static const char *const names[] = {TEMPLATE_MEMORY, TEMPLATE_STATE, TEMPLATE_DISK};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        _cleanup_free_ char *path = string_printf("%s/%s", t->dir, names[i]);

        if (!path || stat(path, &ret[i]) < 0)
            ret[i] = (struct stat){0};
    }
}

/* Checked by digest once in a daemon's life, then by this. */
static bool is_untouched(const struct template *t)
{
    struct stat now[3];

    look_at_files(t, now);
    for (size_t i = 0; i < ARRAY_SIZE(now); i++) {
        const struct stat *a = &now[i], *b = &t->files[i];

        if (a->st_dev != b->st_dev || a->st_ino != b->st_ino || a->st_size != b->st_size ||
            a->st_mtim.tv_sec != b->st_mtim.tv_sec || a->st_mtim.tv_nsec != b->st_mtim.tv_nsec ||
            a->st_ctim.tv_sec != b->st_ctim.tv_sec || a->st_ctim.tv_nsec != b->st_ctim.tv_nsec)
            return false;
    }
    return true;
}

void template_made(struct template *t, bool saved, const struct error *err)
{
    t->build = template_build_free(t->build);
    t->state = saved ? TEMPLATE_READY : TEMPLATE_UNSAVABLE;
    if (saved)
        look_at_files(t, t->files);
    t->refs++; /* a waiter may discard it */
    while (t->waits)
        wait_answer(t->waits, err);
    t->refs--;
    if (t->state == TEMPLATE_DISCARDED) {
        if (t->refs == 0)
            (void)template_free(t);
        return;
    }
    if (err) {
        template_unlist(t);
        if (t->refs == 0)
            (void)template_free(t);
        return;
    }
    if (saved)
        store_template_put(t->core->store, t->manifest.id, t->used_wall_usec);
}

static int set_recipe(struct template *t, const struct recipe *recipe, struct error *err)
{
    struct recipe *copy;

    if (!recipe || t->recipe)
        return 0;
    copy = calloc(1, sizeof(*copy));
    if (!copy || recipe_copy(recipe, copy) < 0) {
        free(copy);
        return error_set(err, ENOMEM, "template '%s': out of memory", t->manifest.id);
    }
    t->recipe = copy;
    return 0;
}

/* The one with this id, listed. */
static int template_get(struct core *core, const char *id, const struct recipe *recipe,
                        struct template **ret, struct error *err)
{
    struct template *t = template_lookup(core, id);
    int r;

    if (!t) {
        r = templates_evict(core, err);
        if (r < 0)
            return r;
        t = template_add(core, id);
        if (!t)
            return error_set(err, ENOMEM, "template '%s': out of memory", id);
    }
    if (t->state == TEMPLATE_READY && !is_untouched(t)) {
        log_warning("Files of template '%s' have changed, checking them", id);
        t->state = TEMPLATE_UNCHECKED;
    }
    *ret = t;
    return set_recipe(t, recipe, err);
}

int template_acquire(struct core *core, const struct resolution *resolution,
                     const struct recipe *recipe, const struct template_callbacks *cb,
                     void *userdata, struct template_wait **ret, struct error *err)
{
    const char *id = resolution->template_id;
    struct template_wait *wait;
    struct template *t = NULL;
    int r;

    r = template_get(core, id, recipe, &t, err);
    if (r < 0)
        return r;
    wait = calloc(1, sizeof(*wait));
    if (!wait)
        return error_set(err, ENOMEM, "template '%s': out of memory", id);
    wait->cb = *cb;
    wait->userdata = userdata;
    if (t->state == TEMPLATE_UNCHECKED) {
        r = template_build_start(t, resolution, /* may_build= */ recipe || !t->recipe, err);
        if (r >= 0)
            t->state = TEMPLATE_MAKING;
    } else if (t->state != TEMPLATE_MAKING) {
        r = loop_add_defer(core->loop, "template-answer", on_answer, wait, &wait->answer);
        if (r < 0)
            (void)error_set(err, -r, "template '%s': %s", id, errno_text(-r));
    }
    if (r < 0) {
        free(wait);
        return r;
    }
    wait->template = t;
    wait->next = t->waits;
    t->waits = wait;
    *ret = wait;
    return 0;
}

/* ---- all of them ---- */

int templates_load(struct core *core, struct error *err)
{
    DIR *dir = opendir(core->templates_dir);
    struct dirent *entry;

    if (!dir)
        return error_set(err, errno, "open '%s': %s", core->templates_dir, errno_text(errno));
    while ((entry = readdir(dir))) {
        struct error why = {0};
        struct template *t;

        if (strlen(entry->d_name) != MANIFEST_ID_SIZE - 1 || !name_is_valid(entry->d_name) ||
            core->n_templates >= CORE_TEMPLATES_MAX)
            continue;
        t = template_add(core, entry->d_name);
        if (!t)
            break;
        if (manifest_read(t->dir, &t->manifest, &why) < 0 ||
            strcmp(t->manifest.id, entry->d_name) != 0) {
            if (!why.errnum)
                (void)error_set_code(&why, ERR_TEMPLATE_INVALID, "its manifest has another id");
            memcpy(t->manifest.id, entry->d_name, MANIFEST_ID_SIZE);
            template_discard(t, &why);
            continue;
        }
        template_load_recipe(t);
        t->used_wall_usec = store_template_used(core->store, t->manifest.id);
    }
    closedir(dir);
    return 0;
}

void templates_quiesce(struct core *core)
{
    for (struct template *t = core->templates; t; t = t->next) {
        if (t->build)
            template_build_quiesce(t->build);
        for (struct template_wait *wait = t->waits; wait; wait = wait->next)
            wait->answer = source_free(wait->answer);
    }
}

void templates_free(struct core *core)
{
    while (core->templates) {
        struct template *t = core->templates;

        core->templates = t->next;
        (void)template_free(t);
    }
    core->n_templates = 0;
}

bool templates_use_image(struct core *core, const char *image_sha256)
{
    for (struct template *t = core->templates; t; t = t->next) {
        if ((t->state == TEMPLATE_MAKING || t->refs > 0) &&
            strcmp(t->manifest.origin.image_sha256, image_sha256) == 0)
            return true;
    }
    return false;
}

void templates_list_images(struct core *core, char ***list)
{
    for (struct template *t = core->templates; t; t = t->next)
        (void)strv_append(list, t->manifest.origin.image_sha256);
}

bool templates_vm_gone(struct core *core, const char *vm_id, const char *reason)
{
    for (struct template *t = core->templates; t; t = t->next) {
        if (t->build && strcmp(template_build_vm_id(t->build), vm_id) == 0) {
            template_build_vm_gone(t->build, reason);
            return true;
        }
    }
    return false;
}
