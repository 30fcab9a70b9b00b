#include "erofs/packs.h"

#include <endian.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "base/strv.h"

static bool take_slot(const uint8_t *at, struct image_pack *ret)
{
    struct erofs_slot slot;

    memcpy(&slot, at, sizeof(slot));
    memcpy(ret->sha256, slot.tag, sizeof(slot.tag));
    ret->sha256[sizeof(slot.tag)] = '\0';
    ret->bytes = (uint64_t)le32toh(slot.blocks) * EROFS_BLOCK;
    return strspn(ret->sha256, "0123456789abcdef") == sizeof(slot.tag) && ret->bytes > 0;
}

int image_packs_parse(const uint8_t block[static EROFS_BLOCK], struct image_packs *ret)
{
    struct image_packs packs = {0};
    struct erofs_super super;

    memcpy(&super, block + EROFS_SUPER_OFFSET, sizeof(super));
    if (le32toh(super.magic) == EROFS_MAGIC)
        packs.n = le16toh(super.extra_devices);
    if (packs.n > IMAGE_PACKS_MAX ||
        (packs.n > 0 && le16toh(super.devt_slotoff) != EROFS_SLOTS_OFFSET / EROFS_SLOT_SIZE))
        return -EINVAL;
    for (size_t i = 0; i < packs.n; i++)
        if (!take_slot(block + EROFS_SLOTS_OFFSET + i * EROFS_SLOT_SIZE, &packs.pack[i]))
            return -EINVAL;
    *ret = packs;
    return 0;
}

int image_packs_read(const char *image, struct image_packs *ret, struct error *err)
{
    _cleanup_close_ int fd = open(image, O_RDONLY | O_CLOEXEC);
    uint8_t block[EROFS_BLOCK] = {0};
    ssize_t n;
    int r;

    if (fd < 0)
        return error_set(err, errno, "open image '%s': %s", image, errno_text(errno));
    n = fd_read_full(fd, block, sizeof(block));
    if (n < 0)
        return error_set(err, (int)-n, "read image '%s': %s", image, errno_text((int)-n));
    r = image_packs_parse(block, ret);
    return r < 0 ? error_set(err, EIO, "image '%s': its table of layers is damaged", image) : 0;
}

/* images/blobs/X: the directory of the store, without its slash. */
static size_t store_length(const char *image)
{
    const char *slash = strrchr(image, '/');

    while (slash && slash > image && slash[-1] != '/')
        slash--;
    return slash && slash > image + 1 ? (size_t)(slash - image) - 1 : 0;
}

int image_packs_find(const char *image, char ***ret, struct error *err)
{
    _cleanup_strv_ char **paths = NULL;
    struct image_packs packs;
    int r = image_packs_read(image, &packs, err);

    for (size_t i = 0; r == 0 && i < packs.n; i++) {
        const struct image_pack *pack = &packs.pack[i];
        _cleanup_free_ char *path =
            string_printf("%.*s/layers/%s.pack", (int)store_length(image), image, pack->sha256);
        struct stat st;

        if (!path || strv_append(&paths, path) < 0)
            return error_set(err, ENOMEM, "image '%s': out of memory", image);
        if (stat(path, &st) < 0)
            return error_set(err, EIO, "image '%s': its layer '%s': %s", image, path,
                             errno_text(errno));
        if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != pack->bytes)
            return error_set(err, EIO,
                             "image '%s': its layer '%s' has %lld bytes and should have %llu",
                             image, path, (long long)st.st_size, (unsigned long long)pack->bytes);
    }
    if (r == 0)
        *ret = TAKE_PTR(paths);
    return r;
}
