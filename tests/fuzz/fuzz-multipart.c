#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "api/multipart.h"
#include "harness/fuzz.h"

/* Parts begin and end by turns; content is never more than what was fed. */
struct state {
    bool open;
    size_t content;
};

static bool on_begin(void *owner, const struct multipart_part *part, struct error *err)
{
    struct state *s = owner;

    (void)err;
    assert(!s->open && part->name && strlen(part->name) < MULTIPART_NAME_MAX);
    s->open = true;
    return true;
}

static size_t on_data(void *owner, const uint8_t *data, size_t size)
{
    struct state *s = owner;

    assert(s->open && data && size > 0);
    s->content += (size + 1) / 2;
    return (size + 1) / 2;
}

static bool on_end(void *owner, struct error *err)
{
    struct state *s = owner;

    (void)err;
    assert(s->open);
    s->open = false;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct multipart_ops ops = {on_begin, on_data, on_end};
    struct state s = {0};
    struct multipart m;
    struct error err = {0};

    if (multipart_init(&m, "multipart/form-data; boundary=b", &ops, &s, &err) < 0)
        return 0;
    for (size_t at = 0; at < size;) {
        size_t piece = size - at < 1 + data[at] % 64u ? size - at : 1 + data[at] % 64u;
        ssize_t n = multipart_feed(&m, data + at, piece, &err);

        if (n < 0) {
            assert(err.text[0] != '\0');
            break;
        }
        assert((size_t)n <= piece);
        at += n > 0 ? (size_t)n : 1;
    }
    multipart_done(&m);
    return 0;
}
