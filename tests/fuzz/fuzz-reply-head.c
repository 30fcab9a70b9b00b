#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/reply-head.h"
#include "harness/fuzz.h"

/* What a guest's own server may say: heads, and chunks behind the first NUL. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    struct reply_head h;
    struct error err = {0};
    struct unchunk u = {0};
    size_t head;

    assert(text);
    memcpy(text, data, size);
    text[size] = '\0';
    head = strlen(text);
    if (reply_head_parse(text, &h, &err) >= 0) {
        assert(h.status >= 100 && h.status <= 999 && h.n_headers <= REPLY_HEADERS_MAX);
        for (size_t i = 0; i < h.n_headers; i++)
            assert(!strpbrk(h.headers[i].value, "\r\n"));
    }
    free(text);
    for (size_t at = head; at < size && u.at != UNCHUNK_DONE;) {
        const uint8_t *piece;
        size_t n;
        ssize_t used = unchunk(&u, data + at, size - at, &piece, &n);

        if (used <= 0)
            break;
        assert(n == 0 || (piece >= data + at && piece + n <= data + size));
        at += (size_t)used;
    }
    return 0;
}
