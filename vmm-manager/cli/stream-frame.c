#include "cli/stream-frame.h"

#include <string.h>

void stream_header_encode(const struct stream_header *header, uint8_t bytes[STREAM_HEADER_SIZE])
{
    memset(bytes, 0, STREAM_HEADER_SIZE);
    bytes[0] = (uint8_t)header->type;
    bytes[4] = (uint8_t)(header->size >> 24);
    bytes[5] = (uint8_t)(header->size >> 16);
    bytes[6] = (uint8_t)(header->size >> 8);
    bytes[7] = (uint8_t)header->size;
}

int stream_header_decode(const uint8_t bytes[STREAM_HEADER_SIZE], struct stream_header *ret,
                         struct error *err)
{
    uint32_t size = stream_get_u32(bytes + 4);

    if (bytes[1] || bytes[2] || bytes[3] || size > STREAM_PAYLOAD_MAX)
        return error_set_errno(err, ERR_INTERNAL, EPROTO, "the daemon sent a malformed frame");
    switch (bytes[0]) {
    case STREAM_STDOUT:
    case STREAM_STDERR:
    case STREAM_STARTED:
    case STREAM_EXIT:
    case STREAM_ERROR:
        break;
    case STREAM_WINDOW:
        if (size != 4)
            return error_set_errno(err, ERR_INTERNAL, EPROTO, "the daemon sent a bad window");
        break;
    default:
        return error_set_errno(err, ERR_INTERNAL, EPROTO, "the daemon sent a frame of type %u",
                               bytes[0]);
    }
    *ret = (struct stream_header){.type = bytes[0], .size = size};
    return 0;
}
