#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "api/native/stream.h"
#include "harness/fuzz.h"

/* Every frame lies within the bytes, and its header encodes back to what was read. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct stream_frame frame;
    struct error err = {0};

    while (size > 0) {
        uint8_t header[STREAM_HEADER_SIZE];
        ssize_t n = stream_decode(data, size, &frame, &err);
        if (n <= 0) {
            assert(n == 0 || (n == -EPROTO && err.text[0] != '\0'));
            return 0;
        }
        assert((size_t)n <= size && (size_t)n == STREAM_HEADER_SIZE + frame.size);
        assert(frame.payload == data + STREAM_HEADER_SIZE && frame.size <= STREAM_PAYLOAD_MAX);
        stream_encode_header(frame.type, frame.size, header);
        assert(memcmp(header, data, sizeof(header)) == 0);
        data += n;
        size -= (size_t)n;
    }
    return 0;
}
