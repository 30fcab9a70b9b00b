#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "cli/output.h"
#include "cli/stream-frame.h"
#include "cli/terminal.h"

/*
 * A running guest command, joined to our stdin, stdout, stderr and signals.
 *
 * Theory of operation: stream_pump() polls the connection, stdin, a signalfd and, when one is full,
 * the output it waits for. Bytes move from `in` to the output in place and are consumed only once
 * written, and the connection is not read while an output is full: nothing grows, and the daemon,
 * then the guest's process, stalls. Input is read only while the daemon's window has room. The pump
 * ends with STREAM_ENDED (result or failure is set) or STREAM_BROKEN: the connection ended first.
 * Everything else stays in the struct, so that a new connection goes on where the old one ended.
 */
enum stream_outcome {
    STREAM_ENDED,
    STREAM_BROKEN,
    STREAM_ABANDONED, /* the user does not want to wait any longer */
};

struct stream {
    int fd;        /* owned; -EBADF between connections */
    int signal_fd; /* weak */
    struct buf in, out;
    struct stream_header frame; /* the frame under way */
    bool in_frame;

    struct output stdout_to, stderr_to;
    struct output *blocked; /* weak: the output that takes no more at the moment */
    struct terminal terminal;

    bool tty;
    bool stdin_wanted; /* pass our stdin on */
    bool stdin_ended;
    uint64_t stdin_sent;   /* bytes */
    uint64_t stdin_window; /* bytes that may be sent in total */

    bool started;
    uint64_t process_id; /* 0: a session's command */
    uint64_t command;
    uint64_t seen[3]; /* offset of the next byte of stdout [1] and stderr [2] */
    uint64_t skip[3]; /* bytes to drop: seen before */
    int write_errno;  /* why our own output could not be written; 0: it could, or EPIPE */
    uint64_t lost;    /* bytes that the guest no longer had when we attached again */

    unsigned interrupts;      /* SIGINT received: the second forces, the third leaves */
    int last_signal;          /* number of the signal that asks us to end; 0: none */
    uint64_t kill_at_usec;    /* 0: none; then the command gets SIGKILL */
    uint64_t abandon_at_usec; /* 0: none */

    json_t *result;       /* owned: of EXIT */
    struct error failure; /* of ERROR */
};

void stream_init(struct stream *s, int signal_fd);
void stream_done(struct stream *s);
/* Goes on with a new connection; takes fd and the bytes in `rest`. */
void stream_connect(struct stream *s, int fd, struct buf *rest);
/* Runs until the end. A negative errno and err when the daemon breaks the protocol. */
int stream_pump(struct stream *s, struct error *err);

/* Blocks the signals that are passed on and gives a descriptor to read them from. */
int stream_signals(void);
/* Next signal from it; 0 when there is none. */
int stream_read_signal(int signal_fd);
