#include "erofs/digest.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <stdint.h>

#include "base/fd.h"
#include "base/strv.h"

#define BLOCK_BYTES ((size_t)256 * 1024)

void digest_init(struct digest *d)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();

    if (context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(context);
        context = NULL;
    }
    d->context = context;
}

void digest_done(struct digest *d)
{
    EVP_MD_CTX_free(d->context);
    d->context = NULL;
}

void digest_update(struct digest *d, const void *data, size_t size)
{
    if (d->context && EVP_DigestUpdate(d->context, data, size) != 1)
        digest_done(d);
}

void digest_final(struct digest *d, char ret_sha256[65])
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned size = 0;

    ret_sha256[0] = '\0';
    if (d->context && EVP_DigestFinal_ex(d->context, hash, &size) == 1 && size == 32)
        hex_encode(hash, size, ret_sha256);
    digest_done(d);
}

int digest_file(const char *path, char ret_sha256[65], struct error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    _cleanup_free_ uint8_t *block = malloc(BLOCK_BYTES);
    _cleanup_(digest_done) struct digest digest = {0};

    if (fd < 0)
        return error_set(err, errno, "open '%s': %s", path, errno_text(errno));
    digest_init(&digest);
    if (!block || !digest.context)
        return error_set(err, ENOMEM, "read '%s': out of memory", path);
    for (;;) {
        ssize_t n = fd_read_full(fd, block, BLOCK_BYTES);

        if (n < 0)
            return error_set(err, (int)-n, "read '%s': %s", path, errno_text((int)-n));
        if (n == 0)
            break;
        digest_update(&digest, block, (size_t)n);
    }
    digest_final(&digest, ret_sha256);
    return ret_sha256[0] ? 0 : error_set(err, ENOMEM, "read '%s': out of memory", path);
}

void digest_bytes(const void *data, size_t size, char ret_sha256[65])
{
    struct digest digest;

    digest_init(&digest);
    digest_update(&digest, data, size);
    digest_final(&digest, ret_sha256);
}
