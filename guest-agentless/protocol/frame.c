#include "protocol/frame.h"

#include <string.h>

const uint8_t frame_sync[FRAME_SYNC_SIZE] = {0x7f, 'H', 'E', 'A', 'R',  'T',  'H',  '-',
                                             'S',  'Y', 'N', 'C', 0x00, 0xff, '\r', '\n'};

static uint32_t get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put_u32(uint8_t *p, uint32_t v)
{
    for (unsigned i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

void frame_encode_header(uint8_t out[FRAME_HEADER_SIZE], enum frame_kind kind, uint8_t stream,
                         uint32_t channel, uint64_t offset, uint32_t size)
{
    put_u32(out, size);
    out[4] = (uint8_t)kind;
    out[5] = stream;
    out[6] = FRAME_MAGIC & 0xff;
    out[7] = FRAME_MAGIC >> 8;
    put_u32(out + 8, channel);
    put_u32(out + 12, (uint32_t)offset);
    put_u32(out + 16, (uint32_t)(offset >> 32));
}

enum frame_result frame_decode(const uint8_t *data, size_t size, uint32_t control_max,
                               struct frame *ret, size_t *ret_used)
{
    uint32_t length, max;

    if (size == 0)
        return FRAME_MORE;
    if (memcmp(data, frame_sync, size < FRAME_SYNC_SIZE ? size : FRAME_SYNC_SIZE) == 0) {
        if (size < FRAME_SYNC_SIZE)
            return FRAME_MORE;
        *ret_used = FRAME_SYNC_SIZE;
        return FRAME_SYNCED;
    }
    if (size < FRAME_HEADER_SIZE)
        return FRAME_MORE;
    if (data[6] != (FRAME_MAGIC & 0xff) || data[7] != FRAME_MAGIC >> 8)
        return FRAME_BAD;
    if (data[4] != FRAME_CONTROL && data[4] != FRAME_DATA)
        return FRAME_BAD;
    length = get_u32(data);
    max = data[4] == FRAME_CONTROL ? control_max : FRAME_DATA_MAX;
    if (length > max)
        return FRAME_BAD;
    if (size - FRAME_HEADER_SIZE < length)
        return FRAME_MORE;
    ret->kind = data[4] == FRAME_CONTROL ? FRAME_CONTROL : FRAME_DATA;
    ret->stream = data[5];
    ret->channel = get_u32(data + 8);
    ret->offset = (uint64_t)get_u32(data + 12) | (uint64_t)get_u32(data + 16) << 32;
    ret->payload = data + FRAME_HEADER_SIZE;
    ret->size = length;
    *ret_used = FRAME_HEADER_SIZE + length;
    return FRAME_OK;
}

size_t frame_skip_to_sync(const uint8_t *data, size_t size, bool *ret_found)
{
    size_t i = 0;

    *ret_found = false;
    while (i < size) {
        const uint8_t *p = memchr(data + i, frame_sync[0], size - i);
        size_t left;

        if (!p)
            return size;
        i = (size_t)(p - data);
        left = size - i;
        if (memcmp(p, frame_sync, left < FRAME_SYNC_SIZE ? left : FRAME_SYNC_SIZE) == 0) {
            *ret_found = left >= FRAME_SYNC_SIZE;
            return i;
        }
        i++;
    }
    return size;
}
