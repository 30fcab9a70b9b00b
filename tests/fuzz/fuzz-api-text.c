#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/native/native.h"
#include "api/native/ports.h"
#include "api/native/range.h"
#include "harness/fuzz.h"

static void try_ports(const char *text)
{
    json_t *ports = json_array();

    assert(ports_parse(text, ports) >= 0);
    assert(json_array_size(ports) <= PORTS_MAX);
    json_decref(ports);
}

static void try_range(const char *text, uint64_t size)
{
    struct byte_range range;

    if (byte_range_parse(text, size, &range) > 0) {
        assert(range.length > 0 && range.length <= size);
        assert(range.offset <= size - range.length);
    }
}

/* What matches has its parameters, and they are pieces of the path. */
static void try_route(const char *path)
{
    struct route_params params;
    bool known;
    const struct route *route =
        route_match(native_routes, native_routes_count, "GET", path, &params, &known);

    for (unsigned i = 0; route && i < params.count; i++)
        assert(params.value[i][0] != '\0' && strstr(path, params.value[i]));
}

/* Texts that clients and guests send: the first byte says which. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text;

    if (size == 0)
        return 0;
    text = calloc(1, size);
    if (!text)
        return 0;
    memcpy(text, data + 1, size - 1);
    if (data[0] == 'p')
        try_ports(text);
    else if (data[0] == 'r')
        try_range(text, size * size);
    else
        try_route(text);
    free(text);
    return 0;
}
