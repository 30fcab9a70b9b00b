#include "host/session-internal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* A view waits for bytes of this feed below `limit`; UINT64_MAX while the command runs. */
static uint64_t view_limit(const struct session_view *v, int stream)
{
    return v->command->done ? v->command->result.end[stream] : UINT64_MAX;
}

static bool view_follows(const struct session_view *v, const struct session_feed *f)
{
    return !v->freed && !v->told_result && v->command->number != 0 &&
           v->command->process_id == f->process_id && f->process_id != 0;
}

/* ---- output to views ---- */

/* It wants what the feed is past: it gets nothing until the feed has gone back for it. */
static bool view_is_behind(const struct session_view *v, const struct session_feed *f, int stream)
{
    return v->next[stream] < f->received[stream];
}

/* Bytes before `offset` are nowhere any more. */
static void view_skip(struct session_view *v, int stream, uint64_t offset)
{
    uint64_t to = MIN(offset, view_limit(v, stream));

    if (v->next[stream] >= to)
        return;
    v->consumed[stream] += to - v->next[stream];
    v->next[stream] = to;
}

static void deliver(struct session_view *v, int stream, uint64_t offset, const uint8_t *data,
                    size_t size)
{
    uint64_t end = MIN(offset + size, view_limit(v, stream));
    uint64_t from;

    view_skip(v, stream, offset);
    from = v->next[stream];
    if (from < offset || from >= end)
        return;
    v->next[stream] = end;
    v->cb.on_output(v, stream, from, data + (from - offset), (size_t)(end - from), v->userdata);
}

static void take_output(struct session_feed *f, int stream, uint64_t offset, const uint8_t *data,
                        size_t size)
{
    struct session *s = f->session;
    struct session_view *v;

    /* Views are not unlinked while we are on the stack, and new ones go to the end. */
    TAILQ_FOREACH(v, &s->views, link)
    {
        if (s->freed)
            return;
        if (view_follows(v, f) && !view_is_behind(v, f, stream))
            deliver(v, stream, offset, data, size);
    }
    if (offset > f->received[stream])
        f->acked[stream] += offset - f->received[stream];
    f->received[stream] = offset + size;
}

static void take_control(struct session_feed *f, uint64_t offset, const uint8_t *data, size_t size)
{
    struct session *s = f->session;
    struct session_message message;
    struct error err = {0};
    size_t used;
    int r;

    while (size > 0 && !s->freed && s->feed == f) {
        r = session_control_take(&s->control, offset, data, size, &used, &message, &err);
        if (r < 0) {
            session_die(s, &err);
            return;
        }
        if (r > 0)
            session_shell_message(s, &message);
        offset += used;
        data += used;
        size -= used;
    }
}

/* ---- events ---- */

static void on_started(struct exec *e, uint64_t process_id, uint32_t pid,
                       const struct exec_range ranges[EXEC_STREAMS_MAX], void *userdata)
{
    struct session_feed *f = userdata;
    struct session *s = f->session;
    struct session_view *v;

    (void)e;
    (void)pid;
    session_enter(s);
    f->started = true;
    f->process_id = process_id;
    f->written = ranges[SESSION_STREAM_TO].present ? ranges[SESSION_STREAM_TO].end : 0;
    TAILQ_FOREACH(v, &s->views, link)
    {
        for (int i = 1; i <= 2 && view_follows(v, f); i++)
            if (ranges[i].present)
                view_skip(v, i, ranges[i].start);
    }
    if (f == s->feed && s->phase == SESSION_PHASE_ADOPT) {
        s->phase = SESSION_PHASE_UP;
        if (s->current)
            session_shell_resend(s, f->written);
        else
            session_set_state(s, SESSION_IDLE, NULL);
    }
    if (f == s->feed && s->killing)
        (void)exec_signal(f->exec, SIGKILL, EXEC_SIGNAL_TREE);
    session_pump(s);
    session_leave(s);
}

static void on_output(struct exec *e, uint8_t stream, uint64_t offset, const uint8_t *data,
                      size_t size, void *userdata)
{
    struct session_feed *f = userdata;
    struct session *s = f->session;

    session_enter(s);
    if (stream == SESSION_STREAM_FROM) {
        exec_consumed(e, stream, size);
        if (f == s->feed)
            take_control(f, offset, data, size);
    } else if (stream == 1 || stream == 2) {
        take_output(f, stream, offset, data, size);
    } else {
        exec_consumed(e, stream, size);
    }
    session_pump(s);
    session_leave(s);
}

static void on_stream_end(struct exec *e, uint8_t stream, uint64_t offset, void *userdata)
{
    struct session_feed *f = userdata;
    struct session *s = f->session;
    struct session_view *v;

    (void)e;
    (void)offset;
    if (stream != 1 && stream != 2)
        return;
    session_enter(s);
    TAILQ_FOREACH(v, &s->views, link)
    {
        if (view_follows(v, f) && v->command->done && !view_is_behind(v, f, stream))
            view_skip(v, stream, UINT64_MAX);
    }
    session_pump(s);
    session_leave(s);
}

static void on_writable(struct exec *e, uint8_t stream, void *userdata)
{
    struct session_feed *f = userdata;
    struct session *s = f->session;

    (void)e;
    if (f != s->feed)
        return;
    session_enter(s);
    if (stream == 0 && s->current)
        session_views_writable(s, s->current);
    session_pump(s);
    session_leave(s);
}

static void on_exited(struct exec *e, const struct exec_exit *exit, void *userdata)
{
    struct session_feed *f = userdata;
    struct session *s = f->session;

    (void)e;
    session_enter(s);
    f->exited = true;
    if (f == s->feed)
        session_shell_exited(s, exit);
    session_pump(s);
    session_leave(s);
}

