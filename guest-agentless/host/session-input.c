#include "host/session-internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strv.h"

/*
 * Theory of operation. The shell opens a FIFO of the session's user as the command's stdin; a
 * transfer to the same path is the writer. Both opens wait for each other, so the name can go as
 * soon as the transfer is ready. The command's end breaks the transfer off: background readers then
 * see the end of file.
 */
struct session_input {
    struct session *session;         /* weak */
    struct session_command *command; /* weak: owns us */
    unsigned place;                  /* index in places */
    char path[64];
    struct file_call *call;  /* owned: makes the FIFO */
    struct transfer *writer; /* owned; NULL: not yet, or over */
    bool made, ready, over, close_asked, closed;
};

static const char *const places[] = {"/run", "/tmp", "/dev/shm"};

static int make_fifo(struct session_input *in, struct error *err);

/* ---- events ---- */

static void on_removed(const struct error *err, void *userdata)
{
    struct session_removal *removal = userdata;

    (void)err; /* it lies in a directory of temporary files */
    LIST_REMOVE(removal, link);
    file_call_free(removal->call);
    free(removal);
}

/* Goes on when the input is gone. */
static void remove_fifo(struct session_input *in)
{
    struct session *s = in->session;
    struct session_removal *removal;

    if (!in->made)
        return;
    in->made = false;
    removal = calloc(1, sizeof(*removal));
    if (!removal)
        return;
    if (file_remove(s->console, s->user, in->path, false, on_removed, removal, &removal->call,
                    NULL) < 0) {
        free(removal);
        return;
    }
    LIST_INSERT_HEAD(&s->removals, removal, link);
}

void session_removals_free(struct session *s)
{
    struct session_removal *removal = LIST_FIRST(&s->removals);

    while (removal) {
        LIST_REMOVE(removal, link);
        file_call_free(removal->call);
        free(removal);
        removal = LIST_FIRST(&s->removals);
    }
}

static void on_ready(struct transfer *t, uint64_t size, void *userdata)
{
    struct session_input *in = userdata;
    struct session *s = in->session;

    (void)t;
    (void)size;
    session_enter(s);
    in->ready = true;
    remove_fifo(in);
    if (in->close_asked)
        (void)session_input_close(in);
    else
        session_views_writable(s, in->command);
    session_pump(s);
    session_leave(s);
}

static void on_writable(struct transfer *t, void *userdata)
{
    struct session_input *in = userdata;
    struct session *s = in->session;

    (void)t;
    session_enter(s);
    session_views_writable(s, in->command);
    session_leave(s);
}

static void on_done(struct transfer *t, const struct error *err, void *userdata)
{
    struct session_input *in = userdata;
    struct session *s = in->session;

    (void)t;
    (void)err; /* whoever read it may close it at any time */
    session_enter(s);
    in->writer = transfer_free(in->writer);
    in->over = true;
    /* A shell that waits for a writer which never comes cannot be reached in another way. */
    if (!in->ready && s->current == in->command)
        session_command_force(s, SESSION_FORCE_TREE);
    session_pump(s);
    session_leave(s);
}

static const struct transfer_callbacks writer_callbacks = {
    .on_ready = on_ready,
    .on_writable = on_writable,
    .on_done = on_done,
};

static int start_writer(struct session_input *in, struct error *err)
{
    return file_write_start(in->session->console, in->session->user, in->path, NULL,
                            &writer_callbacks, in, &in->writer, err);
}

static void on_made(const struct error *made_err, void *userdata)
{
    struct session_input *in = userdata;
    struct session *s = in->session;
    struct error err = {0};

    session_enter(s);
    in->call = file_call_free(in->call);
    if (!made_err) {
        in->made = true;
        if (start_writer(in, &err) >= 0)
            session_command_send(s, in->path);
        else
            session_command_fail(s, &err);
    } else if (++in->place < ARRAY_SIZE(places)) {
        if (make_fifo(in, &err) < 0)
            session_command_fail(s, &err);
    } else {
        error_copy(&err, made_err);
        error_wrap(&err, "no place for the command's input");
        session_command_fail(s, &err);
    }
    session_pump(s);
    session_leave(s);
}

static int make_fifo(struct session_input *in, struct error *err)
{
    char id[17];
    int r = random_id(id, sizeof(id) - 1);

    if (r < 0)
        return error_fill(err, r, "naming the command's input");
    (void)snprintf(in->path, sizeof(in->path), "%s/hearth-stdin-%s", places[in->place], id);
    return file_mkfifo(in->session->console, in->session->user, in->path, 0600, on_made, in,
                       &in->call, err);
}

/* ---- life ---- */

int session_input_start(struct session *s, struct session_command *c, struct error *err)
{
    struct session_input *in = calloc(1, sizeof(*in));
    int r;

    if (!in)
        return error_set(err, ENOMEM, "preparing the command's input");
    in->session = s;
    in->command = c;
    in->close_asked = c->close_stdin;
    r = make_fifo(in, err);
    if (r < 0)
        free(in);
    else
        c->input = in;
    return r;
}

struct session_input *session_input_free(struct session_input *in)
{
    if (!in)
        return NULL;
    in->writer = transfer_free(in->writer);
    in->call = file_call_free(in->call);
    if (!in->session->freed)
        remove_fifo(in);
    free(in);
    return NULL;
}

/* ---- content ---- */

size_t session_input_writable(const struct session_input *in)
{
    return in->writer && in->ready && !in->close_asked ? transfer_writable(in->writer) : 0;
}

int session_input_write(struct session_input *in, const void *data, size_t size)
{
    if (in->over || in->close_asked)
        return -EPIPE;
    if (!in->writer || !in->ready)
        return size == 0 ? 0 : -EAGAIN;
    return transfer_write(in->writer, data, size);
}

int session_input_close(struct session_input *in)
{
    in->close_asked = true;
    if (!in->writer || !in->ready || in->closed)
        return 0;
    in->closed = true;
    return transfer_finish(in->writer);
}
