#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "harness/fuzz.h"
#include "host/session-control.h"
#include "host/session-script.h"

/* What was read, to compare two ways of reading the same bytes. */
struct reading {
    uint64_t sum;
    bool failed;
};

static void read_all(struct session_control *c, const uint8_t *data, size_t size,
                     struct reading *to)
{
    while (size > 0 && !to->failed) {
        struct session_message m;
        struct error err = {0};
        const char *word;
        size_t used = 0, n;
        int r = session_control_take(c, c->offset, data, size, &used, &m, &err);

        if (r < 0) {
            assert(r == -EPROTO && err.text[0] != '\0');
            to->failed = true;
            return;
        }
        assert(used > 0 && used <= size && session_control_resume(c) <= c->offset);
        if (r > 0) {
            assert(m.text[m.size] == '\0' && m.size <= SESSION_STATE_MAX);
            to->sum = to->sum * 31 + (uint64_t)m.kind + m.number + (uint64_t)m.status + m.size +
                      m.offset[1] + m.offset[2];
            if (m.kind == SESSION_MESSAGE_TRAPS &&
                session_script_foreign_trap(m.text, m.size, &word, &n) > 0)
                assert(n <= m.size);
        }
        data += used;
        size -= used;
    }
}

/* The first byte says where the rest is cut in two: it must make no difference. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct session_control c;
    struct reading whole = {0}, parts = {0};
    size_t cut;

    if (size < 1)
        return 0;
    cut = data[0] < size - 1 ? data[0] : size - 1;
    data++;
    size--;
    session_control_init(&c);
    read_all(&c, data, size, &whole);
    session_control_done(&c);
    session_control_init(&c);
    read_all(&c, data, cut, &parts);
    read_all(&c, data + cut, size - cut, &parts);
    session_control_done(&c);
    assert(whole.sum == parts.sum && whole.failed == parts.failed);
    return 0;
}
