#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Our stdout or stderr as the target of a stream, written without ever blocking: a reader who is
 * slow must stall the stream, not the handling of signals. O_NONBLOCK on the descriptor itself
 * would also change it for every other process that shares it, so a pipe or terminal is opened
 * anew.
 */
struct output {
    int fd;     /* to write to and to poll */
    bool owned; /* opened here */
    bool is_socket;
    bool may_block; /* could not be opened anew: small writes after poll */
    bool gone;      /* nobody reads any more: bytes are dropped */
};

void output_init(struct output *o, int fd);
void output_done(struct output *o);
/* Bytes taken, or -EAGAIN: poll `fd` for POLLOUT; -EPIPE when nobody reads. */
ssize_t output_write(struct output *o, const uint8_t *data, size_t size);
