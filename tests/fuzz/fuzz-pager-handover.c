#include <assert.h>

#include "harness/fuzz.h"
#include "pager/handover.h"

/* What is accepted lies within the memory and apart. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint64_t memory = UINT64_C(256) << 20;
    struct handover h;
    struct error err = {0};

    if (handover_parse((const char *)data, size, memory, &h, &err) < 0) {
        assert(err.text[0] != '\0');
        return 0;
    }
    assert(h.n_regions > 0 && h.n_regions <= HANDOVER_REGIONS_MAX);
    for (size_t i = 0; i < h.n_regions; i++) {
        const struct region *r = &h.regions[i];

        assert(r->size > 0 && r->offset + r->size <= memory);
        assert(handover_at_address(&h, r->address + r->size - 1) == r);
        assert(handover_at_offset(&h, r->offset) == r);
    }
    return 0;
}
