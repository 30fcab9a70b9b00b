#include <stdint.h>
#include <stdlib.h>

#include "backend/qemu/qemu-state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The first byte says where the second state begins. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t cut, rest;

    if (size == 0)
        return 0;
    cut = (size - 1) * data[0] / 255;
    rest = size - 1 - cut;
    data++;
    if (!state_same_queues(data, cut, data, cut))
        abort();
    if (state_same_queues(data, cut, data + cut, rest) !=
        state_same_queues(data + cut, rest, data, cut))
        abort();
    return 0;
}
