#pragma once

#include <stdint.h>

#include "host/channel.h"
#include "host/wire.h"

/*
 * Internal to host/. A request with one answer (or a few) and a deadline, on a channel of its own:
 * the control operations and those on processes without an attachment. Owned by itself: it is freed
 * with its completion, or silently when the console is freed. Embedded first in the structs that
 * extend it.
 */
struct call {
    struct console *console; /* weak */
    struct channel *ch;      /* weak */
    struct source *timer;    /* owned, NULL without a deadline */
    const char *what;        /* for errors, a literal */
    enum wire_subject subject;
    uint64_t tag; /* Ping: what the answer must repeat */

    /* 1: the answer is complete, 0: more comes; negative with err filled breaks the console. */
    int (*reply)(struct call *call, const Hearth__V1__Event *event, struct error *err);
    /* Tells the user; err is NULL on success. The console may be gone after it, the call is not. */
    void (*finish)(struct call *call, const struct error *err);
    /* Frees what the extending struct owns. May be NULL. */
    void (*done)(struct call *call);

    console_done_fn fn; /* of plain calls */
    void *userdata;
};

/* Sends it and takes it, even on failure. */
int call_start_consume(struct console *c, struct call *call, const Hearth__V1__Request *request,
                       uint64_t deadline_usec);
/* A call that is answered by Done alone. */
int call_plain(struct console *c, const char *what, enum wire_subject subject,
               const Hearth__V1__Request *request, uint64_t deadline_usec, console_done_fn fn,
               void *userdata);
