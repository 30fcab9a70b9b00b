#include "host/session.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/strv.h"
#include "host/console-internal.h"
#include "host/session-internal.h"

#define KILL_USEC (10 * USEC_PER_SEC)
#define SAVE_USEC (5 * USEC_PER_MSEC)

static const struct session_shell *shells_for_test;

void session_set_shells_for_test(const struct session_shell *shells)
{
    shells_for_test = shells;
}

/* ---- memory ---- */

static void drop_all(struct session_command_list *list)
{
    struct session_command *c = TAILQ_FIRST(list);

    while (c) {
        TAILQ_REMOVE(list, c, link);
        session_command_unref(c);
        c = TAILQ_FIRST(list);
    }
}

/* The guest's side is let go; views keep the rest until they are freed. */
static void let_go(struct session *s)
{
    s->feed = session_feed_free(s->feed);
    s->old = session_feed_free(s->old);
    s->phase = SESSION_PHASE_NONE;
    if (s->current)
        s->current->input = session_input_free(s->current->input);
    session_removals_free(s);
    s->timer = source_free(s->timer);
    s->saver = source_free(s->saver);
    s->current = session_command_unref(s->current);
    drop_all(&s->queue);
    drop_all(&s->history);
    s->n_queued = s->n_history = 0;
}

static void destroy(struct session *s)
{
    let_go(s);
    s->kick = source_free(s->kick);
    session_control_done(&s->control);
    session_carry_done(&s->carry);
    buf_done(&s->line);
    buf_done(&s->sent);
    free(s->last_cwd);
    free(s->name);
    free(s->user);
    free(s->cwd);
    strv_free(s->env);
    free(s);
}

void session_enter(struct session *s)
{
    s->depth++;
}

void session_leave(struct session *s)
{
    if (--s->depth > 0)
        return;
    session_views_reap(s);
    if (!s->freed)
        return;
    if (s->refs == 0)
        destroy(s);
    else
        let_go(s);
}

struct session *session_free(struct session *s)
{
    if (!s || s->freed)
        return NULL;
    session_enter(s);
    if (s->save_due)
        session_save(s);
    s->freed = true;
    s->refs--;
    if (s->state != SESSION_DEAD)
        (void)error_set_code(&s->dead_reason, ERR_SESSION_DEAD, "session '%s' was closed", s->name);
    session_kick(s); /* views are told from the loop */
    session_leave(s);
    return NULL;
}

/* ---- telling the owner ---- */

void session_set_state(struct session *s, enum session_state state, const struct error *err)
{
    if (s->state == state)
        return;
    s->state = state;
    if (s->cb.on_state && !s->freed)
        s->cb.on_state(s, state, err, s->userdata);
}

void session_save(struct session *s)
{
    const struct session_command *c = s->current;
    struct session_record *record = &s->record;

    s->save_due = false;
    record->control_offset = session_control_resume(&s->control);
    record->running = c != NULL;
    /* Between commands: where the next one's output will begin. */
    memcpy(record->start, c ? c->result.start : s->mark, sizeof(record->start));
    record->started_wall_usec = c ? c->started_wall_usec : 0;
    record->timeout_msec = c ? c->timeout_msec : 0;
    record->line = s->sent.size > 0 ? buf_data(&s->sent) : NULL;
    if (!c)
        record->line_start = record->line_size = 0;
    if (s->cb.on_record && !s->freed)
        s->cb.on_record(s, record, s->userdata);
}

static int on_save(struct source *source, uint64_t now_usec, void *userdata)
{
    struct session *s = userdata;

    (void)source;
    (void)now_usec;
    if (s->save_due)
        session_save(s);
    return 0;
}

void session_save_later(struct session *s)
{
    s->save_due = true;
    if (source_set_time(s->saver, clock_now_usec() + SAVE_USEC) < 0)
        session_save(s);
}

