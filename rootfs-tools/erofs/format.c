#include "erofs/format.h"

#include <endian.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

static uint32_t crc32c(uint32_t crc, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return crc;
}

bool erofs_is_whole(const char *path)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct erofs_super super;
    struct stat st;

    return fd >= 0 && fstat(fd, &st) == 0 &&
           pread(fd, &super, sizeof(super), EROFS_SUPER_OFFSET) == sizeof(super) &&
           le32toh(super.magic) == EROFS_MAGIC &&
           (uint64_t)le32toh(super.blocks) * EROFS_BLOCK == (uint64_t)st.st_size;
}

void erofs_super_block(const struct erofs_super *super, const struct erofs_slot *slots,
                       size_t n_slots, uint8_t block[static EROFS_BLOCK])
{
    uint8_t *at = block + EROFS_SUPER_OFFSET;
    uint32_t crc;

    memset(block, 0, EROFS_BLOCK);
    memcpy(at, super, sizeof(*super));
    if (n_slots > 0)
        memcpy(block + EROFS_SLOTS_OFFSET, slots, n_slots * sizeof(*slots));
    memset(at + offsetof(struct erofs_super, checksum), 0, sizeof(crc));
    crc = htole32(crc32c(~0u, at, EROFS_BLOCK - EROFS_SUPER_OFFSET));
    memcpy(at + offsetof(struct erofs_super, checksum), &crc, sizeof(crc));
}
