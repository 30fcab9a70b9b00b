#include "host/session-internal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/strv.h"

#define FORCE_STEP_USEC USEC_PER_SEC

struct session_command *session_command_new(void)
{
    struct session_command *c = calloc(1, sizeof(*c));

    if (c)
        c->refs = 1;
    return c;
}

struct session_command *session_command_ref(struct session_command *c)
{
    c->refs++;
    return c;
}

struct session_command *session_command_unref(struct session_command *c)
{
    if (!c || --c->refs > 0)
        return NULL;
    session_input_free(c->input);
    free(c->text);
    free(c->cwd);
    free(c);
    return NULL;
}

struct session_command *session_command_find(struct session *s, uint64_t number)
{
    struct session_command *c;

    if (s->current && (number == 0 || number == s->current->number))
        return s->current;
    TAILQ_FOREACH_REVERSE(c, &s->history, session_command_list, link)
    {
        if (number == 0 || number == c->number)
            return c;
    }
    return NULL;
}

/* ---- start ---- */

void session_command_next(struct session *s)
{
    struct session_command *c = TAILQ_FIRST(&s->queue);
    struct session_view *v;
    struct error err = {0};

    if (s->phase != SESSION_PHASE_UP || s->current || s->killing || !c || !s->feed)
        return;
    TAILQ_REMOVE(&s->queue, c, link);
    s->n_queued--;
    s->current = c;
    c->number = ++s->record.command;
    c->process_id = s->feed->process_id;
    c->result.command = c->number;
    memcpy(c->result.start, s->mark, sizeof(c->result.start));
    TAILQ_FOREACH(v, &s->views, link)
    {
        if (v->command != c)
            continue;
        memcpy(v->next, s->mark, sizeof(v->next));
        memcpy(v->consumed, s->mark, sizeof(v->consumed));
    }
    s->force = SESSION_FORCE_NONE;
    memset(s->drain, 0, sizeof(s->drain));
    session_set_state(s, SESSION_RUNNING, NULL);
    if (!c->with_stdin || s->kind == SESSION_TTY)
        session_command_send(s, NULL);
    else if (session_input_start(s, c, &err) < 0)
        session_command_fail(s, &err);
}

/* Keeps what the shell is about to be sent, with what already waits: another daemon may need it. */
static int keep_line(struct session *s, bool resendable)
{
    s->record.line_start = s->feed->written;
    s->record.line_size = s->line.size;
    buf_clear(&s->sent);
    if (!resendable || s->line.size > SESSION_RECORD_LINE_MAX)
        return 0;
    return buf_append(&s->sent, buf_data(&s->line), s->line.size);
}

void session_command_send(struct session *s, const char *input)
{
    struct session_command *c = s->current;
    struct error err = {0};
    int r;

    s->list_traps = s->list_traps || session_script_may_trap(c->text);
    r = session_script_run(&s->line, s->takes, c->number, input, s->list_traps, c->text,
                           strlen(c->text));
    /* The input's other end is ours and goes with us: such a command is not sent again. */
    if (r >= 0)
        r = keep_line(s, /* resendable= */ !input);
    if (r < 0) {
        buf_clear(&s->line);
        (void)error_fill(&err, r, "sending the command to the shell");
        session_command_fail(s, &err);
        return;
    }
    free(TAKE_PTR(c->text));
    c->started_usec = clock_now_usec();
    c->started_wall_usec = clock_wall_usec();
    session_command_arm(s);
    /* First the record: a daemon that dies right after it finds that nothing was sent, and sends
     * it. */
    session_save(s);
    session_shell_write(s);
}

/* ---- end ---- */

static void remember(struct session *s)
{
    struct session_command *c = TAKE_PTR(s->current);

    c->done = true;
    c->input = session_input_free(c->input);
    buf_clear(&s->sent);
    TAILQ_INSERT_TAIL(&s->history, c, link);
    if (++s->n_history > SESSION_HISTORY_MAX) {
        c = TAILQ_FIRST(&s->history);
        TAILQ_REMOVE(&s->history, c, link);
        s->n_history--;
        session_command_unref(c);
    }
    s->force = SESSION_FORCE_NONE;
    memset(s->drain, 0, sizeof(s->drain));
    (void)source_set_time(s->timer, USEC_INFINITY);
    if (s->state == SESSION_RUNNING)
        session_set_state(s, SESSION_IDLE, NULL);
}

