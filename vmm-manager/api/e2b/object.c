#include "api/e2b/object.h"

#include <string.h>

#include "api/e2b/template-build.h"
#include "base/clock.h"
#include "base/strv.h"
#include "core/keys.h"
#include "model/text.h"

#define CLIENT_ID "hearth"
/* Sandboxes without an end have one for E2B's clients, who must be told some. */
#define FAR_AWAY_USEC (UINT64_C(365) * 24 * 3600 * USEC_PER_SEC)

const char *e2b_template_of(struct sandbox *sb, char buf[static 64])
{
    const struct sandbox_spec *spec = sandbox_get_spec(sb);
    const char *shown = spec->template ? e2b_name_shown(spec->template, buf) : NULL;

    if (shown)
        return shown;
    return spec->template ? spec->template : spec->image ? spec->image : "base";
}

bool e2b_is_paused(struct sandbox *sb)
{
    enum sandbox_state state = sandbox_get_state(sb);

    return state == SANDBOX_PAUSED || state == SANDBOX_PAUSING;
}

json_t *e2b_sandbox_json(struct core *core, struct sandbox *sb)
{
    char token[SANDBOX_TOKEN_SIZE], traffic[SANDBOX_TOKEN_SIZE], name[E2B_NAME_SIZE];

    core_sandbox_token(core, sandbox_id(sb), E2B_TOKEN_PURPOSE, token);
    core_sandbox_token(core, sandbox_id(sb), E2B_TRAFFIC_PURPOSE, traffic);
    return json_pack("{s:o, s:s, s:s, s:s, s:s, s:s, s:n}", "templateID",
                     json_text(e2b_template_of(sb, name)), "sandboxID", sandbox_id(sb), "clientID",
                     CLIENT_ID, "envdVersion", E2B_ENVD_VERSION, "envdAccessToken", token,
                     "trafficAccessToken", traffic, "domain");
}

static json_t *metadata_json(const struct sandbox_spec *spec)
{
    json_t *o = json_object();

    for (size_t i = 0; o && spec->metadata && spec->metadata[i]; i++) {
        size_t length = strcspn(spec->metadata[i], "=");
        _cleanup_free_ char *key = strndup(spec->metadata[i], length);

        if (key && spec->metadata[i][length])
            (void)json_object_set_new(o, key, json_text(spec->metadata[i] + length + 1));
    }
    return o;
}

json_t *e2b_listed_json(struct sandbox *sb)
{
    const struct sandbox_spec *spec = sandbox_get_spec(sb);
    uint64_t created = sandbox_created_wall_usec(sb), end = sandbox_expires_wall_usec(sb);
    char started[40], ends[40], name[E2B_NAME_SIZE];

    clock_format_wall(created, started, sizeof(started));
    clock_format_wall(end ? end : created + FAR_AWAY_USEC, ends, sizeof(ends));
    json_t *o = json_pack(
        "{s:o, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:s, s:o}", "templateID",
        json_text(e2b_template_of(sb, name)), "sandboxID", sandbox_id(sb), "clientID", CLIENT_ID,
        "startedAt", started, "endAt", ends, "envdVersion", E2B_ENVD_VERSION, "cpuCount",
        (int)spec->cpus, "memoryMB", (int)spec->memory_mib, "diskSizeMB", (int)spec->disk_mib,
        "state", e2b_is_paused(sb) ? "paused" : "running", "metadata", metadata_json(spec));
    if (o && spec->template)
        (void)json_object_set_new(o, "alias", json_text(e2b_template_of(sb, name)));
    return o;
}

json_t *e2b_detail_json(struct core *core, struct sandbox *sb)
{
    const struct sandbox_spec *spec = sandbox_get_spec(sb);
    json_t *o = e2b_listed_json(sb);
    char token[SANDBOX_TOKEN_SIZE];

    core_sandbox_token(core, sandbox_id(sb), E2B_TOKEN_PURPOSE, token);
    if (!o || json_object_set_new(o, "envdAccessToken", json_string(token)) < 0 ||
        json_object_set_new(o, "domain", json_null()) < 0 ||
        json_object_set_new(o, "allowInternetAccess", json_false()) < 0 ||
        json_object_set_new(o, "lifecycle",
                            json_pack("{s:s, s:b}", "onTimeout",
                                      sandbox_spec_hibernates(spec) ? "pause" : "kill",
                                      "autoResume", true)) < 0) {
        json_decref(o);
        return NULL;
    }
    return o;
}
