#include "core/fork.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/lifecycle.h"
#include "core/sandbox-private.h"
#include "core/snapshot-meta.h"
#include "core/snapshot-query.h"
#include "core/snapshots.h"
#include "core/take.h"
#include "core/wake.h"

/*
 * Theory of operation. One snapshot: taken of the parent now, or the one it sleeps on, or a
 * checkpoint. Then all children are restored from it at once, each a sandbox in state CREATING with
 * an identity of its own. The fork ends when the last of them runs or has failed; if one failed, or
 * nobody waits any more, the others are removed too. The snapshot is kept by the fork and by
 * children that still need it, and goes with the last of them unless it is a checkpoint.
 */
struct fork {
    struct core *core; /* weak */
    struct core_call cb;
    char parent[SANDBOX_ID_LENGTH + 1]; /* "": none */
    char snapshot[MANIFEST_ID_SIZE];
    char *name; /* owned, may be NULL */
    uint32_t count;
    int (*admit)(struct sandbox_spec *spec, uint32_t count, void *userdata, struct error *err);
    uint32_t n_left;                         /* children under way */
    char (*children)[SANDBOX_ID_LENGTH + 1]; /* owned; of those that run */
    uint32_t n_children;
    bool cancelled;
    struct error err;   /* the first */
    struct source *end; /* owned */
    struct fork *next;  /* owned list */
};

static void fork_free(struct fork *f)
{
    (void)source_free(f->end);
    free(f->children);
    free(f->name);
    free(f);
}

void forks_free(struct core *core)
{
    while (core->forks) {
        struct fork *f = core->forks;

        core->forks = f->next;
        fork_free(f);
    }
}

bool forks_use_snapshot(const struct core *core, const char *id)
{
    for (const struct fork *f = core->forks; f; f = f->next) {
        if (strcmp(f->snapshot, id) == 0)
            return true;
    }
    return false;
}

int forks_list_snapshots(const struct core *core, char ***list)
{
    int r = 0;

    for (const struct fork *f = core->forks; f && r >= 0; f = f->next)
        r = f->snapshot[0] ? strv_append(list, f->snapshot) : 0;
    return r;
}

static void fork_unlist(struct fork *f)
{
    for (struct fork **p = &f->core->forks; *p; p = &(*p)->next) {
        if (*p == f) {
            *p = f->next;
            return;
        }
    }
}

static void remove_children(struct fork *f)
{
    for (uint32_t i = 0; i < f->n_children; i++) {
        struct sandbox *sb = core_sandbox_by_id(f->core, f->children[i]);

        if (sb)
            (void)sandbox_remove(sb, NULL, NULL);
    }
}

static json_t *children_to_json(const struct fork *f)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < f->n_children; i++) {
        struct sandbox *sb = core_sandbox_by_id(f->core, f->children[i]);

        if (sb)
            (void)json_array_append_new(list, sandbox_to_json(sb));
    }
    return json_pack("{s:o}", "sandboxes", list);
}

static void fork_end(struct fork *f)
{
    bool failed = f->err.errnum != 0;

    fork_unlist(f);
    if (failed || f->cancelled)
        remove_children(f);
    snapshots_release(f->core, f->snapshot);
    if (!f->cancelled)
        f->cb.on_done(failed ? NULL : children_to_json(f), failed ? &f->err : NULL, f->cb.userdata);
    fork_free(f);
}

static int on_end(struct source *s, void *userdata)
{
    struct fork *f = userdata;

    (void)s;
    f->end = source_free(f->end);
    fork_end(f);
    return 0;
}

static void note_error(struct fork *f, const struct error *err)
{
    if (!f->err.errnum)
        error_copy(&f->err, err);
}

/* One child less is under way; the end comes from the loop, after whoever called us is done. */
static void fork_leave(struct fork *f)
{
    if (--f->n_left > 0)
        return;
    if (loop_add_defer(f->core->loop, "fork-end", on_end, f, &f->end) < 0)
        log_error("Failed to end a fork: out of memory");
}

static void on_progress(const char *step, int percent, void *userdata)
{
    struct fork *f = userdata;

    if (f->cb.on_progress && !f->cancelled)
        f->cb.on_progress(step, percent, f->cb.userdata);
}

/* ---- children ---- */

static void on_child(struct sandbox *sb, const struct error *err, void *userdata)
{
    struct fork *f = userdata;

    if (f->core->closing)
        return;
    if (err)
        note_error(f, err);
    else
        memcpy(f->children[f->n_children++], sb->id, sizeof(f->children[0]));
    fork_leave(f);
}

static int child_start(struct fork *f, struct sandbox_spec *spec, uint32_t number,
                       struct error *err)
{
    const struct wake_options options = {
        .snapshot = f->snapshot,
        .child = true,
        .on_progress = number == 1 ? on_progress : NULL,
        .done = on_child,
        .userdata = f,
    };
    struct sandbox *sb = NULL;
    int r = 0;

