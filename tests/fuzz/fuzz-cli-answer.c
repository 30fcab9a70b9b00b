#include <stdlib.h>
#include <string.h>

#include "cli/http-parse.h"
#include "cli/stream-frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The body of an answer, fed in two parts: where the cut is must not matter. */
static int decode(const struct http_head *head, const uint8_t *data, size_t size, size_t cut,
                  uint64_t *ret_sum, uint64_t *ret_count)
{
    struct http_body body;
    size_t at = 0, end = cut;

    http_body_init(&body, head);
    *ret_sum = 0;
    *ret_count = 0;
    while (body.state != HTTP_BODY_END) {
        const uint8_t *payload;
        size_t used, n;
        int r = http_body_next(&body, data + at, end - at, &used, &payload, &n, NULL);

        if (r < 0)
            return r;
        if (used > end - at || (n > 0 && (payload < data || payload + n > data + end)))
            abort();
        for (size_t i = 0; i < n; i++)
            *ret_sum = *ret_sum * 31 + payload[i];
        *ret_count += n;
        at += used;
        if (used == 0 && end == size)
            break;
        if (used == 0)
            end = size;
    }
    return 0;
}

/* An answer of the daemon: its head, its body cut at two places, then the same bytes as a frame. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct stream_header header;
    struct http_head head;
    ssize_t n;

    if (size >= STREAM_HEADER_SIZE && stream_header_decode(data, &header, NULL) >= 0) {
        uint8_t again[STREAM_HEADER_SIZE];

        stream_header_encode(&header, again);
        if (memcmp(again, data, sizeof(again)) != 0)
            abort();
    }
    n = http_head_parse((const char *)data, size, &head, NULL);
    if (n > 0) {
        uint64_t sum[2], count[2];
        size_t rest = size - (size_t)n;
        int whole = decode(&head, data + n, rest, rest, &sum[0], &count[0]);
        int parts = decode(&head, data + n, rest, rest / 2, &sum[1], &count[1]);

        if (whole != parts || sum[0] != sum[1] || count[0] != count[1])
            abort();
    }
    return 0;
}
