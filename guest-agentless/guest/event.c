#include "guest/event.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/clock.h"
#include "guest/server.h"
#include "guest/version.h"
#include "protocol/frame.h"

#define STREAMS PROCESS_STREAMS

int event_send(struct server *s, uint32_t channel, const Hearth__V1__Event *event)
{
    _cleanup_free_ uint8_t *data = NULL;
    size_t size;

    if (!s->active || channel == 0)
        return -ENOTCONN;
    size = hearth__v1__event__get_packed_size(event);
    if (size > FRAME_EVENT_MAX)
        return -EMSGSIZE;
    data = malloc(size + 1);
    if (!data)
        return -ENOMEM;
    (void)hearth__v1__event__pack(event, data);
    return conn_send(s->active, FRAME_CONTROL, 0, channel, 0, data, (uint32_t)size);
}

/* Length of the UTF-8 character at p, 0 when it is none. */
static size_t utf8_length(const unsigned char *p)
{
    size_t n = p[0] < 0x80 ? 1 : p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;

    if (p[0] < 0x80)
        return p[0] >= 0x20 && p[0] != 0x7f ? 1 : 0;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    }
    return n;
}

void text_clean(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p;) {
        size_t n = utf8_length(p);

        if (n == 0)
            *p = '?';
        p += n ? n : 1;
    }
}

void event_error(struct server *s, uint32_t channel, int code, int errnum, const char *format, ...)
{
    Hearth__V1__Error error = HEARTH__V1__ERROR__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    char text[512];
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    text_clean(text);
    error.code = (Hearth__V1__Code)code;
    error.errnum = (uint32_t)errnum;
    error.message = text;
    event.event_case = HEARTH__V1__EVENT__EVENT_ERROR;
    event.error = &error;
    (void)event_send(s, channel, &event);
}

void event_done(struct server *s, uint32_t channel)
{
    Hearth__V1__Done done = HEARTH__V1__DONE__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;

    event.event_case = HEARTH__V1__EVENT__EVENT_DONE;
    event.done = &done;
    (void)event_send(s, channel, &event);
}

void event_closed(struct server *s, uint32_t channel, const char *reason)
{
    Hearth__V1__Closed closed = HEARTH__V1__CLOSED__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    char text[64];

    (void)snprintf(text, sizeof(text), "%s", reason);
    closed.reason = text;
    event.event_case = HEARTH__V1__EVENT__EVENT_CLOSED;
    event.closed = &closed;
    (void)event_send(s, channel, &event);
}

/* Fills one range per stream; returns their number. */
static size_t fill_ranges(const struct process *p, Hearth__V1__StreamRange ranges[STREAMS],
                          Hearth__V1__StreamRange *pointers[STREAMS])
{
    size_t n = 0;

    for (unsigned i = 0; i < STREAMS; i++) {
        const struct stream *s = &p->streams[i];

        if (!s->present)
            continue;
        hearth__v1__stream_range__init(&ranges[n]);
        ranges[n].stream = i;
        ranges[n].start = s->to_guest ? s->received : s->ring.start;
        ranges[n].end = s->to_guest ? s->received : s->ring.end;
        ranges[n].ended = s->to_guest ? s->close_asked || s->fd < 0 : s->ended;
        pointers[n] = &ranges[n];
        n++;
    }
    return n;
}

void event_started(struct process *p)
{
    Hearth__V1__Started started = HEARTH__V1__STARTED__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    Hearth__V1__StreamRange ranges[STREAMS], *pointers[STREAMS];

    started.process_id = p->id;
    started.pid = (uint32_t)p->pid;
    started.n_streams = fill_ranges(p, ranges, pointers);
    started.streams = pointers;
    event.event_case = HEARTH__V1__EVENT__EVENT_STARTED;
    event.started = &started;
    (void)event_send(p->server, p->channel, &event);
    for (unsigned i = 0; i < STREAMS; i++) {
        if (p->streams[i].present && p->streams[i].to_guest)
            stream_grant(&p->streams[i], true);
    }
}

static uint64_t timeval_usec(const struct timeval *t)
{
    return (uint64_t)t->tv_sec * USEC_PER_SEC + (uint64_t)t->tv_usec;
}

static void fill_exit(const struct process *p, Hearth__V1__Exit *e,
                      Hearth__V1__StreamLimit limits[STREAMS],
                      Hearth__V1__StreamLimit *pointers[STREAMS])
{
    size_t n = 0;

    hearth__v1__exit__init(e);
    e->status = p->status;
    e->signal = p->signal;
    e->timed_out = p->timed_out;
    e->oom_killed = p->oom_killed;
    e->user_usec = timeval_usec(&p->usage.ru_utime);
    e->system_usec = timeval_usec(&p->usage.ru_stime);
    e->max_rss_bytes = (uint64_t)p->usage.ru_maxrss * 1024;
    e->wall_usec = p->ended_usec - p->started_usec;
    for (unsigned i = 0; i < STREAMS; i++) {
        const struct stream *s = &p->streams[i];

        if (!s->present || s->to_guest)
            continue;
        hearth__v1__stream_limit__init(&limits[n]);
        limits[n].stream = i;
        limits[n].offset = s->drained ? s->exit_end : s->ring.end;
        pointers[n] = &limits[n];
        n++;
    }
    e->n_ends = n;
    e->ends = pointers;
}

