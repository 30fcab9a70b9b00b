#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "erofs/format.h"

/*
 * An image of layers holds names and small files; the other bytes stay in the packs of its largest
 * layers, which every image that has the layer shares. To the guest a pack is a drive of its own,
 * after the image (drive 0) and the disk (drive 1), in the order of the image's device table. Each
 * slot of that table is tagged with the layer's digest, so an image describes itself:
 * images/blobs/X needs images/layers/TAG.pack. Images of older versions, and imported ones, need
 * nothing.
 */
#define IMAGE_PACKS_MAX 8u /* drives; Firecracker has 19 interrupts on x86, for all devices */

struct image_pack {
    char sha256[65]; /* of the layer */
    uint64_t bytes;
};
struct image_packs {
    size_t n;
    struct image_pack pack[IMAGE_PACKS_MAX];
};

/* From block 0 of a file; none when it is no EROFS. -EINVAL for a table that is not one of ours. */
int image_packs_parse(const uint8_t block[static EROFS_BLOCK], struct image_packs *ret);
/* Of an image file; the packs need not be there. Blocks. */
int image_packs_read(const char *image, struct image_packs *ret, struct error *err);
/*
 * Paths of the packs that the image at this path needs, a strv owned by the caller; NULL when none.
 * -EIO, with the reason, when one is missing or not as long as the image says. Blocks.
 */
int image_packs_find(const char *image, char ***ret, struct error *err);
