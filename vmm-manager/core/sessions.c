#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/sandbox-private.h"

#define DEFAULT_NAME "default"

/* ---- one session ---- */

static struct sandbox_session *entry_free(struct sandbox_session *s)
{
    if (!s)
        return NULL;
    (void)session_free(s->session);
    (void)source_free(s->removal);
    free(s->name);
    free(s->user);
    free(s->cwd);
    (void)strv_free(s->env);
    free(s->line);
    free(s);
    return NULL;
}

/* Takes a copy, with the bytes of the line. */
static void entry_keep_record(struct sandbox_session *s, const struct session_record *record)
{
    uint8_t *line = NULL;

    if (record->line && record->line_size <= SESSION_RECORD_LINE_MAX) {
        line = malloc((size_t)record->line_size + 1);
        if (line)
            memcpy(line, record->line, (size_t)record->line_size);
    }
    free(s->line);
    s->line = line;
    s->record = *record;
    s->record.line = line;
}

static void entry_spec(const struct sandbox_session *s, struct session_spec *ret)
{
    *ret = (struct session_spec){
        .name = s->name,
        .kind = s->kind,
        .user = s->user,
        .cwd = s->cwd,
        .env = s->env,
        .rows = s->rows,
        .cols = s->cols,
    };
}

static struct sandbox_session *entry_find(struct sandbox *sb, const char *name)
{
    for (struct sandbox_session *s = sb->sessions; s; s = s->next) {
        if (strcmp(s->name, name) == 0)
            return s;
    }
    return NULL;
}

/* The session's own variables come after the sandbox's, so they win. */
static int merge_env(struct sandbox_session *s, char *const *base, char *const *own)
{
    int r = 0;

    for (size_t i = 0; r >= 0 && base && base[i]; i++)
        r = strv_append(&s->env, base[i]);
    for (size_t i = 0; r >= 0 && own && own[i]; i++)
        r = strv_append(&s->env, own[i]);
    return r;
}

static int entry_new(struct sandbox *sb, const struct session_spec *spec, bool defaults,
                     struct sandbox_session **ret)
{
    struct sandbox_session *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    s->sandbox = sb;
    s->kind = spec->kind;
    s->rows = spec->rows;
    s->cols = spec->cols;
    s->created_wall_usec = clock_wall_usec();
    if (string_set(&s->name, spec->name) < 0 ||
        string_set(&s->user, spec->user || !defaults ? spec->user : sb->spec.user) < 0 ||
        string_set(&s->cwd, spec->cwd || !defaults ? spec->cwd : sb->spec.workdir) < 0 ||
        merge_env(s, defaults ? sb->spec.env : NULL, spec->env) < 0) {
        (void)entry_free(s);
        return -ENOMEM;
    }
    *ret = s;
    return 0;
}

static void entry_list(struct sandbox *sb, struct sandbox_session *s)
{
    struct sandbox_session **p = &sb->sessions;

    while (*p)
        p = &(*p)->next;
    *p = s;
    sb->n_sessions++;
}

static void entry_unlist(struct sandbox *sb, struct sandbox_session *s)
{
    for (struct sandbox_session **p = &sb->sessions; *p; p = &(*p)->next) {
        if (*p == s) {
            *p = s->next;
            s->next = NULL;
            sb->n_sessions--;
            return;
        }
    }
}

/* ---- callbacks of the session ---- */

static void on_record(struct session *session, const struct session_record *record, void *userdata)
{
    struct sandbox_session *s = userdata;
    struct error err = {0};

    (void)session;
    entry_keep_record(s, record);
    if (store_session_record(s->sandbox->core->store, s->sandbox->id, s->name, record, &err) < 0)
        log_session(LOG_LEVEL_WARNING, s->sandbox->id, s->name,
                    "Failed to store the session's record: %s, ignoring", err.text);
}

static void on_state(struct session *session, enum session_state state, const struct error *err,
                     void *userdata)
{
    struct sandbox_session *s = userdata;

    (void)session;
    sandbox_used(s->sandbox);
    if (state == SESSION_DEAD)
        log_session(LOG_LEVEL_INFO, s->sandbox->id, s->name, "Session is dead: %s",
                    err ? err->text : "no reason given");
}

static const struct session_callbacks callbacks = {.on_record = on_record, .on_state = on_state};

/* ---- by name ---- */

int sandbox_session_new(struct sandbox *sb, const struct session_spec *spec, struct session **ret,
                        struct error *err)
{
    struct console *console = sandbox_console(sb, err);
    struct sandbox_session *s = NULL;
    struct session_spec full;
    int r;

