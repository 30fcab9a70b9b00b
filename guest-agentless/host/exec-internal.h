#pragma once

#include <protocol/session.pb-c.h>

#include "host/channel.h"
#include "host/exec.h"

/* Internal to host/: what exec.c, exec-request.c and exec-list.c share. */

/* A packed-to-be request and the arrays it points to; the spec's strings are borrowed. */
struct exec_message {
    Hearth__V1__Request request;
    Hearth__V1__Exec exec;
    Hearth__V1__Tty tty;
    Hearth__V1__Limits limits;
    Hearth__V1__StreamSpec streams[CHANNEL_STREAMS], *stream_list[CHANNEL_STREAMS];
    Hearth__V1__StreamLimit windows[CHANNEL_STREAMS], *window_list[CHANNEL_STREAMS];
    Hearth__V1__Confine confine;
    Hearth__V1__Scratch scratch[EXEC_SCRATCH_MAX], *scratch_list[EXEC_SCRATCH_MAX];
    Hearth__V1__StartFile *files, **file_list; /* owned */
    ProtobufCBinaryData *argv, *env;           /* owned */
};

/* Checks the spec and fills the message; errors name the argument or variable that is wrong. */
int exec_message_init(struct exec_message *m, const struct exec_spec *spec, struct error *err);
void exec_message_done(struct exec_message *m);
#define _cleanup_exec_message_ _cleanup_(exec_message_done)

/* Copies of what the guest said, checked: -EPROTO with err filled when it makes no sense. */
int exec_take_ranges(Hearth__V1__StreamRange *const *from, size_t count,
                     struct exec_range to[EXEC_STREAMS_MAX], struct error *err);
int exec_take_exit(const Hearth__V1__Exit *from, struct exec_exit *to, struct error *err);
