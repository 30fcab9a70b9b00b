#include <string.h>

#include "api/native/handlers.h"
#include "api/native/native.h"
#include "core/keys.h"

static void count_state(struct sandbox *sb, void *userdata)
{
    const char *state = sandbox_state_name(sandbox_get_state(sb));
    json_int_t before = json_integer_value(json_object_get(userdata, state));

    (void)json_object_set_new(userdata, state, json_integer(before + 1));
}

/* What the tenant holds, and what this key lets it hold (0: no limit). */
void handle_usage(struct request *req)
{
    const struct principal *principal = request_principal(req);
    const struct quota *quota = &principal->quota;
    struct core *core = native_of(req)->core;
    json_t *states = json_object();
    struct tenant_usage usage;

    core_tenant_usage(core, principal->tenant, &usage);
    access_sandbox_each(req, core, count_state, states);
    request_answer(req, 200,
                   json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:{s:I, s:I, s:I, s:I, s:I}}",
                             "tenant", principal->tenant, "sandboxes", (json_int_t)usage.sandboxes,
                             "cpus", (json_int_t)usage.cpus, "memory_mib",
                             (json_int_t)usage.memory_mib, "disk_mib", (json_int_t)usage.disk_mib,
                             "states", states, "quota", "sandboxes", (json_int_t)quota->sandboxes,
                             "cpus", (json_int_t)quota->cpus, "memory_mib",
                             (json_int_t)quota->memory_mib, "disk_mib", (json_int_t)quota->disk_mib,
                             "rate", (json_int_t)quota->rate));
}