int event_exit(struct process *p)
{
    Hearth__V1__Exit exit_info;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    Hearth__V1__StreamLimit limits[STREAMS], *pointers[STREAMS];

    fill_exit(p, &exit_info, limits, pointers);
    event.event_case = HEARTH__V1__EVENT__EVENT_EXIT;
    event.exit = &exit_info;
    return event_send(p->server, p->channel, &event);
}

int event_stream_end(struct stream *s)
{
    Hearth__V1__StreamEnd end = HEARTH__V1__STREAM_END__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;

    end.stream = s->number;
    end.offset = s->ring.end;
    event.event_case = HEARTH__V1__EVENT__EVENT_STREAM_END;
    event.stream_end = &end;
    return event_send(s->process->server, s->process->channel, &event);
}

void event_window(struct stream *s)
{
    Hearth__V1__Window window = HEARTH__V1__WINDOW__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;

    window.stream = s->number;
    window.offset = s->granted;
    event.event_case = HEARTH__V1__EVENT__EVENT_WINDOW;
    event.window = &window;
    (void)event_send(s->process->server, s->process->channel, &event);
}

/* One entry of List, with the storage that its pointers need. */
struct entry {
    Hearth__V1__ProcessInfo info;
    Hearth__V1__Exit exit_info;
    Hearth__V1__StreamRange ranges[STREAMS], *range_pointers[STREAMS];
    Hearth__V1__StreamLimit limits[STREAMS], *limit_pointers[STREAMS];
    ProtobufCBinaryData argv[64];
};

#define LIST_BATCH 16u /* entries of one event: far below FRAME_EVENT_MAX */

static void fill_entry(const struct process *p, struct entry *e)
{
    hearth__v1__process_info__init(&e->info);
    e->info.process_id = p->id;
    e->info.pid = (uint32_t)p->pid;
    e->info.running = p->state < PROCESS_EXITED;
    e->info.tty = p->tty;
    e->info.label = p->label ? p->label : e->info.label;
    e->info.started_realtime_usec = p->started_wall_usec;
    e->info.n_streams = fill_ranges(p, e->ranges, e->range_pointers);
    e->info.streams = e->range_pointers;
    if (!e->info.running) {
        fill_exit(p, &e->exit_info, e->limits, e->limit_pointers);
        e->info.exit = &e->exit_info;
    }
    for (size_t i = 0; p->argv && p->argv[i] && i < ARRAY_SIZE(e->argv); i++) {
        e->argv[i].data = (uint8_t *)p->argv[i];
        e->argv[i].len = strlen(p->argv[i]);
        e->info.n_argv = i + 1;
    }
    e->info.argv = e->argv;
}

static void send_list(struct server *s, uint32_t channel, struct entry *entries, size_t n,
                      bool more)
{
    Hearth__V1__ListReply reply = HEARTH__V1__LIST_REPLY__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    Hearth__V1__ProcessInfo *pointers[LIST_BATCH];

    for (size_t i = 0; i < n; i++)
        pointers[i] = &entries[i].info;
    reply.processes = pointers;
    reply.n_processes = n;
    reply.more = more;
    event.event_case = HEARTH__V1__EVENT__EVENT_LIST;
    event.list = &reply;
    (void)event_send(s, channel, &event);
}

void event_list(struct server *s, uint32_t channel)
{
    _cleanup_free_ struct entry *entries = calloc(LIST_BATCH, sizeof(*entries));
    struct process *p;
    size_t n = 0;

    if (!entries) {
        event_error(s, channel, HEARTH__V1__CODE__CODE_SYSTEM, ENOMEM, "out of memory");
        return;
    }
    TAILQ_FOREACH(p, &s->processes, link)
    {
        if (p->op || p->state == PROCESS_RELEASED || p->state == PROCESS_SPAWNING)
            continue;
        if (n == LIST_BATCH) {
            send_list(s, channel, entries, n, true);
            n = 0;
        }
        fill_entry(p, &entries[n++]);
    }
    send_list(s, channel, entries, n, false);
}

void event_hello(struct server *s, uint32_t channel, const Hearth__V1__Hello *hello, bool continued)
{
    Hearth__V1__HelloReply reply = HEARTH__V1__HELLO_REPLY__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    char version[] = HEARTH_INIT_VERSION;
    struct utsname name;

    if (uname(&name) == 0)
        reply.kernel = name.release;
    reply.version = PROTOCOL_VERSION;
    reply.nonce = hello->nonce;
    reply.init_version = version;
    reply.thawed = s->thawed;
    reply.uptime_usec = clock_now_usec();
    reply.max_processes = PROCESSES_MAX;
    reply.continued = continued;
    event.event_case = HEARTH__V1__EVENT__EVENT_HELLO;
    event.hello = &reply;
    (void)event_send(s, channel, &event);
}
