#include "core/snapshot-query.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/strv.h"
#include "model/access.h"

#define FOUND_MAX 65536u

/* What is seen of one snapshot; everything owned. */
struct found {
    struct snapshot_info info; /* with its own copy of meta */
    bool wanted;
};

struct query {
    struct core *core;                          /* weak, not for the worker */
    struct loop *loop;                          /* weak */
    struct snapshot_store *store;               /* weak */
    char *tenant, *sandbox, *checkpoint, *name; /* owned, may be NULL */
    enum snapshot_check check;
    _Atomic int percent; /* as last told */
    struct found *found; /* owned */
    size_t n_found, n_room;
    json_t *list;                 /* owned */
    struct snapshot_found result; /* owned */
    struct error err;
    snapshot_list_fn listed;
    struct snapshot_find_callbacks cb;
    void *userdata;
};

static void query_free(struct query *q)
{
    if (!q)
        return;
    for (size_t i = 0; i < q->n_found; i++)
        snapshot_info_done(&q->found[i].info);
    free(q->found);
    snapshot_info_done(&q->result.info);
    json_decref(q->list);
    free(q->tenant);
    free(q->sandbox);
    free(q->checkpoint);
    free(q->name);
    free(q);
}

static struct query *query_new(struct core *core, const struct snapshot_query *query,
                               void *userdata)
{
    struct query *q = calloc(1, sizeof(*q));

    if (!q)
        return NULL;
    q->core = core;
    q->loop = core->loop;
    q->store = core->snapshots;
    q->userdata = userdata;
    if (string_set(&q->tenant, query->tenant) < 0 || string_set(&q->sandbox, query->sandbox) < 0 ||
        string_set(&q->checkpoint, query->checkpoint) < 0) {
        query_free(q);
        return NULL;
    }
    return q;
}

static const char *meta_string(const struct snapshot_info *info, const char *key)
{
    const char *text = json_string_value(json_object_get(info->meta, key));

    return text ? text : "";
}

static bool is_of_tenant(const struct query *q, const struct snapshot_info *info)
{
    const char *tenant =
        json_string_value(json_object_get(json_object_get(info->meta, "spec"), "tenant"));

    return !q->tenant || strcmp(tenant ? tenant : TENANT_DEFAULT, q->tenant) == 0;
}

/* ---- on the worker ---- */

static void see(const struct snapshot_info *info, void *userdata)
{
    struct query *q = userdata;
    struct found *found;

    if (!is_of_tenant(q, info) || q->n_found >= FOUND_MAX)
        return;
    if (q->n_found == q->n_room) {
        size_t room = q->n_room ? q->n_room * 2 : 16;

        found = reallocarray(q->found, room, sizeof(*found));
        if (!found) {
            (void)error_set(&q->err, ENOMEM, "out of memory");
            return;
        }
        q->found = found;
        q->n_room = room;
    }
    found = &q->found[q->n_found];
    found->info = *info;
    found->info.meta = info->meta ? json_deep_copy(info->meta) : NULL;
    found->wanted = !q->sandbox;
    q->n_found++;
}

static struct found *find_id(struct query *q, const char *id)
{
    for (size_t i = 0; i < q->n_found; i++) {
        if (strcmp(q->found[i].info.id, id) == 0)
            return &q->found[i];
    }
    return NULL;
}

/* A checkpoint is wanted with all that its state goes back to. */
static void want_line(struct query *q, const char *id)
{
    struct found *found = find_id(q, id);

    while (found && !found->wanted && found->info.kind == SNAPSHOT_CHECKPOINT) {
        found->wanted = true;
        found = find_id(q, meta_string(&found->info, "checkpoint"));
    }
}

static int by_age(const void *a, const void *b)
{
    const struct found *left = a, *right = b;

    if (left->info.created_wall_usec == right->info.created_wall_usec)
        return strcmp(left->info.id, right->info.id);
    return left->info.created_wall_usec < right->info.created_wall_usec ? -1 : 1;
}

static int collect(struct query *q)
{
    int r = snapshot_each(q->store, see, q, &q->err);

    if (r < 0 || q->err.errnum)
        return r < 0 ? r : -q->err.errnum;
    if (q->n_found > 0)
        qsort(q->found, q->n_found, sizeof(*q->found), by_age);
    if (!q->sandbox)
        return 0;
    if (q->checkpoint)
        want_line(q, q->checkpoint);
    for (size_t i = 0; i < q->n_found; i++) {
        if (strcmp(q->found[i].info.sandbox, q->sandbox) == 0)
            want_line(q, q->found[i].info.id);
    }
    return 0;
}

json_t *snapshot_to_json(const struct snapshot_info *info)
{
    static const char *const kinds[] = {
        [SNAPSHOT_CHECKPOINT] = "checkpoint",
        [SNAPSHOT_HIBERNATED] = "hibernated",
        [SNAPSHOT_FORK] = "fork",
    };
    const char *after = meta_string(info, "checkpoint");
    char created[32];
    json_t *json;

    clock_format_wall(info->created_wall_usec, created, sizeof(created));
    json = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:b}", "id", info->id, "kind",
                     kinds[info->kind], "sandbox", info->sandbox, "image", info->origin.image_name,
                     "backend", info->origin.backend, "created", created, "memory_bytes",
                     (json_int_t)info->memory_bytes, "stored_bytes", (json_int_t)info->stored_bytes,
                     "compressed", info->compressed);
    if (!json)
        return NULL;
    if (info->name[0])
        (void)json_object_set_new(json, "name", json_string(info->name));
    if (after[0])
        (void)json_object_set_new(json, "after", json_string(after));
    if (info->parent.snapshot_id[0])
        (void)json_object_set_new(json, "parent", json_string(info->parent.snapshot_id));
    else
        (void)json_object_set_new(json, "template", json_string(info->parent.template_id));
    return json;
}

