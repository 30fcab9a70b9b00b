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
    const struct {
        const char *key;
        uint64_t usec;
    } steps[] = {
        {"queue_ms", t->queue_usec},       {"resolve_ms", t->resolve_usec},
        {"template_ms", t->template_usec}, {"disk_ms", t->disk_usec},
        {"restore_ms", t->restore_usec},   {"console_ms", t->console_usec},
        {"total_ms", t->total_usec},
    };

    for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
        (void)json_object_set_new(json, steps[i].key, msec(steps[i].usec));
    (void)json_object_set_new(json, "cold", json_boolean(t->cold));
    (void)json_object_set_new(json, "claimed", json_boolean(t->claimed));
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
    if (!json_object_get(json, "env"))
        (void)json_object_set_new(json, "env", json_object());
    return json;
}