void session_die(struct session *s, const struct error *reason)
{
    if (s->state == SESSION_DEAD)
        return;
    error_copy(&s->dead_reason, reason);
    if (s->dead_reason.code == ERR_NONE)
        (void)error_set_code(&s->dead_reason, ERR_SESSION_DEAD, "session '%s' has ended", s->name);
    s->phase = SESSION_PHASE_NONE;
    (void)source_set_time(s->timer, USEC_INFINITY);
    if (s->feed && s->feed->exec) {
        (void)exec_signal(s->feed->exec, SIGKILL, EXEC_SIGNAL_TREE);
        s->feed->exec = exec_free(s->feed->exec);
    }
    session_set_state(s, SESSION_DEAD, &s->dead_reason);
}

/* ---- pump ---- */

void session_finish_kill(struct session *s, const struct error *err)
{
    console_done_fn done = TAKE_PTR(s->killed);
    struct error reason = {0};

    if (s->old)
        (void)exec_release(s->console, s->old->process_id, clock_now_usec() + KILL_USEC, NULL,
                           NULL);
    s->record.process_id = 0;
    session_save(s);
    (void)error_set_code(&reason, ERR_SESSION_DEAD, "session '%s' was closed", s->name);
    session_die(s, &reason);
    session_views_pump(s);
    if (done && !s->freed)
        done(s->console, err, s->killed_userdata);
}

/* Somebody waits behind a command whose output nobody takes. */
static void drain_for_queue(struct session *s)
{
    if (!s->current || s->n_queued == 0 || s->force != SESSION_FORCE_NONE)
        return;
    s->drain[1] = s->drain[2] = s->current->n_views == 0 ? UINT64_MAX : 0;
}

void session_pump(struct session *s)
{
    if (s->freed)
        return;
    session_command_next(s);
    if (s->freed)
        return;
    drain_for_queue(s);
    if (s->old)
        session_feed_serve(s->old);
    if (s->feed && s->phase == SESSION_PHASE_UP)
        session_feed_serve(s->feed);
    session_shell_write(s);
    if (s->freed)
        return;
    session_views_pump(s);
    if (s->freed)
        return;
    if (s->old)
        session_feed_ack(s->old);
    if (s->feed)
        session_feed_ack(s->feed);
    /* A result may have made room for the next command. */
    if (s->phase == SESSION_PHASE_UP && !s->current && s->n_queued > 0)
        session_kick(s);
    if (s->killing && s->killed && s->phase == SESSION_PHASE_NONE)
        session_finish_kill(s, NULL);
}

static int on_kick(struct source *source, void *userdata)
{
    struct session *s = userdata;

    (void)source;
    s->kick = source_free(s->kick);
    session_enter(s);
    if (s->freed)
        session_views_pump(s);
    else
        session_pump(s);
    session_leave(s);
    return 0;
}

void session_kick(struct session *s)
{
    if (!s->kick)
        (void)loop_add_defer(s->loop, "session", on_kick, s, &s->kick);
}

/* ---- life ---- */

static int copy_spec(struct session *s, const struct session_spec *spec)
{
    int r = string_set(&s->name, spec->name ? spec->name : "default");

    if (r >= 0)
        r = string_set(&s->user, spec->user);
    if (r >= 0)
        r = string_set(&s->cwd, spec->cwd);
    if (r >= 0 && spec->env)
        r = strv_copy(spec->env, &s->env);
    s->kind = spec->kind;
    s->rows = spec->rows;
    s->cols = spec->cols;
    return r;
}

static int make(struct console *c, const struct session_spec *spec,
                const struct session_callbacks *cb, void *userdata, struct session **ret,
                struct error *err)
{
    struct session *s = calloc(1, sizeof(*s));
    int r;

    if (!s)
        return error_set(err, ENOMEM, "opening a session");
    s->refs = 1;
    s->console = c;
    s->loop = c->loop;
    if (cb)
        s->cb = *cb;
    s->userdata = userdata;
    s->shells = shells_for_test ? shells_for_test : session_shells;
    TAILQ_INIT(&s->queue);
    TAILQ_INIT(&s->history);
    TAILQ_INIT(&s->views);
    LIST_INIT(&s->removals);
    session_control_init(&s->control);
    buf_init(&s->line, SESSION_LINE_MAX + 16u * SESSION_STATE_MAX);
    buf_init(&s->sent, SESSION_RECORD_LINE_MAX);
    s->state = SESSION_STARTING;
    r = copy_spec(s, spec);
    if (r >= 0)
        r = loop_add_timer(s->loop, "session-timer", USEC_INFINITY, session_command_timer, s,
                           &s->timer);
    if (r >= 0)
        r = loop_add_timer(s->loop, "session-save", USEC_INFINITY, on_save, s, &s->saver);
    if (r < 0) {
        destroy(s);
        return error_set(err, -r, "opening session '%s'", spec->name ? spec->name : "default");
    }
    *ret = s;
    return 0;
}

