#include "host/files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/file-call.h"

#define ENTRIES_MAX 4096u /* of one reply */

/* ---- the call ---- */

void file_call_destroy(struct file_op *op)
{
    struct file_call *call = container_of(op, struct file_call, op);

    file_op_done(op);
    free(call->path);
    free(call);
}

struct file_call *file_call_free(struct file_call *call)
{
    if (call)
        file_op_free(&call->op);
    return NULL;
}

int file_call_new(const struct file_op_vtable *v, const char *verb, const char *path,
                  void *userdata, struct file_call **ret, struct error *err)
{
    struct file_call *call;
    int r = file_path_check(path, "path", err);

    if (r < 0)
        return r;
    call = calloc(1, sizeof(*call));
    if (!call)
        return error_set(err, ENOMEM, "%s a file", verb);
    call->userdata = userdata;
    call->path = strdup(path);
    r = file_op_init(&call->op, v, WIRE_SUBJECT_FILE, verb, path);
    if (r < 0 || !call->path) {
        file_call_destroy(&call->op);
        return error_set(err, ENOMEM, "%s a file", verb);
    }
    *ret = call;
    return 0;
}

int file_call_start_consume(struct console *c, struct file_call *call, Hearth__V1__FileOp *message,
                            const char *user, struct file_call **ret, struct error *err)
{
    int r = file_op_start_file(c, &call->op, message, user, err);

    if (r < 0)
        file_call_free(call);
    else
        *ret = call;
    return r;
}

/* ---- those that answer with Ok ---- */

static int done_reply(struct file_op *op, const Hearth__V1__Reply *reply, struct error *err)
{
    if (reply->reply_case != HEARTH__V1__REPLY__REPLY_OK)
        return file_op_unexpected(op, reply, err);
    file_op_complete(op, NULL);
    return 0;
}

static void done_done(struct file_op *op, const struct error *err)
{
    struct file_call *call = container_of(op, struct file_call, op);

    call->fn.done(err, call->userdata);
}

static const struct file_op_vtable done_vtable = {
    .reply = done_reply,
    .done = done_done,
    .destroy = file_call_destroy,
};

static int done_start(struct console *c, const char *verb, const char *path, const char *user,
                      Hearth__V1__FileOp *message, file_done_fn done, void *userdata,
                      struct file_call **ret, struct error *err)
{
    struct file_call *call;
    int r = file_call_new(&done_vtable, verb, path, userdata, &call, err);

    if (r < 0)
        return r;
    call->fn.done = done;
    return file_call_start_consume(c, call, message, user, ret, err);
}

int file_mkdir(struct console *c, const char *user, const char *path, bool parents, uint32_t mode,
               file_done_fn done, void *userdata, struct file_call **ret, struct error *err)
{
    Hearth__V1__FileMkdir op = HEARTH__V1__FILE_MKDIR__INIT;
    Hearth__V1__FileOp message = HEARTH__V1__FILE_OP__INIT;

    op.path = file_path_bytes(path ? path : "");
    op.parents = parents;
    op.mode = mode;
    message.op_case = HEARTH__V1__FILE_OP__OP_MKDIR;
    message.mkdir = &op;
    return done_start(c, "making directory", path, user, &message, done, userdata, ret, err);
}

int file_move(struct console *c, const char *user, const char *from, const char *to,
              bool no_replace, file_done_fn done, void *userdata, struct file_call **ret,
              struct error *err)
{
    Hearth__V1__FileMove op = HEARTH__V1__FILE_MOVE__INIT;
    Hearth__V1__FileOp message = HEARTH__V1__FILE_OP__INIT;
    int r = file_path_check(to, "new path", err);

    if (r < 0)
        return r;
    op.from = file_path_bytes(from ? from : "");
    op.to = file_path_bytes(to);
    op.no_replace = no_replace;
    message.op_case = HEARTH__V1__FILE_OP__OP_MOVE;
    message.move = &op;
    return done_start(c, "moving", from, user, &message, done, userdata, ret, err);
}

int file_remove(struct console *c, const char *user, const char *path, bool recursive,
                file_done_fn done, void *userdata, struct file_call **ret, struct error *err)
{
    Hearth__V1__FileRemove op = HEARTH__V1__FILE_REMOVE__INIT;
    Hearth__V1__FileOp message = HEARTH__V1__FILE_OP__INIT;

    op.path = file_path_bytes(path ? path : "");
    op.recursive = recursive;
    message.op_case = HEARTH__V1__FILE_OP__OP_REMOVE;
    message.remove = &op;
    return done_start(c, "removing", path, user, &message, done, userdata, ret, err);
}

int file_symlink(struct console *c, const char *user, const char *target, const char *path,
                 file_done_fn done, void *userdata, struct file_call **ret, struct error *err)
{
    Hearth__V1__FileSymlink op = HEARTH__V1__FILE_SYMLINK__INIT;
    Hearth__V1__FileOp message = HEARTH__V1__FILE_OP__INIT;

    if (!target || target[0] == '\0' || strlen(target) > FILE_PATH_MAX)
        return error_set_code(err, ERR_INVALID_ARGUMENT,
                              "target of the symlink is empty or too long");
    op.target = file_path_bytes(target);
    op.path = file_path_bytes(path ? path : "");
    message.op_case = HEARTH__V1__FILE_OP__OP_SYMLINK;
    message.symlink = &op;
    return done_start(c, "making symlink", path, user, &message, done, userdata, ret, err);
}

