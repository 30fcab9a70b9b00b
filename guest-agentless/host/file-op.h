#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protocol/session.pb-c.h>

#include "base/buf.h"
#include "host/channel.h"
#include "host/files.h"
#include "host/wire.h"

/*
 * Internal to host/. What file calls, transfers and watches have in common: a channel whose stream
 * 3 carries Reply messages, stream 1 content from the guest and stream 0 content to it.
 *
 * Theory of operation. An operation is over with its first call of `done`; then its channel is let
 * go, so nothing more is heard. Freed before that, the guest is told to kill it. Several replies
 * can come in one frame and the user may free the operation in between: it is pinned then, and
 * destroyed with the last pin. After any call of a vtable function whoever called it asks
 * file_op_alive() or touches nothing.
 */
#define REPLY_MAX (64u * 1024u) /* one Reply message */
#define FILE_PATH_MAX 4095u

struct file_op;

struct file_op_vtable {
    /* Any reply but Error. */
    int (*reply)(struct file_op *op, const Hearth__V1__Reply *reply, struct error *err);
    /* Content of stream 1 and its end; NULL: none is expected. */
    void (*data)(struct file_op *op, const uint8_t *data, size_t size);
    void (*data_end)(struct file_op *op);
    /* Stream 0 takes more; NULL: it takes none. */
    void (*writable)(struct file_op *op);
    /* The last call: err is NULL on success. */
    void (*done)(struct file_op *op, const struct error *err);
    void (*destroy)(struct file_op *op);
};

struct file_op {
    const struct file_op_vtable *v;
    struct channel *ch; /* weak; NULL when over */
    struct buf replies;
    char *what; /* owned: what is attempted, for errors */
    enum wire_subject subject;
    unsigned pins;
    bool over, freed;
};

/* Sets up an embedded operation: "VERB 'PATH'". -ENOMEM only. */
int file_op_init(struct file_op *op, const struct file_op_vtable *v, enum wire_subject subject,
                 const char *verb, const char *path);
/* For destroy functions. */
void file_op_done(struct file_op *op);

int file_op_start(struct console *c, struct file_op *op, const Hearth__V1__Request *request,
                  struct error *err);
/* Fills in the user and sends. The message's operation is set by the caller. */
int file_op_start_file(struct console *c, struct file_op *op, Hearth__V1__FileOp *message,
                       const char *user, struct error *err);
void file_op_complete(struct file_op *op, const struct error *err);
void file_op_free(struct file_op *op);

static inline bool file_op_alive(const struct file_op *op)
{
    return !op->freed && !op->over;
}

/* A reply that makes no sense for this operation. */
int file_op_unexpected(const struct file_op *op, const Hearth__V1__Reply *reply, struct error *err);

/* Absolute, not too long. `noun` names it in the error. */
int file_path_check(const char *path, const char *noun, struct error *err);
ProtobufCBinaryData file_path_bytes(const char *path);

/* Copies what the guest said; `path` replaces the guest's if not NULL. Owned by the caller. */
int file_info_take(const Hearth__V1__FileInfo *from, const char *path, struct file_info *to,
                   struct error *err);
/* A fresh string of bytes that may hold anything but NUL; NULL with err filled. */
char *file_text_take(const ProtobufCBinaryData *from, const char *noun, struct error *err);
