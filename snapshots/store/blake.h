#pragma once

#include <stddef.h>
#include <stdint.h>

/* BLAKE2b-256, the one digest of the store. */
#define DIGEST_BYTES 32u
#define DIGEST_TEXT_SIZE 65u /* hex and a NUL */

void blake_bytes(const void *data, size_t size, uint8_t ret[DIGEST_BYTES]);
void blake_text(const void *data, size_t size, char ret[DIGEST_TEXT_SIZE]);
/* Of a file from its first to its last byte, holes as zeros. 0 or a negative errno. Blocks. */
int blake_fd(int fd, char ret[DIGEST_TEXT_SIZE]);
