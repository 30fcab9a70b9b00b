#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "guest/poller.h"
#include "guest/ring.h"

/*
 * One numbered stream of a process: our end of a pipe or of its terminal.
 *
 * Output: bytes are read into the ring whenever it has room and sent while sent < window. Bytes
 * from stream_keep() on are never overwritten. Without room the descriptor leaves the epoll set and
 * the writer stalls in its pipe.
 *
 * Input: bytes wait in `pending` until the pipe takes them; the host may send up to `granted`.
 */
struct process;

#define STREAM_INPUT_WINDOW (256u * 1024u)
#define STREAM_RECORD_HEADER 24u         /* of a marked stream, see session.proto */
#define STREAM_RECORD_MAX (16u * 1024u)  /* bytes of one record */
#define STREAM_TTY_READ 4096u            /* what one read of a terminal gives at most */
#define STREAM_TTY_BUFFER (128u * 1024u) /* more than the kernel holds in a terminal */

struct stream {
    struct process *process; /* weak */
    struct source source;
    int fd; /* owned, non-blocking; -EBADF: ended or closed */
    uint8_t number;
    bool present, to_guest, marked, tty;

    struct ring ring;
    uint64_t sent;   /* next offset to send */
    uint64_t told;   /* offset that the host knows to be reached */
    uint64_t window; /* the host takes bytes below this */
    uint64_t credit; /* size of the host's window, from its first grant; 0: unknown */
    bool stalled;
    bool ended, end_sent;
    /* After the process's exit: what is still to be read of what it had written by then. */
    uint64_t drain_left;
    bool drained;
    uint64_t exit_end; /* valid when drained */

    struct buf pending;
    uint64_t received, granted;
    bool close_asked;
    uint8_t last_byte; /* given to a terminal */
};

void stream_init(struct stream *s, struct process *p, uint8_t number);
void stream_done(struct stream *s);

/* Registers a fresh output descriptor with the loop and takes it. */
int stream_start_output_consume(struct stream *s, int fd, uint32_t ring_max);
int stream_start_input_consume(struct stream *s, int fd);

/* Bytes of the host at `offset`. -EINVAL: not where the stream stands or beyond the window. */
int stream_input(struct stream *s, uint64_t offset, const uint8_t *data, uint32_t size);
void stream_close_input(struct stream *s);
/* Tells the host how far it may send, when that moved enough or `force`. */
void stream_grant(struct stream *s, bool force);

/* Next offset to send: `sent`, unless what stood there was dropped. */
uint64_t stream_next(const struct stream *s);
void stream_set_window(struct stream *s, uint64_t offset);
/* Offset from which on bytes must be kept. */
uint64_t stream_keep(const struct stream *s);
/* Reads again if it stalled and room has come. */
void stream_unstall(struct stream *s);
/* The process ended: reads what it had written, as far as there is room. */
void stream_begin_drain(struct stream *s);