int file_mkfifo(struct console *c, const char *user, const char *path, uint32_t mode,
                file_done_fn done, void *userdata, struct file_call **ret, struct error *err)
{
    Hearth__V1__FileMkfifo op = HEARTH__V1__FILE_MKFIFO__INIT;
    Hearth__V1__FileOp message = HEARTH__V1__FILE_OP__INIT;

    op.path = file_path_bytes(path ? path : "");
    op.mode = mode;
    message.op_case = HEARTH__V1__FILE_OP__OP_MKFIFO;
    message.mkfifo = &op;
    return done_start(c, "making fifo", path, user, &message, done, userdata, ret, err);
}

int file_set_attr(struct console *c, const char *user, const char *path,
                  const struct file_attr *attr, file_done_fn done, void *userdata,
                  struct file_call **ret, struct error *err)
{
    Hearth__V1__FileSetAttr op = HEARTH__V1__FILE_SET_ATTR__INIT;
    Hearth__V1__FileOp message = HEARTH__V1__FILE_OP__INIT;

    op.path = file_path_bytes(path ? path : "");
    op.set_mode = attr->set_mode;
    op.mode = attr->mode;
    op.set_owner = attr->set_owner;
    op.uid = attr->uid;
    op.gid = attr->gid;
    op.set_mtime = attr->set_mtime;
    op.mtime_nsec = attr->mtime_nsec;
    message.op_case = HEARTH__V1__FILE_OP__OP_SET_ATTR;
    message.set_attr = &op;
    return done_start(c, "changing", path, user, &message, done, userdata, ret, err);
}

/* ---- stat ---- */

static int stat_reply(struct file_op *op, const Hearth__V1__Reply *reply, struct error *err)
{
    struct file_call *call = container_of(op, struct file_call, op);
    struct file_info info;
    int r;

    if (reply->reply_case != HEARTH__V1__REPLY__REPLY_INFO)
        return file_op_unexpected(op, reply, err);
    r = file_info_take(reply->info, call->path, &info, err);
    if (r < 0)
        return r;
    op->over = true;
    op->ch = channel_release(op->ch);
    call->fn.info(&info, NULL, call->userdata);
    file_info_done(&info);
    return 0;
}

static void stat_done(struct file_op *op, const struct error *err)
{
    struct file_call *call = container_of(op, struct file_call, op);

    call->fn.info(NULL, err, call->userdata);
}

static const struct file_op_vtable stat_vtable = {
    .reply = stat_reply,
    .done = stat_done,
    .destroy = file_call_destroy,
};

int file_stat(struct console *c, const char *user, const char *path, bool follow, file_info_fn done,
              void *userdata, struct file_call **ret, struct error *err)
{
    Hearth__V1__FileStat op = HEARTH__V1__FILE_STAT__INIT;
    Hearth__V1__FileOp message = HEARTH__V1__FILE_OP__INIT;
    struct file_call *call;
    int r = file_call_new(&stat_vtable, "looking at", path, userdata, &call, err);

    if (r < 0)
        return r;
    call->fn.info = done;
    op.path = file_path_bytes(path);
    op.follow = follow;
    message.op_case = HEARTH__V1__FILE_OP__OP_STAT;
    message.stat = &op;
    return file_call_start_consume(c, call, &message, user, ret, err);
}

/* ---- list ---- */

static int take_entries(struct file_call *call, const Hearth__V1__FileEntries *entries,
                        struct error *err)
{
    size_t count = 0;
    struct file_info *infos;
    int r = 0;

    if (entries->n_entries == 0 || entries->n_entries > ENTRIES_MAX)
        return error_set_code(err, ERR_GUEST_PROTOCOL, "guest listed %zu entries at once",
                              entries->n_entries);
    infos = calloc(entries->n_entries, sizeof(*infos));
    if (!infos)
        return error_set(err, ENOMEM, "listing '%s'", call->path);
    while (r >= 0 && count < entries->n_entries) {
        r = file_info_take(entries->entries[count], NULL, &infos[count], err);
        if (r >= 0)
            count++;
    }
    if (r >= 0)
        call->fn.list(infos, count, /* last= */ false, NULL, call->userdata);
    for (size_t i = 0; i < count; i++)
        file_info_done(&infos[i]);
    free(infos);
    return r;
}

static int list_reply(struct file_op *op, const Hearth__V1__Reply *reply, struct error *err)
{
    if (reply->reply_case == HEARTH__V1__REPLY__REPLY_ENTRIES)
        return take_entries(container_of(op, struct file_call, op), reply->entries, err);
    if (reply->reply_case != HEARTH__V1__REPLY__REPLY_OK)
        return file_op_unexpected(op, reply, err);
    file_op_complete(op, NULL);
    return 0;
}

static void list_done(struct file_op *op, const struct error *err)
{
    struct file_call *call = container_of(op, struct file_call, op);

    call->fn.list(NULL, 0, /* last= */ true, err, call->userdata);
}

static const struct file_op_vtable list_vtable = {
    .reply = list_reply,
    .done = list_done,
    .destroy = file_call_destroy,
};

int file_list(struct console *c, const char *user, const char *path, uint32_t depth,
              file_list_fn done, void *userdata, struct file_call **ret, struct error *err)
{
    Hearth__V1__FileList op = HEARTH__V1__FILE_LIST__INIT;
    Hearth__V1__FileOp message = HEARTH__V1__FILE_OP__INIT;
    struct file_call *call;
    int r = file_call_new(&list_vtable, "listing", path, userdata, &call, err);

    if (r < 0)
        return r;
    call->fn.list = done;
    op.path = file_path_bytes(path);
    op.depth = depth;
    message.op_case = HEARTH__V1__FILE_OP__OP_LIST;
    message.list = &op;
    return file_call_start_consume(c, call, &message, user, ret, err);
}
