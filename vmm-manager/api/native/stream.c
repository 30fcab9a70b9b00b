#include "api/native/stream.h"

/* Payload sizes that a client's frame may have; false: not a client's frame. */
static bool client_frame(uint8_t type, size_t *ret_min, size_t *ret_max)
{
    *ret_min = 0;
    switch (type) {
    case STREAM_STDIN:
        *ret_max = STREAM_PAYLOAD_MAX;
        return true;
    case STREAM_STDIN_EOF:
        *ret_max = 0;
        return true;
    case STREAM_RESIZE:
        *ret_min = *ret_max = 4;
        return true;
    case STREAM_SIGNAL:
        *ret_min = *ret_max = 1;
        return true;
    default:
        return false;
    }
}

static int decode_payload(struct stream_frame *f, struct error *err)
{
    if (f->type == STREAM_RESIZE) {
        f->rows = (uint16_t)(f->payload[0] << 8 | f->payload[1]);
        f->cols = (uint16_t)(f->payload[2] << 8 | f->payload[3]);
        if (f->rows == 0 || f->cols == 0)
            return error_set(err, EPROTO, "stream: RESIZE to %u rows and %u columns", f->rows,
                             f->cols);
    }
    if (f->type == STREAM_SIGNAL) {
        f->signo = f->payload[0];
        if (f->signo < 1 || f->signo > 64)
            return error_set(err, EPROTO, "stream: there is no signal %d", f->signo);
    }
    return 0;
}

ssize_t stream_decode(const uint8_t *data, size_t size, struct stream_frame *ret, struct error *err)
{
    size_t min, max;

    if (size < STREAM_HEADER_SIZE)
        return 0;
    size_t payload = (size_t)data[4] << 24 | (size_t)data[5] << 16 | (size_t)data[6] << 8 | data[7];
    if (data[1] != 0 || data[2] != 0 || data[3] != 0 || !client_frame(data[0], &min, &max))
        return error_set(err, EPROTO, "stream: not a frame that a client sends (type %u)", data[0]);
    if (payload < min || payload > max)
        return error_set(err, EPROTO, "stream: a frame of type %u with %zu bytes", data[0],
                         payload);
    if (size - STREAM_HEADER_SIZE < payload)
        return 0;

    *ret = (struct stream_frame){
        .type = (enum stream_type)data[0],
        .payload = data + STREAM_HEADER_SIZE,
        .size = payload,
    };
    int r = decode_payload(ret, err);
    if (r < 0)
        return r;
    return (ssize_t)(STREAM_HEADER_SIZE + payload);
}

void stream_encode_header(enum stream_type type, size_t payload_size,
                          uint8_t header[static STREAM_HEADER_SIZE])
{
    header[0] = (uint8_t)type;
    header[1] = header[2] = header[3] = 0;
    header[4] = (uint8_t)(payload_size >> 24);
    header[5] = (uint8_t)(payload_size >> 16);
    header[6] = (uint8_t)(payload_size >> 8);
    header[7] = (uint8_t)payload_size;
}