int session_new(struct console *c, const struct session_spec *spec,
                const struct session_callbacks *cb, void *userdata, struct session **ret,
                struct error *err)
{
    struct session *s = NULL;
    int r = make(c, spec, cb, userdata, &s, err);

    if (r < 0)
        return r;
    r = session_shell_start(s, err);
    if (r < 0)
        destroy(s);
    else
        *ret = s;
    return r;
}

/* The command that ran under the old daemon. */
static int adopt_command(struct session *s)
{
    struct session_command *c = session_command_new();
    uint64_t now = clock_now_usec(), wall = clock_wall_usec();
    uint64_t ago = 0;

    if (!c)
        return -ENOMEM;
    c->number = s->record.command;
    c->process_id = s->record.process_id;
    c->timeout_msec = s->record.timeout_msec;
    c->result.command = c->number;
    memcpy(c->result.start, s->record.start, sizeof(c->result.start));
    if (s->record.started_wall_usec != 0 && s->record.started_wall_usec < wall)
        ago = wall - s->record.started_wall_usec;
    c->started_usec = now > ago ? now - ago : 0;
    c->started_wall_usec = wall - ago;
    s->current = c;
    s->state = SESSION_RUNNING;
    session_command_arm(s);
    /* How much of its line has arrived the guest tells: session_shell_resend(). */
    return 0;
}

int session_adopt(struct console *c, const struct session_spec *spec,
                  const struct session_record *record, const struct session_callbacks *cb,
                  void *userdata, struct session **ret, struct error *err)
{
    struct session *s = NULL;
    int r = make(c, spec, cb, userdata, &s, err);

    if (r < 0)
        return r;
    s->record = *record;
    s->record.line = NULL;
    if (record->line && record->line_size <= SESSION_RECORD_LINE_MAX)
        (void)buf_append(&s->sent, record->line, (size_t)record->line_size);
    if (record->process_id == 0) {
        s->lost_before = record->command != 0;
        r = session_shell_start(s, err);
    } else {
        if (record->running)
            r = error_fill(err, adopt_command(s), "adopting session '%s'", s->name);
        if (r >= 0)
            r = session_shell_adopt(s, err);
    }
    if (r < 0)
        destroy(s);
    else
        *ret = s;
    return r;
}

int session_kill(struct session *s, console_done_fn done, void *userdata)
{
    if (s->killing)
        return -EALREADY;
    session_enter(s);
    s->killing = true;
    s->killed = done;
    s->killed_userdata = userdata;
    if (s->feed && s->feed->exec && s->state != SESSION_DEAD) {
        (void)exec_signal(s->feed->exec, SIGKILL, EXEC_SIGNAL_TREE);
        s->drain[1] = s->drain[2] = UINT64_MAX;
        s->force = SESSION_FORCE_TREE;
        (void)source_set_time(s->timer, clock_now_usec() + KILL_USEC);
    } else {
        s->phase = SESSION_PHASE_NONE;
    }
    /* What the shell before this one has left behind. */
    if (s->old)
        (void)exec_signal_process(s->console, s->old->process_id, SIGKILL, EXEC_SIGNAL_TREE,
                                  clock_now_usec() + KILL_USEC, NULL, NULL);
    session_kick(s);
    session_leave(s);
    return 0;
}

enum session_state session_get_state(const struct session *s)
{
    return s->state;
}

const struct session_record *session_get_record(const struct session *s)
{
    return &s->record;
}

int session_resize(struct session *s, uint16_t rows, uint16_t cols)
{
    if (s->kind != SESSION_TTY)
        return -ENOTTY;
    s->rows = rows;
    s->cols = cols;
    if (!s->feed || !s->feed->exec || !s->feed->started)
        return 0; /* the next shell begins with it */
    return exec_resize(s->feed->exec, rows, cols);
}