static void on_closed(struct exec *e, const struct error *reason, void *userdata)
{
    struct session_feed *f = userdata;
    struct session *s = f->session;

    (void)e;
    session_enter(s);
    f->exec = exec_free(f->exec);
    if (f == s->feed) {
        session_shell_closed(s, reason);
    } else if (reason->code != ERR_NONE || f->exited) {
        session_feed_give_up(s, f->process_id);
    }
    session_pump(s);
    session_leave(s);
}

static const struct exec_callbacks feed_callbacks = {
    .on_started = on_started,
    .on_output = on_output,
    .on_stream_end = on_stream_end,
    .on_writable = on_writable,
    .on_exit = on_exited,
    .on_closed = on_closed,
};

/* ---- life ---- */

struct session_feed *session_feed_new(struct session *s, uint64_t process_id)
{
    struct session_feed *f = calloc(1, sizeof(*f));

    if (f) {
        f->session = s;
        f->process_id = process_id;
    }
    return f;
}

struct session_feed *session_feed_free(struct session_feed *f)
{
    if (f)
        f->exec = exec_free(f->exec);
    free(f);
    return NULL;
}

int session_feed_start(struct session *s, const struct exec_spec *spec, struct session_feed **ret,
                       struct error *err)
{
    struct session_feed *f = session_feed_new(s, 0);
    int r;

    if (!f)
        return error_set(err, ENOMEM, "starting a shell");
    r = exec_start(s->console, spec, &feed_callbacks, f, &f->exec, err);
    if (r < 0)
        session_feed_free(f);
    else
        *ret = f;
    return r;
}

/* The oldest offset that somebody still wants, or where the running command began. */
static uint64_t wanted(const struct session_feed *f, int stream)
{
    const struct session *s = f->session;
    const struct session_view *v;
    uint64_t from = UINT64_MAX;

    TAILQ_FOREACH(v, &s->views, link)
    {
        if (view_follows(v, f) && v->next[stream] < view_limit(v, stream))
            from = MIN(from, v->next[stream]);
    }
    if (from == UINT64_MAX)
        from = f == s->feed ? s->mark[stream] : f->received[stream];
    return from;
}

int session_feed_attach(struct session_feed *f, struct error *err)
{
    struct session *s = f->session;
    uint64_t from[EXEC_STREAMS_MAX] = {0};
    struct exec *e;
    int r;

    for (int i = 1; i <= 2; i++)
        from[i] = wanted(f, i);
    /* Of an old shell, only the output counts. */
    from[SESSION_STREAM_FROM] = f == s->feed ? session_control_resume(&s->control) : INT64_MAX;
    r = exec_attach(s->console, f->process_id, from, &feed_callbacks, f, &e, err);
    if (r < 0)
        return r;
    if (f == s->feed)
        session_control_reset(&s->control, from[SESSION_STREAM_FROM]);
    exec_free(f->exec);
    f->exec = e;
    f->started = false;
    for (int i = 1; i <= 2; i++)
        f->received[i] = f->acked[i] = from[i];
    return 0;
}

void session_feed_serve(struct session_feed *f)
{
    struct session *s = f->session;
    struct error err = {0};
    bool behind = false, waiting = false;

    if (f->process_id == 0 || s->state == SESSION_DEAD)
        return;
    for (int i = 1; i <= 2; i++) {
        const struct session_view *v;

        TAILQ_FOREACH(v, &s->views, link)
        {
            if (!view_follows(v, f) || v->next[i] >= view_limit(v, i))
                continue;
            waiting = true;
            behind = behind || view_is_behind(v, f, i);
        }
    }
    if (!behind && (f->exec || !waiting))
        return;
    if (session_feed_attach(f, &err) < 0)
        session_feed_give_up(s, f->process_id);
}

void session_feed_ack(struct session_feed *f)
{
    struct session *s = f->session;

    if (!f->exec || !f->started)
        return;
    for (uint8_t i = 1; i <= 2; i++) {
        uint64_t to = UINT64_MAX;
        const struct session_view *v;

        TAILQ_FOREACH(v, &s->views, link)
        {
            if (view_follows(v, f) && v->consumed[i] < view_limit(v, i))
                to = MIN(to, v->consumed[i]);
        }
        /* What children of a dead shell still write must not stall them. */
        if (to == UINT64_MAX)
            to = f == s->feed ? f->acked[i] : f->received[i];
        to = MIN(MAX(to, f->acked[i]), f->received[i]);
        if (s->drain[i] > 0 && f == s->feed && to < f->received[i]) {
            uint64_t more = MIN(s->drain[i], f->received[i] - to);

            if (s->drain[i] != UINT64_MAX)
                s->drain[i] -= more;
            to += more;
        }
        if (to <= f->acked[i])
            continue;
        exec_consumed(f->exec, i, (size_t)(to - f->acked[i]));
        f->acked[i] = to;
    }
}

struct session_feed *session_feed_of(struct session *s, uint64_t process_id)
{
    if (s->feed && s->feed->process_id == process_id)
        return s->feed;
    if (s->old && s->old->process_id == process_id)
        return s->old;
    return NULL;
}

void session_feed_give_up(struct session *s, uint64_t process_id)
{
    struct session_view *v;

    TAILQ_FOREACH(v, &s->views, link)
    {
        if (v->freed || !v->command->done || v->command->process_id != process_id)
            continue;
        view_skip(v, 1, UINT64_MAX);
        view_skip(v, 2, UINT64_MAX);
    }
}
