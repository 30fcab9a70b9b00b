#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

/*
 * Decoder of what the shell says on its private pipe: records of the guest (session.proto,
 * StreamSpec.marked) that carry messages ended by NUL (session-script.c). All of it is hostile.
 */
enum session_message_kind {
    SESSION_MESSAGE_END,    /* a command ended */
    SESSION_MESSAGE_EXIT,   /* the shell ends; SESSION_MESSAGE_STATE follows */
    SESSION_MESSAGE_STATE,  /* its state as shell text */
    SESSION_MESSAGE_TRAPS,  /* list of traps */
    SESSION_MESSAGE_ANSWER, /* to a probe */
};

struct session_message {
    enum session_message_kind kind;
    uint64_t number;    /* END (of blocks: its last digits), EXIT, ANSWER */
    int status;         /* END, EXIT */
    const char *text;   /* weak, NUL-terminated: cwd, state or traps */
    size_t size;        /* of text */
    bool blocks;        /* END: the shell takes blocks */
    bool cut;           /* text was too long and is not there */
    uint64_t offset[3]; /* output offsets reached when the message ended, 1: stdout, 2: stderr */
};

#define SESSION_STATE_MAX (256u * 1024u)
#define SESSION_RECORD_HEADER 24u
#define SESSION_BLOCK 16 /* bytes in which bash takes texts, and says which one it has done */
#define SESSION_BLOCK_DIGITS 4
#define SESSION_BLOCK_NUMBERS 10000u /* a block holds a number's last digits */
#define SESSION_RECORD_MAX (1024u * 1024u)

struct session_control {
    uint64_t offset;       /* of the stream: next byte expected */
    uint64_t record_start; /* of the record that holds the first byte of the unfinished message */
    uint64_t header_start; /* of the record being read */
    uint8_t header[SESSION_RECORD_HEADER];
    size_t header_have;
    uint32_t body_left;
    uint64_t reached[3];
    struct buf message;
    bool message_begun, cut, state_next;
};

void session_control_init(struct session_control *c);
void session_control_done(struct session_control *c);
/* Starts anew at a record's beginning. */
void session_control_reset(struct session_control *c, uint64_t offset);

/*
 * Takes bytes at `offset`; a gap starts anew. Fills *ret for one message and returns 1, with
 * *ret_used bytes taken: call again with the rest. Returns 0 when all was taken without one. A
 * broken record gives -EPROTO. Messages of unknown form are skipped.
 */
int session_control_take(struct session_control *c, uint64_t offset, const uint8_t *data,
                         size_t size, size_t *ret_used, struct session_message *ret,
                         struct error *err);

/* Where a successor must begin to miss no message; it may see the last ones again. */
uint64_t session_control_resume(const struct session_control *c);
