#include <errno.h>
#include <stdlib.h>

#include "host/file-call.h"

/* A watch is a file call that never answers Ok: Ready, then events until it is freed or fails. */

static int take_event(struct file_call *call, const Hearth__V1__FileEvent *event, struct error *err)
{
    int kind = (int)event->kind;
    char *path;

    if (kind < FILE_EVENT_CREATE || kind > FILE_EVENT_OVERFLOW)
        return error_set_code(err, ERR_GUEST_PROTOCOL, "guest told a file event of kind %d", kind);
    path = file_text_take(&event->path, "path", err);
    if (!path)
        return error_fill(err, err && err->errnum ? -err->errnum : -EPROTO, "file event");
    call->fn.event((enum file_event_kind)kind, path, NULL, call->userdata);
    free(path);
    return 0;
}

static int watch_reply(struct file_op *op, const Hearth__V1__Reply *reply, struct error *err)
{
    struct file_call *call = container_of(op, struct file_call, op);

    if (reply->reply_case == HEARTH__V1__REPLY__REPLY_EVENT)
        return take_event(call, reply->event, err);
    if (reply->reply_case != HEARTH__V1__REPLY__REPLY_READY)
        return file_op_unexpected(op, reply, err);
    call->fn.event((enum file_event_kind)0, NULL, NULL, call->userdata);
    return 0;
}

static void watch_done(struct file_op *op, const struct error *err)
{
    struct file_call *call = container_of(op, struct file_call, op);

    call->fn.event((enum file_event_kind)0, NULL, err, call->userdata);
}

static const struct file_op_vtable watch_vtable = {
    .reply = watch_reply,
    .done = watch_done,
    .destroy = file_call_destroy,
};

int file_watch(struct console *c, const char *user, const char *path, bool recursive,
               file_event_fn fn, void *userdata, struct file_call **ret, struct error *err)
{
    Hearth__V1__FileWatch op = HEARTH__V1__FILE_WATCH__INIT;
    Hearth__V1__FileOp message = HEARTH__V1__FILE_OP__INIT;
    struct file_call *call;
    int r = file_call_new(&watch_vtable, "watching", path, userdata, &call, err);

    if (r < 0)
        return r;
    call->fn.event = fn;
    op.path = file_path_bytes(path);
    op.recursive = recursive;
    message.op_case = HEARTH__V1__FILE_OP__OP_WATCH;
    message.watch = &op;
    return file_call_start_consume(c, call, &message, user, ret, err);
}
