#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/stream-types.h"

#define STREAM_STDIN_WINDOW 65536u /* granted at the start */

/* A frame from the client. */
struct stream_frame {
    enum stream_type type;
    const uint8_t *payload; /* weak: into the decoded bytes */
    size_t size;
    uint16_t rows, cols; /* RESIZE */
    int signo;           /* SIGNAL */
};

/*
 * The frame at the start of `data`. Returns the bytes it takes, 0 when there are too few yet,
 * -EPROTO and err when it is none that a client may send.
 */
ssize_t stream_decode(const uint8_t *data, size_t size, struct stream_frame *ret,
                      struct error *err);

void stream_encode_header(enum stream_type type, size_t payload_size,
                          uint8_t header[static STREAM_HEADER_SIZE]);
