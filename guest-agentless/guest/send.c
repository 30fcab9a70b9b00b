#include <string.h>

#include "base/macros.h"
#include "guest/event.h"
#include "guest/server.h"
#include "protocol/frame.h"

/* Output towards the host: every process that has something gets its turn. */

#define TURN_SIZE (32u * 1024u) /* bytes of one stream before the next one's turn */

/* Sends a turn's worth; true when there is more that could go. */
static bool stream_send(struct stream *s)
{
    size_t left = TURN_SIZE;
    uint64_t limit;

    s->sent = stream_next(s);
    limit = MIN(s->window, s->ring.end);
    while (s->sent < limit && left > 0) {
        const uint8_t *data;
        size_t n = ring_peek(&s->ring, s->sent, &data);

        n = MIN(n, MIN(left, (size_t)MIN(limit - s->sent, (uint64_t)TURN_SIZE)));
        if (n == 0 || conn_send(s->process->server->active, FRAME_DATA, s->number,
                                s->process->channel, s->sent, data, (uint32_t)n) < 0)
            return false;
        s->sent += n;
        s->told = s->sent;
        left -= n;
    }
    if (left < TURN_SIZE)
        stream_unstall(s);
    return s->sent < limit;
}

static bool exit_due(const struct process *p)
{
    if (p->state != PROCESS_EXITED || p->exit_sent)
        return false;
    for (unsigned i = 0; i < PROCESS_STREAMS; i++) {
        const struct stream *s = &p->streams[i];

        if (s->present && !s->to_guest && (!s->drained || s->told < s->exit_end))
            return false;
    }
    return true;
}

/* Exit, ends of streams, and Closed when nothing can follow. Returns false when p is gone. */
static bool process_send_ends(struct process *p)
{
    struct server *s = p->server;
    uint32_t channel = p->channel;
    bool all = true;

    if (exit_due(p) && event_exit(p) == 0)
        p->exit_sent = true;
    for (unsigned i = 0; i < PROCESS_STREAMS; i++) {
        struct stream *stream = &p->streams[i];

        if (!stream->present || stream->to_guest)
            continue;
        if (stream->ended && !stream->end_sent && stream->sent == stream->ring.end &&
            event_stream_end(stream) == 0)
            stream->end_sent = true;
        all = all && stream->end_sent;
    }
    if (!p->exit_sent || !all || p->channel == 0)
        return true;
    p->channel = 0;
    if (p->op)
        process_free(p);
    event_closed(s, channel, "");
    return false;
}

static bool process_send(struct process *p)
{
    bool more = false;

    for (unsigned i = 0; i < PROCESS_STREAMS; i++) {
        struct stream *s = &p->streams[i];

        if (s->present && !s->to_guest && p->channel != 0)
            more |= stream_send(s);
    }
    if (p->channel == 0 || !process_send_ends(p))
        return false;
    return more;
}

void process_pump(struct server *s)
{
    while (s->active && conn_wants_data(s->active)) {
        struct process *p = TAILQ_FIRST(&s->ready);

        if (!p)
            return;
        TAILQ_REMOVE(&s->ready, p, ready_link);
        p->ready = false;
        if (process_send(p))
            process_mark_ready(p);
    }
}
