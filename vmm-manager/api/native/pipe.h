#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/http.h"
#include "api/native/stream.h"
#include "base/loop.h"

/*
 * An upgraded connection that speaks frames: output of a process or a session's command to the
 * client, its input and signals back. Output waits here until the client takes it; `consumed`
 * tells, and only then may the guest send more, so nothing grows beyond the guest's window. Input
 * is held up to the window that was granted to the client.
 */
struct pipe;

struct pipe_ops {
    /* The client took so much of stream 1 or 2. */
    void (*consumed)(void *owner, int stream, size_t size);
    /* Bytes of input that `write` takes now; `write` takes all or -EPIPE: nobody reads it any more.
     */
    size_t (*writable)(void *owner);
    int (*write)(void *owner, const void *data, size_t size);
    void (*close_input)(void *owner);
    void (*resize)(void *owner, uint16_t rows, uint16_t cols);
    void (*signal)(void *owner, int signo);
    /*
     * From the loop, once: all of it is with the client after pipe_finish() (complete), or the
     * client went away. Only pipe_free() may follow, also inside the call.
     */
    void (*over)(void *owner, bool complete);
};

/* output_max: bytes of each stream that may wait; whoever sends more than that drops the
 * connection. */
int pipe_new(struct loop *loop, const struct pipe_ops *ops, void *owner, size_t output_max,
             struct pipe **ret);
/* Closes the connection. Always NULL. */
struct pipe *pipe_free(struct pipe *p);

/* The connection is there; until then output waits. Takes `up`, even on failure (then the pipe is
 * dead). */
int pipe_open(struct pipe *p, struct upgrade *up);

/* None of these calls back but `consumed`. */
void pipe_output(struct pipe *p, int stream, const uint8_t *data, size_t size);
void pipe_event(struct pipe *p, enum stream_type type, json_t *json_consume);
/* The last frame, EXIT or ERROR. What follows is ignored. */
void pipe_finish(struct pipe *p, enum stream_type type, json_t *json_consume);
bool pipe_is_finished(const struct pipe *p);
/* Bytes of a stream that fit at the moment. */
size_t pipe_room(const struct pipe *p, int stream);
/* There may be room for input again. */
void pipe_pump_input(struct pipe *p);
