#pragma once

#include "host/file-op.h"

/* Internal to host/: a request of files.h that is no transfer. */
struct file_call {
    struct file_op op;
    char *path; /* owned */
    union {
        file_done_fn done;
        file_info_fn info;
        file_list_fn list;
        file_event_fn event;
    } fn;
    void *userdata;
};

/* Checks the path; the caller sets fn. */
int file_call_new(const struct file_op_vtable *v, const char *verb, const char *path,
                  void *userdata, struct file_call **ret, struct error *err);
/* Sends it; takes the call, which is freed on failure. */
int file_call_start_consume(struct console *c, struct file_call *call, Hearth__V1__FileOp *message,
                            const char *user, struct file_call **ret, struct error *err);
/* For vtables. */
void file_call_destroy(struct file_op *op);
