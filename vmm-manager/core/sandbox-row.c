#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/sandbox-private.h"

/* A sandbox as its row in the store, and back. */

#define TIMINGS_SIZE 256
#define IDENTITY_SIZE 192
#define TIMINGS_FORMAT "%llu %llu %llu %llu %llu %llu %llu %d %d"

static void format_timings(const struct timings *t, char text[static TIMINGS_SIZE])
{
    (void)snprintf(text, TIMINGS_SIZE, TIMINGS_FORMAT, (unsigned long long)t->queue_usec,
                   (unsigned long long)t->resolve_usec, (unsigned long long)t->template_usec,
                   (unsigned long long)t->disk_usec, (unsigned long long)t->restore_usec,
                   (unsigned long long)t->console_usec, (unsigned long long)t->total_usec, t->cold,
                   t->claimed);
}

static void format_identity(const struct link_identity *identity, char text[static IDENTITY_SIZE])
{
    (void)snprintf(text, IDENTITY_SIZE, "%s %s %s", identity->machine_id, identity->boot_id,
                   identity->hostname);
}

int sandbox_store(struct sandbox *sb, struct error *err)
{
    json_t *spec_json = sandbox_spec_to_json(&sb->spec);
    json_t *origin_json = sb->slot ? origin_to_json(&sb->origin) : NULL;
    _cleanup_free_ char *spec = spec_json ? json_dumps(spec_json, JSON_COMPACT) : NULL;
    _cleanup_free_ char *origin = origin_json ? json_dumps(origin_json, JSON_COMPACT) : NULL;
    char timings[TIMINGS_SIZE], identity[IDENTITY_SIZE];

    format_identity(&sb->identity, identity);
    sb->revision++;
    json_decref(spec_json);
    json_decref(origin_json);
    if (!spec || (sb->slot && !origin))
        return error_set(err, ENOMEM, "sandbox '%s': out of memory", sb->id);
    format_timings(&sb->timings, timings);
    const struct sandbox_row row = {
        .id = sb->id,
        .state = sb->state,
        .spec = spec,
        .origin = origin ? origin : "",
        .template_id = sb->template_id,
        .error_code = sb->failure.errnum ? error_code_name(sb->failure.code) : "",
        .error_text = sb->failure.errnum ? sb->failure.text : "",
        .timings = timings,
        .vm_exists = sb->vm_exists,
        .created_wall_usec = sb->created_wall_usec,
        .identity = identity,
        .held = sb->held,
        .snapshot = sb->snapshot,
        .restored_from = sb->restored_from,
        .checkpoint = sb->checkpoint,
        .slept_wall_usec = sb->slept_wall_usec,
        .woken_wall_usec = sb->woken_wall_usec,
        .pooled = sb->pooled,
    };
    return store_sandbox_put(sb->core->store, &row, err);
}

int sandbox_store_claim(struct sandbox *sb, struct error *err)
{
    json_t *json = sandbox_spec_to_json(&sb->spec);
    _cleanup_free_ char *spec = json ? json_dumps(json, JSON_COMPACT) : NULL;
    char timings[TIMINGS_SIZE], identity[IDENTITY_SIZE];
    const struct sandbox_row row = {
        .id = sb->id,
        .spec = spec,
        .timings = timings,
        .created_wall_usec = sb->created_wall_usec,
        .identity = identity,
    };

    json_decref(json);
    sb->revision++;
    if (!spec)
        return error_set(err, ENOMEM, "sandbox '%s': out of memory", sb->id);
    format_timings(&sb->timings, timings);
    format_identity(&sb->identity, identity);
    return store_sandbox_claim(sb->core->store, &row, err);
}

static void load_timings(const char *text, struct timings *ret)
{
    unsigned long long v[7] = {0};
    int cold = 0, claimed = 0;

    /* A row of old has no `claimed`. */
    if (sscanf(text, TIMINGS_FORMAT, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &cold,
               &claimed) < 8)
        return;
    *ret = (struct timings){v[0], v[1], v[2], v[3], v[4], v[5], v[6], cold != 0, claimed != 0};
}

/* A row of old has none: then the new one of sandbox_new() stays. */
static void load_identity(const char *text, struct link_identity *ret)
{
    struct link_identity have = {0};

    if (sscanf(text, "%32s %36s %63s", have.machine_id, have.boot_id, have.hostname) == 3)
        *ret = have;
}

static int load_spec(const char *text, struct sandbox_spec *ret, struct error *err)
{
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    int r;

    if (!json)
        return error_set(err, EINVAL, "its specification is no JSON");
    sandbox_spec_init(ret);
    r = sandbox_spec_from_stored(json, ret, err);
    if (r < 0)
        sandbox_spec_done(ret);
    json_decref(json);
    return r;
}

int sandbox_from_row(struct core *core, const struct sandbox_row *row, struct sandbox **ret,
                     struct error *err)
{
    struct sandbox_spec spec;
    struct sandbox *sb = NULL;
    int r;

    if (strlen(row->id) > SANDBOX_ID_LENGTH)
        return error_set(err, EINVAL, "its id is too long");
    r = load_spec(row->spec, &spec, err);
    if (r < 0)
        return r;
    r = sandbox_new(core, &spec, row->id, &sb, err);
    sandbox_spec_done(&spec);
    if (r < 0)
        return r;
    if (row->origin[0]) {
        r = origin_parse(row->origin, &sb->origin, err);
        if (r < 0) {
            (void)sandbox_free(sb);
            return r;
        }
        sb->slot = core_slot(core, sb->origin.backend);
    }
    sb->created_wall_usec = row->created_wall_usec;
    sb->vm_exists = row->vm_exists;
    sb->pooled = row->pooled;
    (void)snprintf(sb->template_id, sizeof(sb->template_id), "%s", row->template_id);
    load_timings(row->timings, &sb->timings);
    load_identity(row->identity, &sb->identity);
    sb->held = row->held;
    (void)snprintf(sb->snapshot, sizeof(sb->snapshot), "%s", row->snapshot);
    (void)snprintf(sb->restored_from, sizeof(sb->restored_from), "%s", row->restored_from);
    (void)snprintf(sb->checkpoint, sizeof(sb->checkpoint), "%s", row->checkpoint);
    sb->slept_wall_usec = row->slept_wall_usec;
    sb->woken_wall_usec = row->woken_wall_usec;
    if (row->error_code[0])
        (void)error_set_code(&sb->failure, error_code_from_name(row->error_code), "%s",
                             row->error_text);
    *ret = sb;
    return 0;
}
