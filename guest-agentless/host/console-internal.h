#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protocol/session.pb-c.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/loop.h"
#include "host/channel.h"
#include "host/console.h"

/* Internal to host/: the connection under the channels. */

#define CONSOLE_INPUT_SIZE (256u * 1024u)           /* holds the largest frame several times */
#define CONSOLE_OUT_DATA_MAX (1024u * 1024u)        /* no more stream data above this */
#define CONSOLE_OUT_REQUEST_MAX (8u << 20)          /* no new channels above this */
#define CONSOLE_OUT_MAX (9u << 20)                  /* the guest is lost above this */
#define CONSOLE_STALL_USEC (30 * UINT64_C(1000000)) /* takes nothing for so long: lost */
#define CONSOLE_HALF_USEC (20 * UINT64_C(1000000))  /* a frame begun and not gone on with: lost */

enum console_state {
    CONSOLE_NEW,
    CONSOLE_OPENING,
    CONSOLE_OPEN,
    CONSOLE_PARKED, /* stands still without a connection, or says hello on the next one */
    CONSOLE_BROKEN,
    CONSOLE_FREED,
};

#define CONSOLE_NONCE_SIZE 16u

struct console_hello {
    uint8_t nonce[CONSOLE_NONCE_SIZE]; /* 12 random bytes of this connection, then the number of the
                                          try */
    uint32_t tries;
    uint64_t next_usec, deadline_usec;
    console_done_fn done;
    void *userdata;
};

/* From Freeze to the Done of Thaw: see session.proto. */
struct console_still {
    bool on;
    bool frozen;      /* the Done of Freeze came: nothing is under way */
    struct buf later; /* for the guest, once it is thawed */
    console_done_fn done;
    void *userdata;
};

struct console {
    struct loop *loop; /* weak */
    char *name;        /* owned */
    console_broken_fn broken;
    void *userdata;
    enum console_state state;
    unsigned depth;            /* event functions of ours on the stack */
    int fd;                    /* owned */
    struct source *io, *timer; /* owned */
    struct source *half;       /* owned: runs while a frame is incomplete and nothing comes */
    struct error reason;       /* why lost or broken */
    bool lost; /* found unusable inside a call: writes nothing more, the timer breaks it */
    struct console_hello hello;
    uint8_t conversation[CONSOLE_NONCE_SIZE]; /* nonce of the hello that began it */
    struct console_still still;
    struct console_info info;
    uint8_t *in; /* owned, CONSOLE_INPUT_SIZE */
    size_t in_start, in_size;
    struct buf out;
    bool out_blocked;  /* the socket is full */
    bool out_watched;  /* EPOLLOUT is asked for */
    bool data_starved; /* some stream found the queue full */
    uint64_t out_progress_usec;
    struct channel_table channels;
};

/* Around every function the loop calls: the console's memory outlives it. Leave may free c. */
void console_enter(struct console *c);
void console_leave(struct console *c);

/* From the loop only: tells every channel and the owner. Takes a copy of reason. */
void console_break(struct console *c, const struct error *reason);
/* From inside a call of our user: the same, but later, from the loop, after reading what is there.
 */
void console_break_later(struct console *c, const struct error *reason);

/* Has channels: open, or parked and to be opened again. */
static inline bool console_is_live(const struct console *c)
{
    return !c->lost && (c->state == CONSOLE_OPEN || c->state == CONSOLE_PARKED);
}

/* ---- still.c ---- */
/* Begins with the request of Freeze behind it. */
int still_begin(struct console *c, const Hearth__V1__Request *freeze, uint64_t deadline_usec,
                console_done_fn done, void *userdata);
int still_end(struct console *c, const Hearth__V1__Request *thaw, uint64_t deadline_usec,
              console_done_fn done, void *userdata);

/* ---- hello.c ---- */
int hello_start(struct console *c);
/* Looks for the reply in the input; 1 when the conversation stands, 0 to wait, negative: break. */
int hello_scan(struct console *c, struct error *err);
/* The timer fired. */
int hello_retry(struct console *c, uint64_t now_usec, struct error *err);

/* ---- outbox.c ---- */
/*
 * Bytes to the guest; written at once if nothing waits and no event function will do it anyway. All
 * but Hello and Thaw wait in still.later while the conversation stands still.
 */
int outbox_append(struct console *c, const void *data, size_t size);
int outbox_zeros(struct console *c, size_t size);
int outbox_request(struct console *c, uint32_t channel, const Hearth__V1__Request *request);
/* Splits as needed. */
int outbox_data(struct console *c, uint32_t channel, uint8_t stream, uint64_t offset,
                const uint8_t *data, size_t size);
/* Writes what the socket takes; a dead peer is reported through console_break_later(). */
void outbox_flush(struct console *c);
/* 0, or negative with err filled when the guest took nothing for too long. */
int outbox_check(struct console *c, uint64_t now_usec, struct error *err);