static void list_run(void *userdata)
{
    struct query *q = userdata;

    if (collect(q) < 0)
        return;
    q->list = json_array();
    for (size_t i = 0; i < q->n_found; i++) {
        if (q->found[i].wanted)
            (void)json_array_append_new(q->list, snapshot_to_json(&q->found[i].info));
    }
}

static void list_done(void *userdata, int cancelled)
{
    struct query *q = userdata;

    if (!cancelled && !q->core->closing)
        q->listed(TAKE_PTR(q->list), q->err.errnum ? &q->err : NULL, q->userdata);
    query_free(q);
}

int snapshot_list(struct core *core, const struct snapshot_query *query, snapshot_list_fn done,
                  void *userdata)
{
    struct query *q = query_new(core, query, userdata);
    int r;

    if (!q)
        return -ENOMEM;
    q->listed = done;
    r = workers_submit(core->io_workers, list_run, list_done, q);
    if (r < 0)
        query_free(q);
    return r;
}

/* ---- find ---- */

static struct found *match_name(struct query *q)
{
    struct found *match = find_id(q, q->name);

    if (match && match->wanted)
        return match;
    for (size_t i = q->n_found; i > 0; i--) {
        match = &q->found[i - 1];
        if (match->wanted && strcmp(match->info.name, q->name) == 0)
            return match;
    }
    return NULL;
}

/* Who may see all of them hears why one is not listed. */
static bool is_unreadable(struct query *q)
{
    struct error why = {0};

    if (q->tenant || q->sandbox || strlen(q->name) != MANIFEST_ID_SIZE - 1)
        return false;
    if (snapshot_verify(q->store, q->name, NULL, NULL, &why) >= 0 ||
        why.code != ERR_SNAPSHOT_INVALID)
        return false;
    error_copy(&q->err, &why);
    return true;
}

struct tell {
    struct query *query; /* weak: its end is posted after this */
    int percent;
};

static void on_tell(void *userdata)
{
    struct tell *tell = userdata;
    struct query *q = tell->query;

    if (!q->core->closing)
        q->cb.on_progress(q->check == SNAPSHOT_CHECK_MEND ? "repair" : "verify", tell->percent,
                          q->userdata);
    free(tell);
}

/* By any thread that reads. */
static void on_bytes(uint64_t done, uint64_t total, void *userdata)
{
    struct query *q = userdata;
    int percent = total > 0 ? (int)(done * 100 / total) : 0;
    struct tell *tell;

    if (!q->cb.on_progress || atomic_exchange(&q->percent, percent) == percent)
        return;
    tell = malloc(sizeof(*tell));
    if (!tell)
        return;
    *tell = (struct tell){q, percent};
    if (loop_post(q->loop, on_tell, tell) < 0)
        free(tell);
}

static void reread(const struct snapshot_info *info, void *userdata)
{
    struct snapshot_info *old = userdata;

    if (strcmp(info->id, old->id) != 0)
        return;
    json_decref(old->meta);
    *old = *info;
    old->meta = json_incref(info->meta);
}

static int check(struct query *q, struct snapshot_info *info)
{
    int r = 0;

    switch (q->check) {
    case SNAPSHOT_CHECK_NOT:
        snapshot_note_use(q->store, info->id);
        break;
    case SNAPSHOT_CHECK_VERIFY:
        r = snapshot_verify(q->store, info->id, on_bytes, q, &q->err);
        break;
    case SNAPSHOT_CHECK_MEND:
        r = snapshot_mend(q->store, info->id, on_bytes, q, &q->result.damage, &q->err);
        q->result.mended = r > 0;
        if (r > 0)
            r = snapshot_each(q->store, reread, info, &q->err);
        break;
    }
    return r;
}

static void find_run(void *userdata)
{
    struct query *q = userdata;
    struct found *match;

    if (collect(q) < 0)
        return;
    match = match_name(q);
    if (!match && is_unreadable(q))
        return;
    if (!match) {
        (void)error_set_code(&q->err, ERR_SNAPSHOT_NOT_FOUND, "snapshot '%.64s': not %s%s", q->name,
                             q->sandbox ? "one that this sandbox goes back to" : "there",
                             q->sandbox ? "; see 'hearth checkpoint ls'" : "");
        return;
    }
    if (check(q, &match->info) < 0)
        return;
    q->result.info = match->info;
    memset(&match->info, 0, sizeof(match->info));
}

static void find_done(void *userdata, int cancelled)
{
    struct query *q = userdata;

    if (!cancelled && !q->core->closing)
        q->cb.done(q->err.errnum ? NULL : &q->result, q->err.errnum ? &q->err : NULL, q->userdata);
    query_free(q);
}

int snapshot_find(struct core *core, const struct snapshot_query *query, const char *id_or_name,
                  enum snapshot_check check, const struct snapshot_find_callbacks *cb,
                  void *userdata)
{
    struct query *q = query_new(core, query, userdata);
    int r = q ? string_set(&q->name, id_or_name) : -ENOMEM;

    if (r >= 0) {
        q->check = check;
        q->percent = -1;
        q->cb = *cb;
        r = workers_submit(core->io_workers, find_run, find_done, q);
    }
    if (r < 0)
        query_free(q);
    return r;
}
