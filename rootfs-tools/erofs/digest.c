#include "erofs/digest.h"

#include <fcntl.h>
#include <sodium.h>
#include <stdint.h>

#include "base/fd.h"
#include "base/strv.h"

#define BLOCK_BYTES ((size_t)256 * 1024)

int digest_file(const char *path, char ret_sha256[65], struct error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    _cleanup_free_ uint8_t *block = malloc(BLOCK_BYTES);
    unsigned char hash[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_state state;

    if (fd < 0)
        return error_set(err, errno, "open '%s': %s", path, errno_text(errno));
    if (!block)
        return error_set(err, ENOMEM, "read '%s': out of memory", path);
    (void)crypto_hash_sha256_init(&state);
    for (;;) {
        ssize_t n = fd_read_full(fd, block, BLOCK_BYTES);

        if (n < 0)
            return error_set(err, (int)-n, "read '%s': %s", path, errno_text((int)-n));
        if (n == 0)
            break;
        (void)crypto_hash_sha256_update(&state, block, (unsigned long long)n);
    }
    (void)crypto_hash_sha256_final(&state, hash);
    hex_encode(hash, sizeof(hash), ret_sha256);
    return 0;
}

void digest_bytes(const void *data, size_t size, char ret_sha256[65])
{
    unsigned char hash[crypto_hash_sha256_BYTES];

    (void)crypto_hash_sha256(hash, data, size);
    hex_encode(hash, sizeof(hash), ret_sha256);
}
