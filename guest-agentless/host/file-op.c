#include "host/file-op.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAM_CONTENT_TO 0u
#define STREAM_CONTENT_FROM 1u
#define STREAM_REPLIES 3u
#define REPLY_PREFIX 4u
#define USER_MAX 255u

int file_op_init(struct file_op *op, const struct file_op_vtable *v, enum wire_subject subject,
                 const char *verb, const char *path)
{
    char text[193];

    op->v = v;
    op->subject = subject;
    buf_init(&op->replies, REPLY_PREFIX + REPLY_MAX + CHANNEL_WINDOW);
    (void)wire_escape_string(text, sizeof(text), path);
    if (asprintf(&op->what, "%s '%s'", verb, text) < 0) {
        op->what = NULL;
        return -ENOMEM;
    }
    return 0;
}

void file_op_done(struct file_op *op)
{
    buf_done(&op->replies);
    free(op->what);
}

static void pin(struct file_op *op)
{
    op->pins++;
}

static void unpin(struct file_op *op)
{
    if (--op->pins == 0 && op->freed)
        op->v->destroy(op);
}

void file_op_free(struct file_op *op)
{
    if (!op || op->freed)
        return;
    op->freed = true;
    op->ch = channel_abandon(op->ch);
    if (op->pins == 0)
        op->v->destroy(op);
}

void file_op_complete(struct file_op *op, const struct error *err)
{
    if (!file_op_alive(op))
        return;
    op->over = true;
    /* Its process is at its end; a failed one may have content left that nobody wants. */
    op->ch = err ? channel_abandon(op->ch) : channel_release(op->ch);
    op->v->done(op, err);
}

int file_op_unexpected(const struct file_op *op, const Hearth__V1__Reply *reply, struct error *err)
{
    return error_set_code(err, ERR_GUEST_PROTOCOL, "%s: guest gave an unexpected reply (kind %d)",
                          op->what, (int)reply->reply_case);
}

/* ---- what the guest says ---- */

static int take_reply(struct file_op *op, const uint8_t *data, size_t size, struct error *err)
{
    Hearth__V1__Reply *reply = hearth__v1__reply__unpack(NULL, size, data);
    int r = 0;

    if (!reply)
        return error_set_code(err, ERR_GUEST_PROTOCOL, "%s: guest gave a malformed reply",
                              op->what);
    if (reply->reply_case == HEARTH__V1__REPLY__REPLY_ERROR) {
        struct error failure = {0};

        wire_error(reply->error, op->subject, op->what, &failure);
        file_op_complete(op, &failure);
    } else {
        r = op->v->reply(op, reply, err);
    }
    hearth__v1__reply__free_unpacked(reply, NULL);
    return r;
}

static size_t reply_length(const uint8_t p[REPLY_PREFIX])
{
    return (size_t)p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
}

static int take_replies(struct file_op *op, const uint8_t *data, size_t size, struct error *err)
{
    int r = buf_append(&op->replies, data, size);

    if (r < 0)
        return error_set(err, -r, "%s: keeping the guest's reply", op->what);
    channel_consumed(op->ch, STREAM_REPLIES, size);
    while (file_op_alive(op) && op->replies.size >= REPLY_PREFIX) {
        const uint8_t *p = buf_data(&op->replies);
        size_t length = p ? reply_length(p) : 0;

        if (length > REPLY_MAX)
            return error_set_code(err, ERR_GUEST_PROTOCOL,
                                  "%s: guest announced a reply of %zu bytes", op->what, length);
        if (op->replies.size < REPLY_PREFIX + length)
            break;
        r = take_reply(op, p + REPLY_PREFIX, length, err);
        if (r < 0)
            return r;
        buf_consume(&op->replies, REPLY_PREFIX + length);
    }
    return 0;
}

static int on_data(void *owner, uint8_t stream, uint64_t offset, const uint8_t *data, size_t size,
                   struct error *err)
{
    struct file_op *op = owner;
    int r = 0;

    (void)offset;
    pin(op);
    if (stream == STREAM_REPLIES)
        r = take_replies(op, data, size, err);
    else if (stream == STREAM_CONTENT_FROM && op->v->data)
        op->v->data(op, data, size);
    else
        r = error_set_code(err, ERR_GUEST_PROTOCOL, "%s: guest sent data on stream %u", op->what,
                           stream);
    unpin(op);
    return r;
}

static int on_stream_end(void *owner, uint8_t stream, uint64_t offset, struct error *err)
{
    struct file_op *op = owner;

    (void)offset;
    (void)err;
    if (stream == STREAM_CONTENT_FROM && op->v->data_end) {
        pin(op);
        op->v->data_end(op);
        unpin(op);
    }
    return 0;
}

static int on_event(void *owner, const Hearth__V1__Event *event, struct error *err)
{
    (void)owner;
    if (event->event_case != HEARTH__V1__EVENT__EVENT_STARTED &&
        event->event_case != HEARTH__V1__EVENT__EVENT_EXIT)
        return channel_unexpected(event, "on the channel of a file operation", err);
    return 0;
}

static void on_writable(void *owner, uint8_t stream)
{
    struct file_op *op = owner;

    if (stream != STREAM_CONTENT_TO || !op->v->writable)
        return;
    pin(op);
    op->v->writable(op);
    unpin(op);
}

static void on_closed(void *owner, const Hearth__V1__Closed *closed, const Hearth__V1__Error *error,
                      const struct error *reason)
{
    struct file_op *op = owner;
    struct error err = {0};

    op->ch = NULL;
    if (error) {
        wire_error(error, op->subject, op->what, &err);
    } else if (closed) {
        (void)error_set_code(&err, ERR_INTERNAL, "%s: broke off in the guest", op->what);
    } else {
        error_copy(&err, reason);
        error_wrap(&err, "%s", op->what);
    }
    pin(op);
    file_op_complete(op, &err);
    unpin(op);
}

static void on_orphaned(void *owner)
{
    struct file_op *op = owner;

    op->ch = NULL;
    op->over = true;
}

static const struct channel_ops file_ops = {
    .event = on_event,
    .data = on_data,
    .stream_end = on_stream_end,
    .writable = on_writable,
    .closed = on_closed,
    .orphaned = on_orphaned,
};

/* ---- starting ---- */

int file_op_start(struct console *c, struct file_op *op, const Hearth__V1__Request *request,
                  struct error *err)
{
    int r = channel_open(c, request, &file_ops, op, &op->ch, err);

    if (r < 0)
        return r;
    /* The grants travel right behind the request: no round trip is lost. */
    (void)channel_expect(op->ch, STREAM_REPLIES, 0, /* announce= */ true);
    if (op->v->data)
        (void)channel_expect(op->ch, STREAM_CONTENT_FROM, 0, /* announce= */ true);
    if (op->v->writable)
        channel_input(op->ch, STREAM_CONTENT_TO, 0);
    return 0;
}

int file_op_start_file(struct console *c, struct file_op *op, Hearth__V1__FileOp *message,
                       const char *user, struct error *err)
{
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    char text[USER_MAX + 1];

    if (user && strlen(user) > USER_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "user name has %zu bytes, at most %u",
                              strlen(user), USER_MAX);
    (void)snprintf(text, sizeof(text), "%s", user ? user : "");
    message->user = text;
    request.op_case = HEARTH__V1__REQUEST__OP_FILE;
    request.file = message;
    return file_op_start(c, op, &request, err);
}
