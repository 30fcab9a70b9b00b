#include <assert.h>
#include <stdint.h>

#include "api/e2b/envd-proto.h"
#include "harness/fuzz.h"

/* A binary message of a call, which the first byte chooses: what was read is written and read again
 * the same. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *json = NULL, *again = NULL;
    struct error err = {0};
    struct buf out;

    if (size == 0)
        return 0;
    const struct proto_message *message = envd_rpcs[data[0] % envd_rpcs_count].request;
    if (proto_decode(message, data + 1, size - 1, &json, &err) < 0) {
        assert(err.text[0]);
        return 0;
    }
    buf_init(&out, PROTO_ENCODED_MAX);
    assert(proto_encode(message, json, &out, &err) >= 0);
    assert(proto_decode(message, buf_data(&out), out.size, &again, &err) >= 0);
    assert(json_equal(json, again));
    buf_done(&out);
    json_decref(json);
    json_decref(again);
    return 0;
}