    if (!console)
        return err ? -err->errnum : -ENXIO;
    if (!spec->name || !name_is_valid(spec->name))
        return error_set(err, EINVAL,
                         "session name '%.64s': expected [a-z0-9][a-z0-9._-]*, at most 63 bytes",
                         spec->name ? spec->name : "");
    if (entry_find(sb, spec->name))
        return error_set_code(err, ERR_ALREADY_EXISTS, "session '%s': exists", spec->name);
    if (sb->n_sessions >= CORE_SESSIONS_MAX)
        return error_set_code(err, ERR_TOO_MANY, "sandbox '%s': %u sessions are the limit", sb->id,
                              CORE_SESSIONS_MAX);
    r = entry_new(sb, spec, true, &s);
    if (r < 0)
        return error_set(err, -r, "session '%s': %s", spec->name, errno_text(-r));
    entry_spec(s, &full);
    r = store_session_put(sb->core->store, sb->id, &full, s->created_wall_usec, err);
    if (r >= 0) {
        r = session_new(console, &full, &callbacks, s, &s->session, err);
        if (r < 0)
            (void)store_session_delete(sb->core->store, sb->id, s->name, NULL);
    }
    if (r < 0) {
        (void)entry_free(s);
        return error_fill(err, r, "session '%s'", spec->name);
    }
    entry_list(sb, s);
    if (ret)
        *ret = s->session;
    return 0;
}

struct session *sandbox_session(struct sandbox *sb, const char *name, struct error *err)
{
    struct session_spec spec = {.name = DEFAULT_NAME, .kind = SESSION_PIPE};
    struct sandbox_session *s;
    struct session *session = NULL;

    if (!sandbox_console(sb, err))
        return NULL;
    s = entry_find(sb, name);
    if (s && s->removed) {
        (void)error_set_code(err, ERR_SESSION_NOT_FOUND, "session '%s': is being removed", name);
        return NULL;
    }
    if (s && s->session)
        return s->session;
    if (s) {
        (void)error_set_code(err, ERR_SESSION_DEAD, "session '%s': could not be found again", name);
        return NULL;
    }
    if (strcmp(name, DEFAULT_NAME) != 0) {
        (void)error_set_code(err, ERR_SESSION_NOT_FOUND, "session '%.64s': no such session", name);
        return NULL;
    }
    return sandbox_session_new(sb, &spec, &session, err) < 0 ? NULL : session;
}

/* ---- removal ---- */

static void entry_removed(struct sandbox_session *s, const struct error *err)
{
    backend_done_fn done = s->removed;
    void *userdata = s->removed_userdata;
    struct error store_err = {0};

    entry_unlist(s->sandbox, s);
    if (store_session_delete(s->sandbox->core->store, s->sandbox->id, s->name, &store_err) < 0)
        log_session(LOG_LEVEL_WARNING, s->sandbox->id, s->name,
                    "Failed to delete the session's row: %s, ignoring", store_err.text);
    (void)entry_free(s);
    if (done)
        done(err, userdata);
}

static void ignore_removed(const struct error *err, void *userdata)
{
    (void)err;
    (void)userdata;
}

static void on_session_killed(struct console *c, const struct error *err, void *userdata)
{
    struct sandbox_session *s = userdata;

    (void)c;
    if (err)
        log_session(LOG_LEVEL_WARNING, s->sandbox->id, s->name, "Failed to end the shell: %s",
                    err->text);
    entry_removed(s, err);
}

/* No shell to wait for; still from the loop, never from inside the call. */
static int on_removal(struct source *source, void *userdata)
{
    (void)source;
    entry_removed(userdata, NULL);
    return 0;
}

int sandbox_session_remove(struct sandbox *sb, const char *name, backend_done_fn done,
                           void *userdata)
{
    struct sandbox_session *s = entry_find(sb, name);
    int r;

    if (!s)
        return -ENOENT;
    if (s->removed)
        return -EBUSY;
    s->removed = done ? done : ignore_removed;
    s->removed_userdata = userdata;
    if (s->session && session_get_state(s->session) != SESSION_DEAD)
        r = session_kill(s->session, on_session_killed, s);
    else
        r = loop_add_defer(sb->core->loop, "session-removal", on_removal, s, &s->removal);
    if (r < 0)
        s->removed = NULL;
    return r;
}

/* ---- all of a sandbox ---- */

