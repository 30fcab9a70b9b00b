#include "host/files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/file-op.h"

/*
 * Theory of operation. Content flows on streams 0 and 1 by their windows, what happened on
 * stream 3. The streams are independent, so Ok may overtake content that the reader has not taken
 * yet: a transfer from the guest is complete when both Ok and the end of stream 1 have come.
 */
#define STREAM_TO 0u
#define STREAM_FROM 1u
#define DIAL_TIMEOUT_MSEC_MAX (10u * 60u * 1000u)
#define DIAL_HOST_MAX 255u

enum transfer_kind {
    TRANSFER_READ,
    TRANSFER_WRITE,
    TRANSFER_DIAL,
};

struct transfer {
    struct file_op op;
    enum transfer_kind kind;
    struct transfer_callbacks cb;
    void *userdata;
    bool ready, ok, ended;
};

static struct transfer *transfer_of(struct file_op *op)
{
    return container_of(op, struct transfer, op);
}

static void complete_if_both(struct transfer *t)
{
    if (t->ok && t->ended)
        file_op_complete(&t->op, NULL);
}

static int take_ready(struct transfer *t, const Hearth__V1__Ready *ready, struct error *err)
{
    if (t->ready)
        return error_set_code(err, ERR_GUEST_PROTOCOL, "%s: guest was ready twice", t->op.what);
    t->ready = true;
    if (t->cb.on_ready)
        t->cb.on_ready(t, ready->size, t->userdata);
    return 0;
}

static int transfer_reply(struct file_op *op, const Hearth__V1__Reply *reply, struct error *err)
{
    struct transfer *t = transfer_of(op);

    if (reply->reply_case == HEARTH__V1__REPLY__REPLY_READY)
        return take_ready(t, reply->ready, err);
    if (t->kind == TRANSFER_WRITE && (reply->reply_case == HEARTH__V1__REPLY__REPLY_INFO ||
                                      reply->reply_case == HEARTH__V1__REPLY__REPLY_OK)) {
        file_op_complete(op, NULL);
        return 0;
    }
    if (reply->reply_case != HEARTH__V1__REPLY__REPLY_OK)
        return file_op_unexpected(op, reply, err);
    t->ok = true;
    complete_if_both(t);
    return 0;
}

static void transfer_data(struct file_op *op, const uint8_t *data, size_t size)
{
    struct transfer *t = transfer_of(op);

    if (t->cb.on_data)
        t->cb.on_data(t, data, size, t->userdata);
    else
        channel_consumed(op->ch, STREAM_FROM, size);
}

static void transfer_data_end(struct file_op *op)
{
    struct transfer *t = transfer_of(op);

    t->ended = true;
    complete_if_both(t);
}

static void transfer_on_writable(struct file_op *op)
{
    struct transfer *t = transfer_of(op);

    if (t->cb.on_writable)
        t->cb.on_writable(t, t->userdata);
}

static void transfer_done(struct file_op *op, const struct error *err)
{
    struct transfer *t = transfer_of(op);

    if (t->cb.on_done)
        t->cb.on_done(t, err, t->userdata);
}

static void transfer_destroy(struct file_op *op)
{
    struct transfer *t = transfer_of(op);

    file_op_done(op);
    free(t);
}

static const struct file_op_vtable read_vtable = {
    .reply = transfer_reply,
    .data = transfer_data,
    .data_end = transfer_data_end,
    .done = transfer_done,
    .destroy = transfer_destroy,
};

static const struct file_op_vtable write_vtable = {
    .reply = transfer_reply,
    .writable = transfer_on_writable,
    .done = transfer_done,
    .destroy = transfer_destroy,
};

static const struct file_op_vtable dial_vtable = {
    .reply = transfer_reply,
    .data = transfer_data,
    .data_end = transfer_data_end,
    .writable = transfer_on_writable,
    .done = transfer_done,
    .destroy = transfer_destroy,
};

static struct transfer *transfer_new(enum transfer_kind kind, const struct file_op_vtable *v,
                                     const char *verb, const char *target,
                                     const struct transfer_callbacks *cb, void *userdata,
                                     struct error *err)
{
    struct transfer *t = calloc(1, sizeof(*t));
    enum wire_subject subject = kind == TRANSFER_DIAL ? WIRE_SUBJECT_DIAL : WIRE_SUBJECT_FILE;

    if (!t || file_op_init(&t->op, v, subject, verb, target) < 0) {
        free(t);
        (void)error_set(err, ENOMEM, "%s '%s'", verb, target);
        return NULL;
    }
    t->kind = kind;
    t->cb = *cb;
    t->userdata = userdata;
    return t;
}

int file_read_start(struct console *c, const char *user, const char *path, uint64_t offset,
                    uint64_t length, const struct transfer_callbacks *cb, void *userdata,
                    struct transfer **ret, struct error *err)
{
    Hearth__V1__FileRead op = HEARTH__V1__FILE_READ__INIT;
    Hearth__V1__FileOp message = HEARTH__V1__FILE_OP__INIT;
    struct transfer *t;
    int r = file_path_check(path, "path", err);

