#include "host/session-internal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* ---- telling ---- */

static void tell_result(struct session_view *v)
{
    struct session_command *c = v->command;

    v->told_result = true;
    if (c->err.code != ERR_NONE || c->err.errnum != 0) {
        v->cb.on_result(v, NULL, &c->err, v->userdata);
        return;
    }
    c->result.cwd = c->cwd;
    v->cb.on_result(v, &c->result, NULL, v->userdata);
}

void session_views_pump(struct session *s)
{
    struct session_view *v;

    TAILQ_FOREACH(v, &s->views, link)
    {
        struct session_command *c = v->command;

        if (v->freed || v->told_result)
            continue;
        if (s->freed || s->state == SESSION_DEAD) {
            v->told_result = true;
            v->cb.on_result(v, NULL, &s->dead_reason, v->userdata);
            continue;
        }
        if (c->number != 0 && !v->told_start) {
            v->told_start = true;
            if (v->cb.on_started)
                v->cb.on_started(v, c->number, c->result.start, v->userdata);
        }
        if (v->freed || !c->done)
            continue;
        if (!session_feed_of(s, c->process_id))
            session_feed_give_up(s, c->process_id);
        if (v->next[1] >= c->result.end[1] && v->next[2] >= c->result.end[2])
            tell_result(v);
    }
}

void session_views_writable(struct session *s, struct session_command *c)
{
    struct session_view *v;

    TAILQ_FOREACH(v, &s->views, link)
    {
        if (!s->freed && !v->freed && v->command == c && !v->told_result && v->cb.on_writable)
            v->cb.on_writable(v, v->userdata);
    }
}

/* ---- life ---- */

static int view_new(struct session *s, struct session_command *c,
                    const struct session_view_callbacks *cb, void *userdata,
                    struct session_view **ret, struct error *err)
{
    struct session_view *v;

    if (c->n_views >= SESSION_VIEWS_MAX)
        return error_set_code(err, ERR_TOO_MANY, "command %llu has %u views already",
                              (unsigned long long)c->number, SESSION_VIEWS_MAX);
    v = calloc(1, sizeof(*v));
    if (!v)
        return error_set(err, ENOMEM, "following a command");
    v->session = s;
    s->refs++;
    v->command = session_command_ref(c);
    c->n_views++;
    v->cb = *cb;
    v->userdata = userdata;
    TAILQ_INSERT_TAIL(&s->views, v, link);
    *ret = v;
    return 0;
}

/* Unlinks what was freed; not while somebody walks the list. */
void session_views_reap(struct session *s)
{
    struct session_view *v = TAILQ_FIRST(&s->views);

    while (v) {
        struct session_view *next = TAILQ_NEXT(v, link);

        if (v->freed) {
            TAILQ_REMOVE(&s->views, v, link);
            v->command->n_views--;
            session_command_unref(v->command);
            free(v);
            s->refs--;
        }
        v = next;
    }
}

struct session_view *session_view_free(struct session_view *v)
{
    struct session *s;

    if (!v)
        return NULL;
    s = v->session;
    session_enter(s);
    v->freed = true;
    if (!s->freed)
        session_kick(s); /* others may have waited for this one */
    session_leave(s);
    return NULL;
}

int session_run(struct session *s, const struct session_run_options *options,
                const struct session_view_callbacks *cb, void *userdata, struct session_view **ret,
                struct error *err)
{
    size_t size = strlen(options->text);
    struct session_command *c;
    int r;

    if (s->state == SESSION_DEAD || s->killing)
        return error_set_code(err, ERR_SESSION_DEAD, "session '%s' is over%s%s", s->name,
                              s->dead_reason.text[0] ? ": " : "", s->dead_reason.text);
    if (size > SESSION_TEXT_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED,
                              "command has %zu bytes, at most %u are taken", size,
                              SESSION_TEXT_MAX);
    if (s->n_queued >= SESSION_QUEUE_MAX)
        return error_set_code(err, ERR_TOO_MANY, "session '%s' has %u commands waiting already",
                              s->name, s->n_queued);
    c = session_command_new();
    if (c)
        c->text = strdup(options->text);
    if (!c || !c->text) {
        session_command_unref(c);
        return error_set(err, ENOMEM, "queueing a command");
    }
    c->timeout_msec = options->timeout_msec;
    c->with_stdin = options->with_stdin;
    r = view_new(s, c, cb, userdata, ret, err);
    if (r < 0) {
        session_command_unref(c);
        return r;
    }
    TAILQ_INSERT_TAIL(&s->queue, c, link);
    s->n_queued++;
    session_kick(s);
    return 0;
}

