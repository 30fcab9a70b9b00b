#include "host/session-internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/strv.h"

#define RELEASE_USEC (10 * USEC_PER_SEC)

void session_carry_done(struct session_carry *carry)
{
    free(carry->cwd);
    free(carry->state);
    *carry = (struct session_carry){0};
}

/* ---- start ---- */

static int start_one(struct session *s, const char *cwd, struct error *err)
{
    static const struct exec_stream streams[] = {
        {.fd = SESSION_STREAM_TO, .to_guest = true},
        {.fd = SESSION_STREAM_FROM, .marked = true},
    };
    const char *argv[SESSION_ARGV_MAX];
    _cleanup_strv_ char **copy = NULL;
    char label[96];
    struct exec_spec spec;
    int r = 0;

    session_script_argv(&s->shells[s->shell], s->kind, argv);
    for (size_t i = 0; argv[i] && r >= 0; i++)
        r = strv_append(&copy, argv[i]);
    if (r < 0)
        return error_set(err, -r, "starting a shell");
    (void)snprintf(label, sizeof(label), "session %s", s->name);
    spec = (struct exec_spec){
        .argv = copy,
        .env = s->env,
        .cwd = cwd,
        .user = s->user,
        .tty = s->kind == SESSION_TTY,
        .rows = s->rows,
        .cols = s->cols,
        .streams = streams,
        .n_streams = ARRAY_SIZE(streams),
        .close_stdin = s->kind == SESSION_PIPE,
        .label = label,
    };
    return session_feed_start(s, &spec, &s->feed, err);
}

int session_shell_start(struct session *s, struct error *err)
{
    int r;

    if (s->freed)
        return 0;
    buf_clear(&s->line);
    session_control_reset(&s->control, 0);
    memset(s->mark, 0, sizeof(s->mark));
    s->list_traps = false;
    s->takes = SESSION_TAKES_UNKNOWN;
    s->record.process_id = 0;
    r = start_one(s, s->cwd, err);
    if (r < 0)
        return r;
    s->phase = SESSION_PHASE_BOOT;
    return 0;
}

int session_shell_adopt(struct session *s, struct error *err)
{
    s->feed = session_feed_new(s, s->record.process_id);
    if (!s->feed)
        return error_set(err, ENOMEM, "adopting session '%s'", s->name);
    memcpy(s->mark, s->record.start, sizeof(s->mark));
    session_control_reset(&s->control, s->record.control_offset);
    /* Which traps were set is not known any more. */
    s->list_traps = true;
    s->takes = SESSION_TAKES_UNKNOWN;
    s->phase = SESSION_PHASE_ADOPT;
    return session_feed_attach(s->feed, err);
}

/* The next shell of the list, or the end of the session. */
static void start_next(struct session *s, const struct error *reason)
{
    struct error err = {0};

    s->feed = session_feed_free(s->feed);
    s->shell++;
    if (s->shells[s->shell].path) {
        if (session_shell_start(s, &err) < 0)
            session_die(s, &err);
        return;
    }
    if (reason->code == ERR_COMMAND_NOT_FOUND || reason->code == ERR_COMMAND_NOT_EXECUTABLE)
        (void)error_set_code(&err, ERR_NO_SHELL, "image has no shell; use exec");
    else
        error_copy(&err, reason);
    session_die(s, &err);
}

/* A shell for what comes next; the old one's output stays reachable. */
static void replace(struct session *s)
{
    struct error err = {0};

    if (s->old) {
        session_feed_give_up(s, s->old->process_id);
        (void)exec_release(s->console, s->old->process_id, clock_now_usec() + RELEASE_USEC, NULL,
                           NULL);
        s->old = session_feed_free(s->old);
    }
    s->old = TAKE_PTR(s->feed);
    s->phase = SESSION_PHASE_NONE;
    if (s->killing)
        return;
    if (session_shell_start(s, &err) < 0)
        session_die(s, &err);
}

/* ---- end ---- */

static void exited_early(struct session *s, const struct exec_exit *exit)
{
    struct error err = {0};

    (void)error_set_code(&err, ERR_NO_SHELL, "shell '%s' ended with status %d before it was ready",
                         s->shells[s->shell].path, exec_exit_code(exit));
    (void)exec_release(s->console, s->feed->process_id, clock_now_usec() + RELEASE_USEC, NULL,
                       NULL);
    if (s->carry.valid) {
        /* Perhaps its predecessor's state was the reason. */
        session_carry_done(&s->carry);
        s->lost_before = true;
        s->feed = session_feed_free(s->feed);
        if (session_shell_start(s, &err) < 0)
            session_die(s, &err);
        return;
    }
    start_next(s, &err);
}

void session_shell_exited(struct session *s, const struct exec_exit *exit)
{
    struct session_command *c = s->current;
    const char *cwd;

    if (s->phase != SESSION_PHASE_UP && s->phase != SESSION_PHASE_ADOPT) {
        if (s->killing)
            s->phase = SESSION_PHASE_NONE;
        else
            exited_early(s, exit);
        return;
    }
    cwd = s->carry.cwd ? s->carry.cwd : s->last_cwd;
    session_set_state(s, SESSION_STARTING, NULL);
    if (c) {
        c->result.shell_exited = true;
        c->result.state_lost = !s->carry.valid;
        c->result.oom_killed = exit->oom_killed;
        session_command_finish(s, exec_exit_code(exit), exit->end, cwd);
    } else {
        s->lost_before = !s->carry.valid;
    }
    /* Where it was may be known when what it held is not. */
    if (!s->carry.cwd)
        s->carry.cwd = TAKE_PTR(s->last_cwd);
    s->carry.valid = s->carry.cwd != NULL;
    replace(s);
    session_save(s);
}