void sandbox_sessions_free(struct sandbox *sb)
{
    while (sb->sessions) {
        struct sandbox_session *s = sb->sessions;

        sb->sessions = s->next;
        (void)entry_free(s);
    }
    sb->n_sessions = 0;
}

void sandbox_sessions_detach(struct sandbox *sb, const struct error *reason)
{
    struct sandbox_session *next;

    for (struct sandbox_session *s = sb->sessions; s; s = next) {
        next = s->next;
        s->session = session_free(s->session);
        if (s->removed)
            entry_removed(s, reason);
    }
}

static void load_row(const struct session_spec *spec, const struct session_record *record,
                     uint64_t created_wall_usec, void *userdata)
{
    struct sandbox *sb = userdata;
    struct sandbox_session *s;

    if (sb->n_sessions >= CORE_SESSIONS_MAX || entry_new(sb, spec, false, &s) < 0) {
        log_session(LOG_LEVEL_WARNING, sb->id, spec->name, "Failed to load the session, ignoring");
        return;
    }
    s->created_wall_usec = created_wall_usec;
    entry_keep_record(s, record);
    entry_list(sb, s);
}

int sandbox_sessions_load(struct sandbox *sb, struct error *err)
{
    return store_session_each(sb->core->store, sb->id, load_row, sb, err);
}

int sandbox_session_put(struct sandbox *sb, const struct session_spec *spec,
                        const struct session_record *record, uint64_t created_wall_usec,
                        struct error *err)
{
    struct sandbox_session *s;
    int r;

    if (sb->n_sessions >= CORE_SESSIONS_MAX || entry_find(sb, spec->name))
        return error_set(err, EINVAL, "session '%s': twice, or too many", spec->name);
    r = entry_new(sb, spec, false, &s);
    if (r < 0)
        return error_set(err, -r, "session '%s': %s", spec->name, errno_text(-r));
    s->created_wall_usec = created_wall_usec;
    entry_keep_record(s, record);
    r = store_session_put(sb->core->store, sb->id, spec, created_wall_usec, err);
    if (r >= 0)
        r = store_session_record(sb->core->store, sb->id, spec->name, &s->record, err);
    if (r < 0) {
        (void)entry_free(s);
        return r;
    }
    entry_list(sb, s);
    return 0;
}

void sandbox_sessions_forget(struct sandbox *sb)
{
    while (sb->sessions) {
        struct sandbox_session *s = sb->sessions;

        (void)store_session_delete(sb->core->store, sb->id, s->name, NULL);
        sb->sessions = s->next;
        (void)entry_free(s);
    }
    sb->n_sessions = 0;
}

bool sandbox_sessions_busy(const struct sandbox *sb)
{
    for (const struct sandbox_session *s = sb->sessions; s; s = s->next) {
        enum session_state state = s->session ? session_get_state(s->session) : SESSION_DEAD;

        if (state == SESSION_RUNNING || state == SESSION_STARTING)
            return true;
    }
    return false;
}

void sandbox_sessions_adopt(struct sandbox *sb)
{
    struct console *console = guest_link_console(sb->link);

    for (struct sandbox_session *s = sb->sessions; console && s; s = s->next) {
        struct session_spec spec;
        struct error err = {0};

        if (s->session)
            continue;
        entry_spec(s, &spec);
        if (session_adopt(console, &spec, &s->record, &callbacks, s, &s->session, &err) < 0)
            log_session(LOG_LEVEL_WARNING, sb->id, s->name, "Failed to find the session again: %s",
                        err.text);
    }
}

static const char *state_name(const struct sandbox_session *s)
{
    if (!s->session)
        return "dead";
    switch (session_get_state(s->session)) {
    case SESSION_STARTING:
        return "starting";
    case SESSION_IDLE:
        return "idle";
    case SESSION_RUNNING:
        return "running";
    case SESSION_DEAD:
        return "dead";
    }
    return "dead";
}

json_t *sandbox_sessions_to_json(struct sandbox *sb)
{
    json_t *array = json_array();

    for (struct sandbox_session *s = sb->sessions; s; s = s->next) {
        char created[32];

        clock_format_wall(s->created_wall_usec, created, sizeof(created));
        (void)json_array_append_new(
            array, json_pack("{s:s, s:s, s:s, s:s*, s:s*, s:I, s:s}", "name", s->name, "kind",
                             s->kind == SESSION_TTY ? "tty" : "pipe", "state", state_name(s),
                             "user", s->user, "cwd", s->cwd, "command",
                             (json_int_t)s->record.command, "created", created));
    }
    return array;
}