int session_attach(struct session *s, uint64_t command, const uint64_t from[3],
                   const struct session_view_callbacks *cb, void *userdata,
                   struct session_view **ret, struct error *err)
{
    struct session_command *c;
    int r;

    if (s->state == SESSION_DEAD)
        return error_set_code(err, ERR_SESSION_DEAD, "session '%s' is over: %s", s->name,
                              s->dead_reason.text);
    c = session_command_find(s, command);
    if (!c && command == 0)
        return error_set_code(err, ERR_NOT_FOUND, "session '%s' has run no command yet", s->name);
    if (!c)
        return error_set_code(err, ERR_NOT_FOUND, "session '%s' knows no command %llu (any more)",
                              s->name, (unsigned long long)command);
    r = view_new(s, c, cb, userdata, ret, err);
    if (r < 0)
        return r;
    for (int i = 1; i <= 2; i++) {
        uint64_t at = MAX(c->result.start[i], from ? from[i] : 0);

        if (c->done)
            at = MIN(at, c->result.end[i]);
        (*ret)->next[i] = (*ret)->consumed[i] = at;
    }
    session_kick(s);
    return 0;
}

uint64_t session_view_command(const struct session_view *v)
{
    return v->command->number;
}

void session_view_consumed(struct session_view *v, int stream, size_t size)
{
    if (stream != 1 && stream != 2)
        return;
    v->consumed[stream] += MIN((uint64_t)size, v->next[stream] - v->consumed[stream]);
    /* From inside on_output the pump follows anyway. */
    if (v->session->depth == 0 && !v->session->freed) {
        struct session_feed *f = session_feed_of(v->session, v->command->process_id);

        if (f)
            session_feed_ack(f);
    }
}

/* ---- the other way ---- */

static bool runs(const struct session_view *v)
{
    const struct session *s = v->session;

    return !s->freed && s->state == SESSION_RUNNING && s->current == v->command && s->feed &&
           s->feed->exec && s->feed->started;
}

size_t session_view_writable(const struct session_view *v)
{
    if (!runs(v))
        return 0;
    if (v->session->kind == SESSION_TTY)
        return exec_writable(v->session->feed->exec, 0);
    return v->command->input ? session_input_writable(v->command->input) : 0;
}

int session_view_write(struct session_view *v, const void *data, size_t size)
{
    if (v->command->done || v->session->freed)
        return -EPIPE;
    if (!runs(v))
        return -EAGAIN;
    if (v->session->kind == SESSION_TTY)
        return exec_write(v->session->feed->exec, 0, data, size);
    return v->command->input ? session_input_write(v->command->input, data, size) : -EPIPE;
}

int session_view_close_stdin(struct session_view *v)
{
    if (v->command->done || v->session->freed)
        return -EPIPE;
    if (v->session->kind == SESSION_TTY)
        return runs(v) ? exec_close_stream(v->session->feed->exec, 0) : -EAGAIN;
    if (v->command->input)
        return session_input_close(v->command->input);
    v->command->close_stdin = true;
    return 0;
}

int session_view_signal(struct session_view *v, int signo)
{
    struct session *s = v->session;

    if (signo <= 0 || signo >= NSIG)
        return -EINVAL;
    if (!runs(v))
        return v->command->number == 0 ? -EAGAIN : -ESRCH;
    if (signo == SIGKILL && s->force < SESSION_FORCE_KILL) {
        /* Goes on to the shell itself if that ends nothing. */
        session_command_force(s, SESSION_FORCE_KILL);
        return 0;
    }
    if (signo == SIGINT && s->kind == SESSION_PIPE) {
        session_command_interrupt(s);
        return 0;
    }
    return exec_signal(s->feed->exec, signo, EXEC_SIGNAL_RECENT);
}
