#include "core/snapshot-meta.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "model/fields.h"

#define META_VERSION 1

json_t *snapshot_meta_make(const struct sandbox *sb)
{
    json_t *spec = sandbox_spec_to_json(&sb->spec), *sessions = sandbox_sessions_record(sb);
    json_t *json = NULL;

    if (spec && sessions)
        json = json_pack("{s:i, s:O, s:O, s:s, s:s, s:I}", "version", META_VERSION, "spec", spec,
                         "sessions", sessions, "template", sb->template_id, "checkpoint",
                         sb->checkpoint, "frozen_usec", (json_int_t)clock_wall_usec());
    json_decref(spec);
    json_decref(sessions);
    return json;
}

void snapshot_meta_done(struct snapshot_meta *m)
{
    sandbox_spec_done(&m->spec);
}

int snapshot_meta_parse(const json_t *json, struct snapshot_meta *ret, struct error *err)
{
    struct raw {
        uint32_t version;
        const json_t *spec, *sessions;
        char *template, *checkpoint;
        uint64_t frozen_usec;
    } raw = {0};
    static const struct field fields[] = {
        {"version", FIELD_U32, offsetof(struct raw, version), META_VERSION, META_VERSION, true},
        {"spec", FIELD_JSON, offsetof(struct raw, spec), 0, 0, true},
        {"sessions", FIELD_JSON, offsetof(struct raw, sessions), 0, 0, true},
        {"template", FIELD_STRING, offsetof(struct raw, template), 0, MANIFEST_ID_SIZE - 1, true},
        {"checkpoint", FIELD_STRING, offsetof(struct raw, checkpoint), 0, MANIFEST_ID_SIZE - 1,
         true},
        {"frozen_usec", FIELD_U64, offsetof(struct raw, frozen_usec), 0, INT64_MAX, true},
    };
    struct error why = {0};
    int r = json ? fields_decode(json, fields, ARRAY_SIZE(fields), &raw, &why)
                 : error_set(&why, EINVAL, "it says nothing of its sandbox");

    memset(ret, 0, sizeof(*ret));
    if (r >= 0 && !json_is_array(raw.sessions))
        r = error_set(&why, EINVAL, "'sessions': is no array");
    if (r >= 0) {
        sandbox_spec_init(&ret->spec);
        r = sandbox_spec_from_stored(raw.spec, &ret->spec, &why);
        if (r < 0)
            error_wrap(&why, "'spec'");
    }
    if (r >= 0) {
        (void)snprintf(ret->template_id, sizeof(ret->template_id), "%s", raw.template);
        (void)snprintf(ret->checkpoint, sizeof(ret->checkpoint), "%s", raw.checkpoint);
        ret->frozen_wall_usec = raw.frozen_usec;
        ret->sessions = raw.sessions;
    } else {
        snapshot_meta_done(ret);
        (void)error_set_code(err, ERR_SNAPSHOT_INVALID, "what it says of its sandbox: %s",
                             why.text);
    }
    free(raw.template);
    free(raw.checkpoint);
    return r < 0 ? -EINVAL : 0;
}
