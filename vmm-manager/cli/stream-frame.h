#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Frames of an upgraded connection, as in docs/API.md: u8 type, three zero bytes, u32 size. */
#define STREAM_HEADER_SIZE 8u
#define STREAM_PAYLOAD_MAX 65536u

enum stream_frame_type {
    STREAM_STDIN = 0,
    STREAM_STDOUT = 1,
    STREAM_STDERR = 2,
    STREAM_STDIN_EOF = 3,
    STREAM_RESIZE = 4,
    STREAM_SIGNAL = 5,
    STREAM_STARTED = 6,
    STREAM_EXIT = 7,
    STREAM_ERROR = 8,
    STREAM_WINDOW = 9,
};
#define STREAM_FRAME_TYPES (STREAM_WINDOW + 1)

struct stream_header {
    enum stream_frame_type type;
    uint32_t size;
};

void stream_header_encode(const struct stream_header *header, uint8_t bytes[STREAM_HEADER_SIZE]);
/* -EPROTO for anything that a daemon may not send to a client. */
int stream_header_decode(const uint8_t bytes[STREAM_HEADER_SIZE], struct stream_header *ret,
                         struct error *err);

static inline uint32_t stream_get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}
