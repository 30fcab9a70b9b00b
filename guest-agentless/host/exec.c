#include "host/exec.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/call.h"
#include "host/exec-internal.h"

/*
 * Theory of operation. An exec is the owner of one channel. Every function that the channel calls
 * ends with the user's callback and touches nothing after it, because the callback may free the
 * exec. When the channel is gone (`ch` is NULL) the exec is an empty shell until its owner frees
 * it.
 */
struct exec {
    struct channel *ch; /* weak; NULL: over */
    struct exec_callbacks cb;
    void *userdata;
    char *what; /* owned: what was attempted, for errors */
    uint64_t process_id;
    bool attached; /* by exec_attach: streams are known when Started tells */
    bool started, exited;
    bool has_from;
    uint64_t from[EXEC_STREAMS_MAX];
};

int exec_exit_code(const struct exec_exit *exit)
{
    return exit->signal ? 128 + exit->signal : exit->status;
}

/* ---- what the guest says ---- */

int exec_take_ranges(Hearth__V1__StreamRange *const *from, size_t count,
                     struct exec_range to[EXEC_STREAMS_MAX], struct error *err)
{
    memset(to, 0, EXEC_STREAMS_MAX * sizeof(*to));
    for (size_t i = 0; i < count; i++) {
        const Hearth__V1__StreamRange *range = from[i];

        if (range->stream >= EXEC_STREAMS_MAX || to[range->stream].present ||
            range->end < range->start || range->end > INT64_MAX)
            return error_set_code(err, ERR_GUEST_PROTOCOL,
                                  "guest told an impossible range of stream %u", range->stream);
        to[range->stream] = (struct exec_range){
            .start = range->start, .end = range->end, .present = true, .ended = range->ended};
    }
    return 0;
}

int exec_take_exit(const Hearth__V1__Exit *from, struct exec_exit *to, struct error *err)
{
    *to = (struct exec_exit){
        .status = (uint8_t)from->status,
        .signal = (uint8_t)from->signal,
        .timed_out = from->timed_out,
        .oom_killed = from->oom_killed,
        .user_usec = from->user_usec,
        .system_usec = from->system_usec,
        .max_rss_bytes = from->max_rss_bytes,
        .wall_usec = from->wall_usec,
    };
    if (from->status > 255 || from->signal > 127)
        return error_set_code(err, ERR_GUEST_PROTOCOL,
                              "guest told the impossible exit status %u, signal %u", from->status,
                              from->signal);
    for (size_t i = 0; i < from->n_ends; i++) {
        if (from->ends[i]->stream >= EXEC_STREAMS_MAX)
            return error_set_code(err, ERR_GUEST_PROTOCOL, "guest told the end of stream %u",
                                  from->ends[i]->stream);
        to->end[from->ends[i]->stream] = from->ends[i]->offset;
    }
    return 0;
}

/* After attach: where output goes on, and where input stands. */
static void take_attached_streams(struct exec *e, const struct exec_range *ranges)
{
    for (uint8_t i = 0; i < EXEC_STREAMS_MAX; i++) {
        uint64_t at = ranges[i].start;

        if (!ranges[i].present)
            continue;
        if (e->has_from)
            at = MIN(MAX(e->from[i], at), ranges[i].end);
        /* Whether an extra stream goes in or out is for the one who attaches to know. */
        if (i != 0)
            (void)channel_expect(e->ch, i, at, /* announce= */ true);
        if (i == 0 || i >= 3)
            channel_input(e->ch, i, ranges[i].end);
    }
}

static int on_started(struct exec *e, const Hearth__V1__Started *started, struct error *err)
{
    struct exec_range ranges[EXEC_STREAMS_MAX];
    int r;

    if (e->started)
        return error_set_code(err, ERR_GUEST_PROTOCOL, "guest sent Started twice");
    r = exec_take_ranges(started->streams, started->n_streams, ranges, err);
    if (r < 0)
        return r;
    if (started->process_id == 0 || (e->attached && started->process_id != e->process_id))
        return error_set_code(err, ERR_GUEST_PROTOCOL, "guest started process %llu",
                              (unsigned long long)started->process_id);
    e->started = true;
    e->process_id = started->process_id;
    if (e->attached)
        take_attached_streams(e, ranges);
    if (e->cb.on_started)
        e->cb.on_started(e, e->process_id, started->pid, ranges, e->userdata);
    return 0;
}

