#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/lifecycle.h"
#include "core/sandbox-private.h"
#include "core/snapshot-query.h"
#include "core/snapshots.h"
#include "core/take.h"

/*
 * Checkpoints: snapshots with a name that stay. Which one a sandbox's state follows is in its row;
 * each checkpoint remembers the one before it, so that all of them are a tree, across forks.
 */

/* A call of a client under way. It outlives the sandbox, which is found again by its id. */
struct call {
    struct core *core; /* weak */
    struct core_call cb;
    char sandbox[SANDBOX_ID_LENGTH + 1];
    char current[MANIFEST_ID_SIZE];
    char id[MANIFEST_ID_SIZE];
    struct sandbox_wait *wait; /* owned */
};

static struct call *call_new(struct core *core, const struct sandbox *sb,
                             const struct core_call *cb, struct error *err)
{
    struct call *call = calloc(1, sizeof(*call));

    if (!call) {
        (void)error_set(err, ENOMEM, "out of memory");
        return NULL;
    }
    call->core = core;
    call->cb = *cb;
    if (sb) {
        memcpy(call->sandbox, sb->id, sizeof(call->sandbox));
        memcpy(call->current, sb->checkpoint, sizeof(call->current));
    }
    return call;
}

static void call_end(struct call *call, json_t *result, const struct error *err)
{
    (void)sandbox_wait_free(call->wait);
    call->cb.on_done(result, err, call->cb.userdata);
    free(call);
}

static int call_failed(struct call *call, int r, const char *what, struct error *err)
{
    free(call);
    return error_set(err, -r, "%s: %s", what, errno_text(-r));
}

static struct sandbox *call_sandbox(const struct call *call, struct error *err)
{
    struct sandbox *sb = core_sandbox_by_id(call->core, call->sandbox);

    if (!sb)
        (void)error_set_code(err, ERR_SANDBOX_NOT_FOUND, "sandbox '%s': removed meanwhile",
                             call->sandbox);
    return sb;
}

static void on_call_progress(const char *step, int percent, void *userdata)
{
    struct call *call = userdata;

    if (call->cb.on_progress)
        call->cb.on_progress(step, percent, call->cb.userdata);
}

/* ---- checkpoint ---- */

static void on_taken(struct sandbox *sb, const struct snapshot_info *info, const struct error *err,
                     void *userdata)
{
    struct error store_err = {0};

    if (err) {
        call_end(userdata, NULL, err);
        return;
    }
    memcpy(sb->checkpoint, info->id, sizeof(sb->checkpoint));
    if (sandbox_store(sb, &store_err) < 0)
        log_sandbox(LOG_LEVEL_WARNING, sb->id, "Failed to store its row: %s, ignoring",
                    store_err.text);
    call_end(userdata, snapshot_to_json(info), NULL);
}

int sandbox_checkpoint(struct sandbox *sb, const char *name, const struct core_call *cb,
                       struct error *err)
{
    struct call *call;
    int r;

    if (name && !name_is_valid(name))
        return error_set(err, EINVAL,
                         "name '%.64s': expected [a-z0-9][a-z0-9._-]*, at most 63 bytes", name);
    call = call_new(sb->core, sb, cb, err);
    if (!call)
        return -ENOMEM;
    const struct take_options options = {
        .kind = SNAPSHOT_CHECKPOINT,
        .name = name,
        .on_progress = on_call_progress,
        .done = on_taken,
        .userdata = call,
    };
    r = take_start(sb, &options, err);
    if (r < 0)
        free(call);
    return r;
}

/* ---- rollback ---- */

static void on_back(struct sandbox *sb, const struct error *err, void *userdata)
{
    call_end(userdata, err || !sb ? NULL : sandbox_to_json(sb), err);
}

static int roll_back(struct call *call, const char *id, struct error *err)
{
    static const struct sandbox_wait_callbacks callbacks = {on_call_progress, on_back};
    struct sandbox *sb = call_sandbox(call, err);
    char old[MANIFEST_ID_SIZE];
    int r;

    if (!sb)
        return -ENOENT;
    if (sb->take || (sb->state != SANDBOX_RUNNING && sb->state != SANDBOX_PAUSED &&
                     sb->state != SANDBOX_STOPPED && sb->state != SANDBOX_FAILED))
        return error_set_code(err, ERR_CONFLICT, "sandbox '%s': it is %s", sb->id,
                              sb->take ? "being snapshotted" : sandbox_state_name(sb->state));
    memcpy(old, sb->snapshot, sizeof(old));
    (void)snprintf(sb->snapshot, sizeof(sb->snapshot), "%s", id);
    r = sandbox_event(sb, EVENT_ROLLBACK, NULL);
    if (r < 0) { /* it is what it was, and stands on what it stood on */
        memcpy(sb->snapshot, old, sizeof(old));
        return error_set(err, -r, "sandbox '%s': roll back: %s", sb->id, errno_text(-r));
    }
    snapshots_release(sb->core, old);
    r = sandbox_touch(sb, &callbacks, call, &call->wait, err);
    return r < 0 ? r : 0;
}

static void on_found(struct snapshot_found *found, const struct error *err, void *userdata)
{
    struct call *call = userdata;
    struct error why = {0};

    if (!err && found->info.kind != SNAPSHOT_CHECKPOINT) {
        (void)error_set_code(&why, ERR_SNAPSHOT_NOT_FOUND, "snapshot '%s': is no checkpoint",
                             found->info.id);
        err = &why;
    }
    if (!err && roll_back(call, found->info.id, &why) < 0)
        err = &why;
    if (err)
        call_end(call, NULL, err);
}

