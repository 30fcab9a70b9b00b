#pragma once

#include <stddef.h>

#include "base/error.h"

/* SHA-256 as lower-case hex: of a file (blocks), of bytes in memory, of a stream. */
int digest_file(const char *path, char ret_sha256[65], struct error *err);
void digest_bytes(const void *data, size_t size, char ret_sha256[65]);

/*
 * By libcrypto, which uses the CPU's own instructions: images are gigabytes. A stream that ran out
 * of memory gives "" at its end, which equals no digest.
 */
struct digest {
    void *context; /* owned; NULL: out of memory */
};
void digest_init(struct digest *d);
void digest_update(struct digest *d, const void *data, size_t size);
void digest_final(struct digest *d, char ret_sha256[65]); /* frees it */
void digest_done(struct digest *d);
