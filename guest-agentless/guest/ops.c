#include "guest/ops.h"

#include <errno.h>

#include "guest/file-ops.h"
#include "guest/reply.h"

int op_run(const Hearth__V1__Request *request)
{
    if (request->op_case == HEARTH__V1__REQUEST__OP_DIAL)
        return op_dial(request->dial);
    return op_file(request->file);
}

int op_file(const Hearth__V1__FileOp *op)
{
    switch (op->op_case) {
    case HEARTH__V1__FILE_OP__OP_STAT:
        return file_op_stat(op->stat);
    case HEARTH__V1__FILE_OP__OP_LIST:
        return file_op_list(op->list);
    case HEARTH__V1__FILE_OP__OP_MKDIR:
        return file_op_mkdir(op->mkdir);
    case HEARTH__V1__FILE_OP__OP_MOVE:
        return file_op_move(op->move);
    case HEARTH__V1__FILE_OP__OP_REMOVE:
        return file_op_remove(op->remove);
    case HEARTH__V1__FILE_OP__OP_READ:
        return file_op_read(op->read);
    case HEARTH__V1__FILE_OP__OP_WRITE:
        return file_op_write(op->write);
    case HEARTH__V1__FILE_OP__OP_MKFIFO:
        return file_op_mkfifo(op->mkfifo);
    case HEARTH__V1__FILE_OP__OP_SYMLINK:
        return file_op_symlink(op->symlink);
    case HEARTH__V1__FILE_OP__OP_SET_ATTR:
        return file_op_set_attr(op->set_attr);
    case HEARTH__V1__FILE_OP__OP_WATCH:
        return file_op_watch(op->watch);
    case HEARTH__V1__FILE_OP__OP_LAYER:
        return file_op_layer(op->layer);
    default:
        return reply_error(HEARTH__V1__CODE__CODE_UNSUPPORTED, EOPNOTSUPP,
                           "this guest does not know the file operation");
    }
}
