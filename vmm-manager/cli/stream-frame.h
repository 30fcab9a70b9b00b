#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/stream-types.h"

struct stream_header {
    enum stream_type type;
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