void session_shell_closed(struct session *s, const struct error *reason)
{
    struct error err = {0};

    if (s->killing) {
        s->phase = SESSION_PHASE_NONE;
        return;
    }
    switch (s->phase) {
    case SESSION_PHASE_BOOT:
        if (reason->code == ERR_COMMAND_NOT_FOUND || reason->code == ERR_COMMAND_NOT_EXECUTABLE)
            start_next(s, reason);
        else
            session_die(s, reason);
        return;
    case SESSION_PHASE_ADOPT:
        if (reason->code != ERR_PROCESS_NOT_FOUND)
            break;
        (void)error_set_code(&err, ERR_SESSION_DEAD, "shell of session '%s' is gone", s->name);
        if (s->current)
            session_command_fail(s, &err);
        else
            s->lost_before = true;
        s->feed = session_feed_free(s->feed);
        if (session_shell_start(s, &err) < 0)
            session_die(s, &err);
        return;
    case SESSION_PHASE_NONE:
    case SESSION_PHASE_RESTORE:
    case SESSION_PHASE_UP:
        break;
    }
    session_die(s, reason);
}

/* ---- messages ---- */

static void shell_up(struct session *s)
{
    s->phase = SESSION_PHASE_UP;
    session_carry_done(&s->carry);
    s->record.process_id = s->feed->process_id;
    s->record.running = false;
    session_set_state(s, SESSION_IDLE, NULL);
    session_save(s);
}

static void shell_ready(struct session *s)
{
    bool bash = s->shells[s->shell].bash;

    if (!s->carry.valid) {
        shell_up(s);
        return;
    }
    s->phase = SESSION_PHASE_RESTORE;
    if (session_script_restore(&s->line, s->takes, bash, s->carry.cwd,
                               s->carry.state ? s->carry.state : "", s->carry.size) < 0) {
        buf_clear(&s->line);
        s->lost_before = true;
        shell_up(s);
    }
}

static void command_ended(struct session *s, const struct session_message *m)
{
    uint64_t wanted = s->current ? s->current->number : 0;

    if (m->blocks)
        wanted %= SESSION_BLOCK_NUMBERS;
    if (!s->current || wanted != m->number || s->current->text)
        return;
    session_command_finish(s, m->status, m->offset, m->text);
    session_save_later(s);
}

static void shell_ending(struct session *s, const struct session_message *m)
{
    session_carry_done(&s->carry);
    if (m->size > 0)
        s->carry.cwd = strndup(m->text, m->size);
}

static void take_state(struct session *s, const struct session_message *m)
{
    if (m->cut || !s->carry.cwd)
        return;
    s->carry.state = malloc(m->size + 1);
    if (!s->carry.state)
        return;
    memcpy(s->carry.state, m->text, m->size);
    s->carry.state[m->size] = '\0';
    s->carry.size = m->size;
    s->carry.valid = true;
}

static void take_traps(struct session *s, const struct session_message *m)
{
    const char *word;
    size_t size;

    if (session_script_foreign_trap(m->text, m->size, &word, &size) > 0 &&
        session_script_trap(&s->line, s->takes, word, size) < 0)
        log_debug("session '%s': EXIT trap is too long to be kept", s->name);
}

static void take_answer(struct session *s, const struct session_message *m)
{
    struct error err = {0};

    if (!s->current || s->current->number != m->number)
        return;
    (void)error_set_code(&err, ERR_CANCELLED,
                         "the daemon was restarted before the command had reached the shell");
    session_command_fail(s, &err);
    session_save(s);
}

void session_shell_message(struct session *s, const struct session_message *m)
{
    switch (m->kind) {
    case SESSION_MESSAGE_END:
        s->takes = m->blocks ? SESSION_TAKES_BLOCKS : SESSION_TAKES_LINES;
        if (m->size > 0)
            (void)string_set(&s->last_cwd, m->text);
        if (s->phase == SESSION_PHASE_BOOT) {
            shell_ready(s);
        } else if (s->phase == SESSION_PHASE_RESTORE) {
            memcpy(s->mark, m->offset, sizeof(s->mark));
            shell_up(s);
        } else {
            command_ended(s, m);
        }
        return;
    case SESSION_MESSAGE_EXIT:
        shell_ending(s, m);
        return;
    case SESSION_MESSAGE_STATE:
        take_state(s, m);
        return;
    case SESSION_MESSAGE_TRAPS:
        take_traps(s, m);
        return;
    case SESSION_MESSAGE_ANSWER:
        take_answer(s, m);
        return;
    }
}

/* ---- lines ---- */

void session_shell_write(struct session *s)
{
    while (s->feed && s->feed->exec && s->feed->started && s->line.size > 0) {
        size_t n = MIN(exec_writable(s->feed->exec, SESSION_STREAM_TO), s->line.size);

        if (n == 0 || exec_write(s->feed->exec, SESSION_STREAM_TO, buf_data(&s->line), n) < 0)
            return;
        buf_consume(&s->line, n);
        s->feed->written += n;
    }
}

void session_shell_resend(struct session *s, uint64_t received)
{
    const struct session_record *record = &s->record;
    uint64_t end = record->line_start + record->line_size;
    struct error err = {0};
    int r;

    if (record->line_size == 0 ? record->started_wall_usec != 0 : received >= end)
        return;
    if (s->sent.size > 0 && s->sent.size == record->line_size && received >= record->line_start)
        r = buf_append(&s->line, buf_data(&s->sent) + (received - record->line_start),
                       (size_t)(end - received));
    else
        r = session_script_probe(&s->line, s->current->number);
    if (r < 0) {
        (void)error_fill(&err, r, "sending the command to the shell");
        session_command_fail(s, &err);
    }
}