int sandbox_rollback(struct sandbox *sb, const char *checkpoint, const struct core_call *cb,
                     struct error *err)
{
    static const struct snapshot_find_callbacks find = {on_call_progress, on_found};
    const struct snapshot_query query = {.sandbox = sb->id, .checkpoint = sb->checkpoint};
    struct call *call = call_new(sb->core, sb, cb, err);
    int r;

    if (!call)
        return -ENOMEM;
    on_call_progress("check the snapshot", -1, call);
    r = snapshot_find(sb->core, &query, checkpoint, SNAPSHOT_CHECK_VERIFY, &find, call);
    return r < 0 ? call_failed(call, r, "roll back", err) : 0;
}

/* ---- lists ---- */

static void on_checkpoints(json_t *list, const struct error *err, void *userdata)
{
    struct call *call = userdata;
    json_t *result = NULL;

    if (!err) {
        result = json_pack("{s:o}", "checkpoints", list);
        if (result && call->current[0])
            (void)json_object_set_new(result, "current", json_string(call->current));
    }
    call_end(call, result, err);
}

int sandbox_checkpoints(struct sandbox *sb, const struct core_call *cb, struct error *err)
{
    const struct snapshot_query query = {.sandbox = sb->id, .checkpoint = sb->checkpoint};
    struct call *call = call_new(sb->core, sb, cb, err);
    int r;

    if (!call)
        return -ENOMEM;
    r = snapshot_list(sb->core, &query, on_checkpoints, call);
    return r < 0 ? call_failed(call, r, "list checkpoints", err) : 0;
}

static void on_snapshots(json_t *list, const struct error *err, void *userdata)
{
    call_end(userdata, err ? NULL : json_pack("{s:o}", "snapshots", list), err);
}

int core_snapshots(struct core *core, const char *tenant, const struct core_call *cb,
                   struct error *err)
{
    const struct snapshot_query query = {.tenant = tenant};
    struct call *call = call_new(core, NULL, cb, err);
    int r;

    if (!call)
        return -ENOMEM;
    r = snapshot_list(core, &query, on_snapshots, call);
    return r < 0 ? call_failed(call, r, "list snapshots", err) : 0;
}

/* ---- one of them ---- */

static void on_removed(const struct error *err, void *userdata)
{
    call_end(userdata, NULL, err);
}

static void on_found_to_remove(struct snapshot_found *found, const struct error *err,
                               void *userdata)
{
    struct call *call = userdata;
    const char *id = err ? "" : found->info.id;
    struct error why = {0};
    int r;

    if (!err && snapshots_in_use(call->core, id)) {
        (void)error_set_code(&why, ERR_SNAPSHOT_IN_USE,
                             "snapshot '%s': a sandbox needs it; remove that first", id);
        err = &why;
    }
    if (!err) {
        r = snapshots_remove(call->core, id, on_removed, call);
        if (r >= 0)
            return;
        (void)error_set(&why, -r, "snapshot '%s': %s", id, errno_text(-r));
        err = &why;
    }
    call_end(call, NULL, err);
}

/* Calls with the id of a snapshot. */
static int call_for(struct core *core, const char *tenant, const char *id,
                    enum snapshot_check check, const struct snapshot_find_callbacks *find,
                    const struct core_call *cb, struct error *err)
{
    const struct snapshot_query query = {.tenant = tenant};
    struct call *call = call_new(core, NULL, cb, err);
    int r;

    if (!call)
        return -ENOMEM;
    r = snapshot_find(core, &query, id, check, find, call);
    return r < 0 ? call_failed(call, r, "snapshots", err) : 0;
}

int core_snapshot_remove(struct core *core, const char *tenant, const char *id,
                         const struct core_call *cb, struct error *err)
{
    static const struct snapshot_find_callbacks find = {.done = on_found_to_remove};

    return call_for(core, tenant, id, SNAPSHOT_CHECK_NOT, &find, cb, err);
}

static void on_verified(struct snapshot_found *found, const struct error *err, void *userdata)
{
    call_end(userdata, err ? NULL : snapshot_to_json(&found->info), err);
}

int core_snapshot_verify(struct core *core, const char *tenant, const char *id,
                         const struct core_call *cb, struct error *err)
{
    static const struct snapshot_find_callbacks find = {on_call_progress, on_verified};

    if (cb->on_progress)
        cb->on_progress("verify", -1, cb->userdata);
    return call_for(core, tenant, id, SNAPSHOT_CHECK_VERIFY, &find, cb, err);
}

static void on_mended(struct snapshot_found *found, const struct error *err, void *userdata)
{
    struct error lost = {0};
    json_t *json;

    if (err) {
        error_copy(&lost, err);
        if (err->code == ERR_SNAPSHOT_INVALID)
            error_wrap(&lost, "it cannot be repaired, what it needs is lost");
        call_end(userdata, NULL, &lost);
        return;
    }
    json = snapshot_to_json(&found->info);
    (void)json_object_set_new(json, "repaired", json_boolean(found->mended));
    if (found->mended)
        (void)json_object_set_new(json, "damage", json_string(found->damage.text));
    call_end(userdata, json, NULL);
}

int core_snapshot_repair(struct core *core, const char *tenant, const char *id,
                         const struct core_call *cb, struct error *err)
{
    static const struct snapshot_find_callbacks find = {on_call_progress, on_mended};

    if (cb->on_progress)
        cb->on_progress("repair", -1, cb->userdata);
    return call_for(core, tenant, id, SNAPSHOT_CHECK_MEND, &find, cb, err);
}