    if (r < 0)
        return r;
    t = transfer_new(TRANSFER_READ, &read_vtable, "reading", path, cb, userdata, err);
    if (!t)
        return -ENOMEM;
    op.path = file_path_bytes(path);
    op.offset = offset;
    op.length = length;
    message.op_case = HEARTH__V1__FILE_OP__OP_READ;
    message.read = &op;
    r = file_op_start_file(c, &t->op, &message, user, err);
    if (r < 0)
        transfer_free(t);
    else
        *ret = t;
    return r;
}

int layer_read_start(struct console *c, uint32_t number, const struct transfer_callbacks *cb,
                     void *userdata, struct transfer **ret, struct error *err)
{
    Hearth__V1__FileLayer op = HEARTH__V1__FILE_LAYER__INIT;
    Hearth__V1__FileOp message = HEARTH__V1__FILE_OP__INIT;
    struct transfer *t;
    char name[32];
    int r;

    (void)snprintf(name, sizeof(name), "%u", number);
    t = transfer_new(TRANSFER_READ, &read_vtable, "reading layer", name, cb, userdata, err);
    if (!t)
        return -ENOMEM;
    op.number = number;
    message.op_case = HEARTH__V1__FILE_OP__OP_LAYER;
    message.layer = &op;
    r = file_op_start_file(c, &t->op, &message, NULL, err);
    if (r < 0)
        transfer_free(t);
    else
        *ret = t;
    return r;
}

int file_write_start(struct console *c, const char *user, const char *path,
                     const struct file_write_options *options, const struct transfer_callbacks *cb,
                     void *userdata, struct transfer **ret, struct error *err)
{
    Hearth__V1__FileWrite op = HEARTH__V1__FILE_WRITE__INIT;
    Hearth__V1__FileOp message = HEARTH__V1__FILE_OP__INIT;
    struct transfer *t;
    int r = file_path_check(path, "path", err);

    if (r < 0)
        return r;
    t = transfer_new(TRANSFER_WRITE, &write_vtable, "writing", path, cb, userdata, err);
    if (!t)
        return -ENOMEM;
    op.path = file_path_bytes(path);
    if (options) {
        op.mode = options->mode;
        op.parents = options->parents;
        op.append = options->append;
        op.exclusive = options->exclusive;
        op.atomic = options->atomic;
    }
    message.op_case = HEARTH__V1__FILE_OP__OP_WRITE;
    message.write = &op;
    r = file_op_start_file(c, &t->op, &message, user, err);
    if (r < 0)
        transfer_free(t);
    else
        *ret = t;
    return r;
}

int dial_start(struct console *c, const char *host, uint16_t port, uint32_t timeout_msec,
               const struct transfer_callbacks *cb, void *userdata, struct transfer **ret,
               struct error *err)
{
    Hearth__V1__Dial dial = HEARTH__V1__DIAL__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    char name[DIAL_HOST_MAX + 1], target[DIAL_HOST_MAX + 16];
    struct transfer *t;
    int r;

    if (port == 0)
        return error_set_code(err, ERR_INVALID_ARGUMENT, "port 0 cannot be dialled");
    if (host && strlen(host) > DIAL_HOST_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "host name has %zu bytes, at most %u",
                              strlen(host), DIAL_HOST_MAX);
    (void)snprintf(name, sizeof(name), "%s", host ? host : "");
    (void)snprintf(target, sizeof(target), "%s:%u", name[0] ? name : "127.0.0.1", port);
    t = transfer_new(TRANSFER_DIAL, &dial_vtable, "connecting to", target, cb, userdata, err);
    if (!t)
        return -ENOMEM;
    dial.host = name;
    dial.port = port;
    dial.timeout_msec = MIN(timeout_msec, DIAL_TIMEOUT_MSEC_MAX);
    request.op_case = HEARTH__V1__REQUEST__OP_DIAL;
    request.dial = &dial;
    r = file_op_start(c, &t->op, &request, err);
    if (r < 0)
        transfer_free(t);
    else
        *ret = t;
    return r;
}

struct transfer *transfer_free(struct transfer *t)
{
    if (t)
        file_op_free(&t->op);
    return NULL;
}

size_t transfer_writable(const struct transfer *t)
{
    return t->op.ch ? channel_writable(t->op.ch, STREAM_TO) : 0;
}

int transfer_write(struct transfer *t, const void *data, size_t size)
{
    return t->op.ch ? channel_write(t->op.ch, STREAM_TO, data, size) : -EPIPE;
}

int transfer_finish(struct transfer *t)
{
    return t->op.ch ? channel_close_stream(t->op.ch, STREAM_TO) : -EPIPE;
}

void transfer_consumed(struct transfer *t, size_t size)
{
    if (t->op.ch)
        channel_consumed(t->op.ch, STREAM_FROM, size);
}
