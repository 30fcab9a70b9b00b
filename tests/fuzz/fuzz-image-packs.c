#include "harness/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "erofs/packs.h"

/* Block 0 of an image: whatever it says, names of packs are digests and there are few. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t block[EROFS_BLOCK] = {0};
    struct image_packs packs;

    memcpy(block, data, size < sizeof(block) ? size : sizeof(block));
    if (image_packs_parse(block, &packs) < 0)
        return 0;
    if (packs.n > IMAGE_PACKS_MAX)
        abort();
    for (size_t i = 0; i < packs.n; i++)
        if (strlen(packs.pack[i].sha256) != 64 || strchr(packs.pack[i].sha256, '/') ||
            packs.pack[i].bytes == 0)
            abort();
    return 0;
}