static int on_exit_event(struct exec *e, const Hearth__V1__Exit *event, struct error *err)
{
    struct exec_exit exit;
    int r;

    if (!e->started || e->exited)
        return error_set_code(err, ERR_GUEST_PROTOCOL, "guest sent Exit %s",
                              e->exited ? "twice" : "before Started");
    r = exec_take_exit(event, &exit, err);
    if (r < 0)
        return r;
    for (uint8_t i = 0; i < EXEC_STREAMS_MAX; i++)
        if (exit.end[i] > channel_received(e->ch, i))
            return error_set_code(err, ERR_GUEST_PROTOCOL,
                                  "guest sent Exit before the output of stream %u", i);
    e->exited = true;
    if (e->cb.on_exit)
        e->cb.on_exit(e, &exit, e->userdata);
    return 0;
}

static int on_event(void *owner, const Hearth__V1__Event *event, struct error *err)
{
    struct exec *e = owner;

    if (event->event_case == HEARTH__V1__EVENT__EVENT_STARTED)
        return on_started(e, event->started, err);
    if (event->event_case == HEARTH__V1__EVENT__EVENT_EXIT)
        return on_exit_event(e, event->exit, err);
    return channel_unexpected(event, "on the channel of a process", err);
}

static int on_data(void *owner, uint8_t stream, uint64_t offset, const uint8_t *data, size_t size,
                   struct error *err)
{
    struct exec *e = owner;

    if (!e->started)
        return error_set_code(err, ERR_GUEST_PROTOCOL, "guest sent output before Started");
    if (e->cb.on_output)
        e->cb.on_output(e, stream, offset, data, size, e->userdata);
    else
        channel_consumed(e->ch, stream, size);
    return 0;
}

static int on_stream_end(void *owner, uint8_t stream, uint64_t offset, struct error *err)
{
    struct exec *e = owner;

    if (!e->started)
        return error_set_code(err, ERR_GUEST_PROTOCOL, "guest ended a stream before Started");
    if (e->cb.on_stream_end)
        e->cb.on_stream_end(e, stream, offset, e->userdata);
    return 0;
}

static void on_writable(void *owner, uint8_t stream)
{
    struct exec *e = owner;

    if (e->cb.on_writable)
        e->cb.on_writable(e, stream, e->userdata);
}

static void on_closed(void *owner, const Hearth__V1__Closed *closed, const Hearth__V1__Error *error,
                      const struct error *reason)
{
    struct exec *e = owner;
    struct error err = {0};
    char text[128];

    e->ch = NULL;
    if (error) {
        wire_error(error, WIRE_SUBJECT_PROCESS, e->what, &err);
    } else if (closed && e->exited) {
        (void)snprintf(err.text, sizeof(err.text), "%s: ended", e->what);
    } else if (closed) {
        (void)wire_escape_string(text, sizeof(text), closed->reason);
        (void)error_set_code(&err, ERR_CONFLICT, "%s: attachment is over: %s", e->what,
                             text[0] ? text : "no reason given");
    } else {
        error_copy(&err, reason);
        error_wrap(&err, "%s", e->what);
    }
    if (e->cb.on_closed)
        e->cb.on_closed(e, &err, e->userdata);
}

static void on_orphaned(void *owner)
{
    struct exec *e = owner;

    e->ch = NULL;
}

static const struct channel_ops exec_ops = {
    .event = on_event,
    .data = on_data,
    .stream_end = on_stream_end,
    .writable = on_writable,
    .closed = on_closed,
    .orphaned = on_orphaned,
};

/* ---- starting ---- */

/* Takes `what`, even on failure. */
static struct exec *exec_new(const struct exec_callbacks *cb, void *userdata, char *what)
{
    struct exec *e = what ? calloc(1, sizeof(*e)) : NULL;

    if (!e) {
        free(what);
        return NULL;
    }
    e->cb = *cb;
    e->userdata = userdata;
    e->what = what;
    return e;
}

