#include "core/template.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/pool.h"
#include "core/template-private.h"

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
    (void)strv_free(t->warm);
    free(t->dir);
    free(t);
    return NULL;
}

static struct template *template_lookup(struct core *core, const char *id)
{
    for (struct template *t = core->templates; t; t = t->next) {
        if (strcmp(t->manifest.id, id) == 0)
            return t;
    }
    return NULL;
}

int template_find_id(struct core *core, const char *id_or_name, char ret[MANIFEST_ID_SIZE],
                     struct error *err)
{
    struct template *t = template_lookup(core, id_or_name);

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

bool template_has_processes(struct core *core, const char *id)
{
    struct template *t = template_lookup(core, id);

    return t && t->has_processes;
}

char *template_warm_command(struct core *core, const char *id, size_t index)
{
    struct template *t = template_lookup(core, id);

    return t && index < strv_length(t->warm) ? t->warm[index] : NULL;
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
 * restored.
 */
void template_discard(struct template *t, const struct error *reason)
{
    if (t->state == TEMPLATE_DISCARDED)
        return;
    if (reason)
        log_warning("Discarding template '%s': %s", t->manifest.id, reason->text);
    t->state = TEMPLATE_DISCARDED;
    pools_template_gone(t->core, t->manifest.id);
    template_unlist(t);
    template_delete(t);
    if (t->refs == 0)
        (void)template_free(t);
}

/* Makes room for a new one: the least recently used that nobody needs now goes. */
static int templates_evict(struct core *core, struct error *err)
{
    struct template *oldest = NULL;

    if (core->n_templates < CORE_TEMPLATES_MAX)
        return 0;
    for (struct template *t = core->templates; t; t = t->next) {
        if (t->refs == 0 && t->state != TEMPLATE_MAKING &&
            (!oldest || t->used_wall_usec < oldest->used_wall_usec))
            oldest = t;
    }
    if (!oldest)
        return error_set_code(err, ERR_TOO_MANY, "all %u templates are in use", CORE_TEMPLATES_MAX);
    log_info("Removing template '%s', the least recently used of %u", oldest->manifest.id,
             CORE_TEMPLATES_MAX);
    template_discard(oldest, NULL);
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

void template_made(struct template *t, bool saved, const struct error *err)
{
    t->build = template_build_free(t->build);
    t->state = saved ? TEMPLATE_READY : TEMPLATE_UNSAVABLE;
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

int template_acquire(struct core *core, const struct resolution *resolution,
                     const struct template_callbacks *cb, void *userdata,
                     struct template_wait **ret, struct error *err)
{
    const char *id = resolution->template_id;
    struct template_wait *wait;
    struct template *t;
    int r = 0;

    t = template_lookup(core, id);
    if (!t) {
        r = templates_evict(core, err);
        if (r < 0)
            return r;
        t = template_add(core, id);
        if (!t)
            return error_set(err, ENOMEM, "template '%s': out of memory", id);
    }
    wait = calloc(1, sizeof(*wait));
    if (!wait)
        return error_set(err, ENOMEM, "template '%s': out of memory", id);
    wait->cb = *cb;
    wait->userdata = userdata;
    if (t->state == TEMPLATE_UNCHECKED) {
        r = template_build_start(t, resolution, err);
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

static json_t *template_to_json(const struct template *t)
{
    static const char *const names[] = {
        [TEMPLATE_UNCHECKED] = "ready", [TEMPLATE_MAKING] = "making",
        [TEMPLATE_READY] = "ready",     [TEMPLATE_UNSAVABLE] = "unsavable",
        [TEMPLATE_DISCARDED] = "gone",
    };
    const struct origin *o = &t->manifest.origin;
    char created[32];
    uint64_t size = 0;

    for (size_t i = 0; i < t->manifest.n_files; i++)
        size += t->manifest.files[i].size_bytes;
    clock_format_wall(t->manifest.created_wall_usec, created, sizeof(created));
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:s, s:I}", "id",
                     t->manifest.id, "state", names[t->state], "image", o->image_name, "backend",
                     o->backend, "accelerator", o->accelerator, "kernel", o->kernel_version, "cpus",
                     (int)o->cpus, "memory_mib", (int)o->memory_mib, "disk_mib", (int)o->disk_mib,
                     "created", created, "size_bytes", (json_int_t)size);
}

json_t *core_templates_to_json(struct core *core)
{
    json_t *array = json_array();

    for (struct template *t = core->templates; t; t = t->next)
        (void)json_array_append_new(array, template_to_json(t));
    return array;
}

int core_template_remove(struct core *core, const char *id, struct error *err)
{
    struct template *t = template_lookup(core, id);

    if (!t)
        return error_set_code(err, ERR_TEMPLATE_NOT_FOUND, "template '%s': no such template", id);
    if (t->state == TEMPLATE_MAKING)
        return error_set_code(err, ERR_CONFLICT, "template '%s': is being made", id);
    log_info("Removing template '%s'", id);
    template_discard(t, NULL);
    return 0;
}
