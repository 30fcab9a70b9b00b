#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/store-private.h"
#include "harness/fuzz.h"

/* What is accepted is what would be written for it, but for the way its time is spelled. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *line = malloc(size + 1);
    struct sandbox_row row, again;

    assert(line);
    memcpy(line, data, size);
    line[size] = '\0';
    if (store_claim_decode(line, &row) >= 0) {
        struct buf b = {0};

        buf_init(&b, 2 * size + 64);
        assert(store_claim_encode(&b, &row) >= 0);
        char *copy = strndup(buf_string(&b), b.size - 1);
        assert(copy && store_claim_decode(copy, &again) >= 0);
        assert(strcmp(row.id, again.id) == 0 && strcmp(row.spec, again.spec) == 0);
        assert(row.created_wall_usec == again.created_wall_usec);
        free(copy);
        buf_done(&b);
    }
    free(line);
    return 0;
}