struct exec *exec_free(struct exec *e)
{
    if (!e)
        return NULL;
    e->ch = channel_release(e->ch);
    free(e->what);
    free(e);
    return NULL;
}

int exec_start(struct console *c, const struct exec_spec *spec, const struct exec_callbacks *cb,
               void *userdata, struct exec **ret, struct error *err)
{
    _cleanup_exec_message_ struct exec_message m = {0};
    char command[97];
    struct exec *e;
    char *what;
    int r;

    r = exec_message_init(&m, spec, err);
    if (r < 0)
        return r;
    (void)wire_escape_string(command, sizeof(command), spec->argv[0]);
    if (asprintf(&what, "command '%s'", command) < 0)
        what = NULL;
    e = exec_new(cb, userdata, what);
    if (!e)
        return error_set(err, ENOMEM, "starting a process");
    r = channel_open(c, &m.request, &exec_ops, e, &e->ch, err);
    if (r < 0) {
        exec_free(e);
        return r;
    }
    for (size_t i = 0; i < m.exec.n_windows; i++)
        (void)channel_expect(e->ch, (uint8_t)m.windows[i].stream, 0, /* announce= */ false);
    if (!spec->close_stdin || spec->tty)
        channel_input(e->ch, 0, 0);
    for (size_t i = 0; i < spec->n_streams; i++)
        if (spec->streams[i].to_guest)
            channel_input(e->ch, spec->streams[i].fd, 0);
    if (spec->drop_when_full)
        channel_allow_gaps(e->ch);
    *ret = e;
    return 0;
}

struct attach_limits {
    Hearth__V1__StreamLimit from[EXEC_STREAMS_MAX], *from_list[EXEC_STREAMS_MAX];
    Hearth__V1__StreamLimit windows[EXEC_STREAMS_MAX], *window_list[EXEC_STREAMS_MAX];
};

/* Known offsets come with their windows, so that output follows without another round trip. */
static void fill_limits(struct attach_limits *limits, const uint64_t from[EXEC_STREAMS_MAX],
                        Hearth__V1__Attach *attach)
{
    size_t n = 0;

    for (uint32_t i = 1; i < EXEC_STREAMS_MAX; i++, n++) {
        hearth__v1__stream_limit__init(&limits->from[n]);
        limits->from[n].stream = i;
        limits->from[n].offset = from[i];
        limits->from_list[n] = &limits->from[n];
        hearth__v1__stream_limit__init(&limits->windows[n]);
        limits->windows[n].stream = i;
        limits->windows[n].offset = from[i] + EXEC_WINDOW;
        limits->window_list[n] = &limits->windows[n];
    }
    attach->from = limits->from_list;
    attach->n_from = n;
    attach->windows = limits->window_list;
    attach->n_windows = n;
}

int exec_attach(struct console *c, uint64_t process_id, const uint64_t from[EXEC_STREAMS_MAX],
                const struct exec_callbacks *cb, void *userdata, struct exec **ret,
                struct error *err)
{
    Hearth__V1__Attach attach = HEARTH__V1__ATTACH__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    struct attach_limits limits;
    struct exec *e;
    char *what;
    int r;

    if (process_id == 0)
        return error_set_code(err, ERR_PROCESS_NOT_FOUND, "there is no process 0");
    for (size_t i = 0; from && i < EXEC_STREAMS_MAX; i++)
        if (from[i] > INT64_MAX)
            return error_set_code(err, ERR_INVALID_ARGUMENT, "offset of stream %zu is out of range",
                                  i);
    if (asprintf(&what, "process %llu", (unsigned long long)process_id) < 0)
        what = NULL;
    e = exec_new(cb, userdata, what);
    if (!e)
        return error_set(err, ENOMEM, "attaching to a process");
    e->attached = true;
    e->process_id = process_id;
    attach.process_id = process_id;
    if (from) {
        e->has_from = true;
        memcpy(e->from, from, sizeof(e->from));
        fill_limits(&limits, from, &attach);
    }
    request.op_case = HEARTH__V1__REQUEST__OP_ATTACH;
    request.attach = &attach;
    r = channel_open(c, &request, &exec_ops, e, &e->ch, err);
    if (r < 0) {
        exec_free(e);
        return r;
    }
    channel_allow_gaps(e->ch);
    for (uint8_t i = 1; from && i < EXEC_STREAMS_MAX; i++)
        (void)channel_expect(e->ch, i, from[i], /* announce= */ false);
    *ret = e;
    return 0;
}