    free(spec->name);
    spec->name = NULL;
    if (f->name) {
        spec->name =
            f->count == 1 ? string_printf("%s", f->name) : string_printf("%s-%u", f->name, number);
        if (!spec->name || !name_is_valid(spec->name))
            r = error_set(err, EINVAL, "name '%.64s': too long for the children's", f->name);
    }
    if (r >= 0)
        r = sandbox_add(f->core, spec, &sb, err);
    if (r < 0)
        return r;
    memcpy(sb->restored_from, f->snapshot, sizeof(sb->restored_from)); /* needs it */
    f->n_left++;
    r = wake_start(sb, &options, err);
    if (r < 0) {
        f->n_left--;
        sandbox_discard(sb);
        return r;
    }
    return 0;
}

static void start_children(struct fork *f, struct sandbox_spec *spec)
{
    struct error err = {0};
    int r = fault_at("fork-children");

    spec->transient = false; /* somebody wants to keep it */
    if (r < 0)
        (void)error_set(&err, -r, "fork: %s", errno_text(-r));
    if (r >= 0 && f->admit && !f->cancelled)
        r = f->admit(spec, f->count, f->cb.userdata, &err);
    f->n_left++; /* held until all are under way */
    for (uint32_t i = 1; r >= 0 && i <= f->count && !f->cancelled; i++)
        r = child_start(f, spec, i, &err);
    if (r < 0)
        note_error(f, &err);
    fork_leave(f);
}

/* ---- the snapshot ---- */

static void with_snapshot(struct fork *f, const struct snapshot_info *info, const struct error *err)
{
    struct snapshot_meta meta = {0};
    struct error why = {0};

    if (!err && snapshot_meta_parse(info->meta, &meta, &why) < 0)
        err = &why;
    if (err) {
        note_error(f, err);
        f->n_left = 1;
        fork_leave(f);
        return;
    }
    memcpy(f->snapshot, info->id, sizeof(f->snapshot));
    start_children(f, &meta.spec);
    snapshot_meta_done(&meta);
}

static void on_taken(struct sandbox *sb, const struct snapshot_info *info, const struct error *err,
                     void *userdata)
{
    (void)sb;
    with_snapshot(userdata, info, err);
}

static void on_found(struct snapshot_found *found, const struct error *err, void *userdata)
{
    with_snapshot(userdata, err ? NULL : &found->info, err);
}

static int fork_begin(struct fork *f, const struct fork_options *options, struct error *err)
{
    struct sandbox *parent = options->parent;
    const struct take_options take = {
        .kind = SNAPSHOT_FORK,
        .on_progress = on_progress,
        .done = on_taken,
        .userdata = f,
    };
    const struct snapshot_query query = {
        .tenant = options->tenant,
        .sandbox = parent ? parent->id : NULL,
        .checkpoint = parent ? parent->checkpoint : NULL,
    };
    const struct snapshot_query any = {.tenant = options->tenant};
    static const struct snapshot_find_callbacks find = {.done = on_found};
    int r;

    if (options->snapshot)
        r = snapshot_find(f->core, &query, options->snapshot, SNAPSHOT_CHECK_NOT, &find, f);
    else if (parent->state == SANDBOX_PAUSED) /* no need to wake it */
        r = snapshot_find(f->core, &any, parent->snapshot, SNAPSHOT_CHECK_NOT, &find, f);
    else
        return take_start(parent, &take, err);
    return r < 0 ? error_set(err, -r, "fork: %s", errno_text(-r)) : 0;
}

int core_fork(struct core *core, const struct fork_options *options, const struct core_call *call,
              struct fork **ret, struct error *err)
{
    struct fork *f;
    int r;

    if (options->count < 1 || options->count > FORK_CHILDREN_MAX)
        return error_set(err, EINVAL, "'count': %u is not one of 1 to %u", options->count,
                         FORK_CHILDREN_MAX);
    if (core_count_sandboxes(core) + options->count > core->max_sandboxes)
        return error_set_code(err, ERR_TOO_MANY, "there are %zu sandboxes, and %u more than %u",
                              core_count_sandboxes(core), options->count, core->max_sandboxes);
    f = calloc(1, sizeof(*f));
    if (f)
        f->children = calloc(options->count, sizeof(f->children[0]));
    if (!f || !f->children || string_set(&f->name, options->name) < 0) {
        if (f)
            fork_free(f);
        return error_set(err, ENOMEM, "fork: out of memory");
    }
    f->core = core;
    f->cb = *call;
    f->count = options->count;
    f->admit = options->admit;
    if (options->parent) {
        memcpy(f->parent, options->parent->id, sizeof(f->parent));
        if (options->parent->state == SANDBOX_PAUSED) /* kept from here on */
            memcpy(f->snapshot, options->parent->snapshot, sizeof(f->snapshot));
    }
    f->next = core->forks;
    core->forks = f;
    r = fork_begin(f, options, err);
    if (r < 0) {
        fork_unlist(f);
        fork_free(f);
        return r;
    }
    *ret = f;
    return 0;
}

void core_fork_cancel(struct fork *f)
{
    f->cancelled = true;
}
