#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "core/sandbox-private.h"
#include "model/text.h"

static void set_time(json_t *json, const char *key, uint64_t wall_usec)
{
    char text[32];

    clock_format_wall(wall_usec, text, sizeof(text));
    (void)json_object_set_new(json, key, json_string(text));
}

static json_t *msec(uint64_t usec)
{
    return json_real((double)(usec / 100) / 10);
}

static json_t *timings_to_json(const struct timings *t)
{
    json_t *json = json_object();
    enum { CLAIMED_STEP = 4 }; /* the ones before it are of a creation only */
    const struct {
        const char *key;
        uint64_t usec;
    } steps[] = {
        {"queue_ms", t->queue_usec},       {"resolve_ms", t->resolve_usec},
        {"template_ms", t->template_usec}, {"disk_ms", t->disk_usec},
        {"restore_ms", t->restore_usec},   {"console_ms", t->console_usec},
        {"total_ms", t->total_usec},
    };

    for (size_t i = t->claimed ? CLAIMED_STEP : 0; i < ARRAY_SIZE(steps); i++)
        (void)json_object_set_new(json, steps[i].key, msec(steps[i].usec));
    (void)json_object_set_new(json, "cold", json_boolean(t->cold));
    (void)json_object_set_new(json, "claimed", json_boolean(t->claimed));
    return json;
}

static json_t *figures_to_json(const struct take_figures *f)
{
    json_t *json =
        json_pack("{s:I, s:I, s:o, s:o, s:o, s:o}", "changed_bytes", (json_int_t)f->changed_bytes,
                  "written_bytes", (json_int_t)f->written_bytes, "freeze_ms", msec(f->freeze_usec),
                  "memory_ms", msec(f->memory_usec), "disk_ms", msec(f->disk_usec), "seal_ms",
                  msec(f->seal_usec));

    if (json && f->still_usec)
        (void)json_object_set_new(json, "still_ms", msec(f->still_usec));
    return json;
}

json_t *sandbox_to_json(const struct sandbox *sb)
{
    /* The spec writes name, image, user, workdir and env the way they came in. */
    json_t *json = sandbox_spec_to_json(&sb->spec);
    uint64_t expires = sandbox_expires_wall_usec(sb);

    if (!json)
        return NULL;
    (void)json_object_set_new(json, "id", json_string(sb->id));
    (void)json_object_set_new(json, "state", json_string(sandbox_state_name(sb->state)));
    (void)json_object_set_new(json, "tenant", json_string(sandbox_tenant(sb)));
    set_time(json, "created", sb->created_wall_usec);
    if (expires)
        set_time(json, "expires", expires);
    if (sb->slot) {
        (void)json_object_set_new(json, "backend", json_string(sb->origin.backend));
        (void)json_object_set_new(json, "accelerator", json_string(sb->origin.accelerator));
        (void)json_object_set_new(json, "image", json_string(sb->origin.image_name));
        (void)json_object_set_new(json, "cpus", json_integer(sb->origin.cpus));
        (void)json_object_set_new(json, "memory_mib", json_integer(sb->origin.memory_mib));
        (void)json_object_set_new(json, "disk_mib", json_integer(sb->origin.disk_mib));
    }
    if (sb->template_id[0])
        (void)json_object_set_new(json, "template", json_string(sb->template_id));
    else
        (void)json_object_del(json, "template");
    if (sb->snapshot[0])
        (void)json_object_set_new(json, "snapshot", json_string(sb->snapshot));
    if (sb->checkpoint[0])
        (void)json_object_set_new(json, "checkpoint", json_string(sb->checkpoint));
    if (sb->slept_wall_usec)
        set_time(json, "slept", sb->slept_wall_usec);
    if (sb->woken_wall_usec)
        set_time(json, "woken", sb->woken_wall_usec);
    if (sb->vm.pid > 0)
        (void)json_object_set_new(json, "pid", json_integer(sb->vm.pid));
    if (sb->state == SANDBOX_FAILED || (sb->state == SANDBOX_PAUSED && sb->failure.errnum))
        (void)json_object_set_new(json, "error",
                                  json_pack("{s:s, s:o}", "code", error_code_name(sb->failure.code),
                                            "message", json_text(sb->failure.text)));
    (void)json_object_set_new(json, "timings", timings_to_json(&sb->timings));
    if (sb->taken.written_bytes)
        (void)json_object_set_new(json, "last_snapshot", figures_to_json(&sb->taken));
    if (!json_object_get(json, "env"))
        (void)json_object_set_new(json, "env", json_object());
    return json;
}

/* ---- kept as text ---- */

/*
 * What it says changes with its row (sandbox_store() counts, and so does a take), and with the few
 * things that no row holds. With a sanitizer every use is compared with a fresh one, so that a
 * change which goes past both does not go unseen by the tests.
 */
struct sandbox_text {
    uint64_t revision, expires;
    enum sandbox_state state;
    int errnum;
    pid_t pid;
    size_t size;
    char *data; /* owned */
};

void sandbox_text_free(struct sandbox *sb)
{
    if (sb->text)
        free(sb->text->data);
    free(sb->text);
    sb->text = NULL;
}

static char *fresh_text(const struct sandbox *sb)
{
    json_t *json = sandbox_to_json(sb);
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;

    json_decref(json);
    return text;
}

static bool is_current(const struct sandbox *sb)
{
    const struct sandbox_text *t = sb->text;
    bool current = t && t->data && t->revision == sb->revision && t->state == sb->state &&
                   t->pid == sb->vm.pid && t->errnum == sb->failure.errnum &&
                   t->expires == sandbox_expires_wall_usec(sb);

#ifdef __SANITIZE_ADDRESS__
    if (current) {
        _cleanup_free_ char *now = fresh_text(sb);
        assert(!now || strcmp(now, t->data) == 0);
    }
#endif
    return current;
}

const char *sandbox_to_text(struct sandbox *sb, size_t *ret_size)
{
    if (!sb->text)
        sb->text = calloc(1, sizeof(*sb->text));
    if (!sb->text)
        return NULL;
    if (!is_current(sb)) {
        free(sb->text->data);
        *sb->text = (struct sandbox_text){
            .revision = sb->revision,
            .expires = sandbox_expires_wall_usec(sb),
            .state = sb->state,
            .errnum = sb->failure.errnum,
            .pid = sb->vm.pid,
            .data = fresh_text(sb),
        };
        sb->text->size = sb->text->data ? strlen(sb->text->data) : 0;
    }
    *ret_size = sb->text->size;
    return sb->text->data;
}