uint64_t exec_process_id(const struct exec *e)
{
    return e->started ? e->process_id : 0;
}

/* ---- the other way ---- */

size_t exec_writable(const struct exec *e, uint8_t stream)
{
    return e->ch && stream < EXEC_STREAMS_MAX ? channel_writable(e->ch, stream) : 0;
}

int exec_write(struct exec *e, uint8_t stream, const void *data, size_t size)
{
    if (stream >= EXEC_STREAMS_MAX)
        return -EBADF;
    return e->ch ? channel_write(e->ch, stream, data, size) : -EPIPE;
}

int exec_close_stream(struct exec *e, uint8_t stream)
{
    if (stream >= EXEC_STREAMS_MAX)
        return -EBADF;
    return e->ch ? channel_close_stream(e->ch, stream) : -EPIPE;
}

void exec_consumed(struct exec *e, uint8_t stream, size_t size)
{
    if (e->ch && stream < EXEC_STREAMS_MAX)
        channel_consumed(e->ch, stream, size);
}

static Hearth__V1__Signal__Scope scope_of(enum exec_signal_scope scope)
{
    switch (scope) {
    case EXEC_SIGNAL_PROCESS:
        break;
    case EXEC_SIGNAL_TREE:
        return HEARTH__V1__SIGNAL__SCOPE__TREE;
    case EXEC_SIGNAL_RECENT:
        return HEARTH__V1__SIGNAL__SCOPE__RECENT;
    case EXEC_SIGNAL_FOREGROUND:
        return HEARTH__V1__SIGNAL__SCOPE__FOREGROUND;
    }
    return HEARTH__V1__SIGNAL__SCOPE__PROCESS;
}

int exec_signal(struct exec *e, int signo, enum exec_signal_scope scope)
{
    Hearth__V1__Signal signal = HEARTH__V1__SIGNAL__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;

    if (signo < 1 || signo > 64)
        return -EINVAL;
    if (!e->ch)
        return -EPIPE;
    signal.signo = (uint32_t)signo;
    signal.scope = scope_of(scope);
    request.op_case = HEARTH__V1__REQUEST__OP_SIGNAL;
    request.signal = &signal;
    return channel_request(e->ch, &request);
}

int exec_resize(struct exec *e, uint16_t rows, uint16_t cols)
{
    Hearth__V1__Resize resize = HEARTH__V1__RESIZE__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;

    if (rows == 0 || cols == 0)
        return -EINVAL;
    if (!e->ch)
        return -EPIPE;
    resize.rows = rows;
    resize.cols = cols;
    request.op_case = HEARTH__V1__REQUEST__OP_RESIZE;
    request.resize = &resize;
    return channel_request(e->ch, &request);
}

int exec_signal_process(struct console *c, uint64_t process_id, int signo,
                        enum exec_signal_scope scope, uint64_t deadline_usec, console_done_fn done,
                        void *userdata)
{
    Hearth__V1__Signal signal = HEARTH__V1__SIGNAL__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;

    if (signo < 1 || signo > 64 || process_id == 0)
        return -EINVAL;
    signal.process_id = process_id;
    signal.signo = (uint32_t)signo;
    signal.scope = scope_of(scope);
    request.op_case = HEARTH__V1__REQUEST__OP_SIGNAL;
    request.signal = &signal;
    return call_plain(c, "signalling a process", WIRE_SUBJECT_PROCESS, &request, deadline_usec,
                      done, userdata);
}

int exec_release(struct console *c, uint64_t process_id, uint64_t deadline_usec,
                 console_done_fn done, void *userdata)
{
    Hearth__V1__Release release = HEARTH__V1__RELEASE__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;

    if (process_id == 0)
        return -EINVAL;
    release.process_id = process_id;
    request.op_case = HEARTH__V1__REQUEST__OP_RELEASE;
    request.release = &release;
    return call_plain(c, "forgetting a process", WIRE_SUBJECT_PROCESS, &request, deadline_usec,
                      done, userdata);
}
