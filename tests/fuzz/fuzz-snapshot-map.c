#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "harness/fuzz.h"
#include "store/map.h"

/* What is accepted is exactly what would be written for it, and can be walked. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct map m;
    struct error err = {0};
    uint8_t *again;
    size_t again_size;

    if (map_decode(data, size, &m, &err) < 0) {
        assert(err.text[0] != '\0');
        return 0;
    }
    assert(map_encode(&m, &again, &again_size, NULL) >= 0);
    assert(again_size == size);
    /* The reserved bytes are none: all of it comes back. */
    assert(memcmp(again, data, size) == 0);
    free(again);
    assert(map_bytes(&m, MAP_DATA) + map_bytes(&m, MAP_ZERO) <= m.size_bytes);
    for (size_t i = 0; i < m.n_chunks; i++) {
        uint64_t start, end;

        assert(map_chunk_span(&m, m.chunks[i].index, &start, &end));
        assert(start < end && end <= m.size_bytes && end - start <= MAP_CHUNK_BYTES);
        assert(map_find_chunk(&m, start) == &m.chunks[i]);
    }
    map_done(&m);
    return 0;
}
