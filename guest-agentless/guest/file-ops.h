#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "protocol/session.pb-c.h"

/* File operations, each in its own child (ops.h). They reply and return the exit status. */
int file_op_stat(const Hearth__V1__FileStat *op);
int file_op_list(const Hearth__V1__FileList *op);
int file_op_mkdir(const Hearth__V1__FileMkdir *op);
int file_op_move(const Hearth__V1__FileMove *op);
int file_op_remove(const Hearth__V1__FileRemove *op);
int file_op_read(const Hearth__V1__FileRead *op);
int file_op_write(const Hearth__V1__FileWrite *op);
int file_op_mkfifo(const Hearth__V1__FileMkfifo *op);
int file_op_symlink(const Hearth__V1__FileSymlink *op);
int file_op_set_attr(const Hearth__V1__FileSetAttr *op);
int file_op_watch(const Hearth__V1__FileWatch *op);
int file_op_layer(const Hearth__V1__FileLayer *op); /* outside of the root: see layer.h */

/* Makes the directories of `path` and, with itself, the last one too. 0 or a negative errno. */
int make_dirs(const char *path, bool itself, mode_t mode);
