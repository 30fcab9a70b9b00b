#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "cli/rex-head.h"
#include "harness/fuzz.h"

/* What is passed on is one head, below the sandbox's path, without what chooses a tenant. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rex_head head, again;
    struct error err = {0};
    _cleanup_buf_ struct buf to = {0}, second = {0};
    ssize_t n;

    buf_init(&to, (size_t)128 * 1024);
    buf_init(&second, (size_t)128 * 1024);
    n = rex_head_rewrite((const char *)data, size, "sb1", "secret", &to, &head, &err);
    if (n <= 0)
        return 0;
    const char *text = buf_string(&to);
    assert((size_t)n <= size && strlen(text) == to.size);
    assert(strstr(text, " /rex/sb1/") && strstr(text, "\r\n\r\n") == text + to.size - 4);
    assert(!strcasestr(text, "\r\nhearth-") && !strcasestr(text, "\r\ne2b-"));
    assert(!strcasestr(text, "\r\nx-api-key") && !strcasestr(text, "\r\nupgrade"));
    n = rex_head_rewrite(text, to.size, "sb1", "secret", &second, &again, &err);
    assert(n == (ssize_t)to.size && again.body.chunked == head.body.chunked &&
           again.body.length == head.body.length && !again.has_token);
    return 0;
}
