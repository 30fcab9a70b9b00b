#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/snapshot-meta.h"
#include "model/fields.h"
#include "model/text.h"

/* Sessions of a sandbox as JSON in a snapshot, and back. */

#define LINE_MAX                                                                                   \
    (16u * 1024u) /* of a command's text: all of a snapshot's must fit its manifest                \
                   */

static json_t *env_to_json(char *const *env)
{
    json_t *array = json_array();

    for (size_t i = 0; array && env && env[i]; i++)
        (void)json_array_append_new(array, json_bytes(env[i], strlen(env[i])));
    return array;
}

static json_t *record_to_json(const struct sandbox_session *s)
{
    const struct session_record *record = s->session ? session_get_record(s->session) : &s->record;
    json_t *json = json_pack(
        "{s:s, s:b, s:s*, s:s*, s:o, s:i, s:i, s:I, s:I, s:I, s:I, s:b, s:[I,I,I], s:I, s:I, s:I, "
        "s:I}",
        "name", s->name, "tty", s->kind == SESSION_TTY, "user", s->user, "cwd", s->cwd, "env",
        env_to_json(s->env), "rows", (int)s->rows, "cols", (int)s->cols, "created_usec",
        (json_int_t)s->created_wall_usec, "process_id", (json_int_t)record->process_id,
        "control_offset", (json_int_t)record->control_offset, "command",
        (json_int_t)record->command, "running", record->running, "start",
        (json_int_t)record->start[0], (json_int_t)record->start[1], (json_int_t)record->start[2],
        "started_usec", (json_int_t)record->started_wall_usec, "timeout_ms",
        (json_int_t)record->timeout_msec, "line_start", (json_int_t)record->line_start, "line_size",
        (json_int_t)record->line_size);

    if (json && record->line && record->line_size <= LINE_MAX)
        (void)json_object_set_new(json, "line",
                                  json_bytes(record->line, (size_t)record->line_size));
    return json;
}

json_t *sandbox_sessions_record(const struct sandbox *sb)
{
    json_t *array = json_array();

    for (struct sandbox_session *s = sb->sessions; array && s; s = s->next) {
        json_t *json = s->removed ? NULL : record_to_json(s);

        if (json)
            (void)json_array_append_new(array, json);
    }
    return array;
}

/* ---- back ---- */

struct raw_session {
    char *name, *user, *cwd;
    char **env;
    bool tty, running;
    uint16_t rows, cols;
    uint64_t created, process_id, control_offset, command, started, timeout, line_start, line_size;
    const json_t *start, *line;
};

static const struct field session_fields[] = {
    {"name", FIELD_NAME, offsetof(struct raw_session, name), 1, 63, true},
    {"tty", FIELD_BOOL, offsetof(struct raw_session, tty), 0, 0, true},
    {"user", FIELD_STRING, offsetof(struct raw_session, user), 1, 128, false},
    {"cwd", FIELD_STRING, offsetof(struct raw_session, cwd), 1, 4095, false},
    {"env", FIELD_STRV, offsetof(struct raw_session, env), 0, SPEC_ENV_MAX * 2, true},
    {"rows", FIELD_U16, offsetof(struct raw_session, rows), 0, UINT16_MAX, true},
    {"cols", FIELD_U16, offsetof(struct raw_session, cols), 0, UINT16_MAX, true},
    {"created_usec", FIELD_U64, offsetof(struct raw_session, created), 0, INT64_MAX, true},
    {"process_id", FIELD_U64, offsetof(struct raw_session, process_id), 0, INT64_MAX, true},
    {"control_offset", FIELD_U64, offsetof(struct raw_session, control_offset), 0, INT64_MAX, true},
    {"command", FIELD_U64, offsetof(struct raw_session, command), 0, INT64_MAX, true},
    {"running", FIELD_BOOL, offsetof(struct raw_session, running), 0, 0, true},
    {"start", FIELD_JSON, offsetof(struct raw_session, start), 0, 0, true},
    {"started_usec", FIELD_U64, offsetof(struct raw_session, started), 0, INT64_MAX, true},
    {"timeout_ms", FIELD_U64, offsetof(struct raw_session, timeout), 0, INT64_MAX, true},
    {"line_start", FIELD_U64, offsetof(struct raw_session, line_start), 0, INT64_MAX, true},
    {"line_size", FIELD_U64, offsetof(struct raw_session, line_size), 0, INT64_MAX, true},
    {"line", FIELD_JSON, offsetof(struct raw_session, line), 0, 0, false},
};

static void raw_done(struct raw_session *raw)
{
    free(raw->name);
    free(raw->user);
    free(raw->cwd);
    (void)strv_free(raw->env);
}

static int restore_one(struct sandbox *sb, const json_t *json, uint64_t asleep_usec,
                       struct error *err)
{
    struct raw_session raw = {0};
    _cleanup_free_ char *owned = NULL;
    const char *line = NULL;
    size_t line_size = 0;
    int r = fields_decode(json, session_fields, ARRAY_SIZE(session_fields), &raw, err);

    if (r >= 0 && json_array_size(raw.start) != 3)
        r = error_set(err, EINVAL, "'start': is no array of three");
    if (r >= 0 && raw.line && json_bytes_get(raw.line, &line, &line_size, &owned) < 0)
        r = error_set(err, EINVAL, "'line': is no bytes");
    if (r >= 0) {
        const struct session_spec spec = {
            .name = raw.name,
            .kind = raw.tty ? SESSION_TTY : SESSION_PIPE,
            .user = raw.user,
            .cwd = raw.cwd,
            .env = raw.env,
            .rows = raw.rows,
            .cols = raw.cols,
        };
        struct session_record record = {
            .process_id = raw.process_id,
            .control_offset = raw.control_offset,
            .command = raw.command,
            .running = raw.running,
            .started_wall_usec = raw.started ? raw.started + asleep_usec : 0,
            .timeout_msec = raw.timeout,
            .line = line && line_size == raw.line_size ? (const uint8_t *)line : NULL,
            .line_start = raw.line_start,
            .line_size = raw.line_size,
        };

        for (size_t i = 0; i < 3; i++)
            record.start[i] = (uint64_t)json_integer_value(json_array_get(raw.start, i));
        r = sandbox_session_put(sb, &spec, &record, raw.created, err);
    }
    raw_done(&raw);
    return r;
}

int sandbox_sessions_restore(struct sandbox *sb, const struct snapshot_meta *m, struct error *err)
{
    uint64_t now = clock_wall_usec();
    uint64_t asleep = now > m->frozen_wall_usec ? now - m->frozen_wall_usec : 0;
    const json_t *json;
    size_t i;
    int r;

    sandbox_sessions_forget(sb);
    json_array_foreach(m->sessions, i, json)
    {
        r = restore_one(sb, json, asleep, err);
        if (r < 0) {
            error_wrap(err, "sandbox '%s': session %zu of the snapshot", sb->id, i);
            return r;
        }
    }
    return 0;
}
