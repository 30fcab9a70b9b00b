#include "store/blake.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/macros.h"
#include "base/strv.h"

#define BLOCK_BYTES (256u * 1024u)

void blake_bytes(const void *data, size_t size, uint8_t ret[DIGEST_BYTES])
{
    (void)crypto_generichash(ret, DIGEST_BYTES, data, size, NULL, 0);
}

void blake_text(const void *data, size_t size, char ret[DIGEST_TEXT_SIZE])
{
    uint8_t digest[DIGEST_BYTES];

    blake_bytes(data, size, digest);
    hex_encode(digest, sizeof(digest), ret);
}

int blake_fd(int fd, char ret[DIGEST_TEXT_SIZE])
{
    crypto_generichash_state state;
    uint8_t digest[DIGEST_BYTES];
    _cleanup_free_ uint8_t *block = malloc(BLOCK_BYTES);
    off_t offset = 0;

    if (!block)
        return -ENOMEM;
    (void)crypto_generichash_init(&state, NULL, 0, sizeof(digest));
    for (;;) {
        ssize_t n = pread(fd, block, BLOCK_BYTES, offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        (void)crypto_generichash_update(&state, block, (size_t)n);
        offset += n;
    }
    (void)crypto_generichash_final(&state, digest, sizeof(digest));
    hex_encode(digest, sizeof(digest), ret);
    return 0;
}