void session_command_finish(struct session *s, int exit_code, const uint64_t end[3],
                            const char *cwd)
{
    struct session_command *c = s->current;

    for (int i = 1; i <= 2; i++) {
        c->result.end[i] = MAX(end[i], c->result.start[i]);
        s->mark[i] = c->result.end[i];
    }
    c->result.timed_out = c->timed_out;
    c->result.exit_code = c->timed_out ? 124 : exit_code;
    c->result.duration_usec = clock_now_usec() - c->started_usec;
    if (s->lost_before)
        c->result.state_lost = true;
    s->lost_before = false;
    if (cwd && cwd[0] != '\0')
        (void)string_set(&c->cwd, cwd);
    remember(s);
}

void session_command_fail(struct session *s, const struct error *err)
{
    error_copy(&s->current->err, err);
    memcpy(s->current->result.end, s->current->result.start, sizeof(s->current->result.end));
    remember(s);
}

/* ---- force ---- */

static void signal_shell(struct session *s, int signo, enum exec_signal_scope scope)
{
    if (s->feed && s->feed->exec)
        (void)exec_signal(s->feed->exec, signo, scope);
}

/*
 * As ^C at a prompt: what runs is interrupted and the rest of the text does not run. The shell
 * comes first, so that it has its signal before it sees its child die.
 */
void session_command_interrupt(struct session *s)
{
    signal_shell(s, session_script_interrupt(s->kind), EXEC_SIGNAL_PROCESS);
    signal_shell(s, SIGINT, EXEC_SIGNAL_RECENT);
}

static void allow_drain(struct session *s)
{
    s->drain[1] = s->drain[2] = SESSION_DRAIN_MAX;
}

void session_command_force(struct session *s, enum session_force force)
{
    s->force = force;
    switch (force) {
    case SESSION_FORCE_NONE:
        return;
    case SESSION_FORCE_INTERRUPT:
        session_command_interrupt(s);
        break;
    case SESSION_FORCE_KILL:
        signal_shell(s, SIGKILL, EXEC_SIGNAL_RECENT);
        /* The end is told after all output: what nobody takes must not hold it up. */
        allow_drain(s);
        break;
    case SESSION_FORCE_SHELL:
        signal_shell(s, session_script_interrupt(s->kind), EXEC_SIGNAL_PROCESS);
        signal_shell(s, SIGKILL, EXEC_SIGNAL_RECENT);
        break;
    case SESSION_FORCE_TREE:
        signal_shell(s, SIGKILL, EXEC_SIGNAL_TREE);
        allow_drain(s);
        break;
    }
    (void)source_set_time(s->timer, clock_now_usec() + FORCE_STEP_USEC);
}

void session_command_arm(struct session *s)
{
    const struct session_command *c = s->current;

    if (c->timeout_msec == 0 || c->timeout_msec > UINT64_MAX / 2 / USEC_PER_MSEC)
        return;
    (void)source_set_time(s->timer, c->started_usec + c->timeout_msec * USEC_PER_MSEC);
}

int session_command_timer(struct source *source, uint64_t now_usec, void *userdata)
{
    struct session *s = userdata;
    struct error err = {0};

    (void)source;
    (void)now_usec;
    session_enter(s);
    if (s->killing) {
        (void)error_set_code(&err, ERR_GUEST_UNRESPONSIVE, "shell of session '%s' does not end",
                             s->name);
        session_finish_kill(s, &err);
    } else if (s->current) {
        switch (s->force) {
        case SESSION_FORCE_NONE:
            s->current->timed_out = true;
            session_command_force(s, SESSION_FORCE_INTERRUPT);
            break;
        case SESSION_FORCE_INTERRUPT:
            session_command_force(s, SESSION_FORCE_KILL);
            break;
        case SESSION_FORCE_KILL:
            session_command_force(s, SESSION_FORCE_SHELL);
            break;
        case SESSION_FORCE_SHELL:
        case SESSION_FORCE_TREE:
            session_command_force(s, SESSION_FORCE_TREE);
            break;
        }
    }
    session_pump(s);
    session_leave(s);
    return 0;
}
