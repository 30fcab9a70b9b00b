#pragma once

#include <stddef.h>
#include <stdint.h>

/* SHA-1, for the WebSocket hand-shake only (RFC 6455 names it); nothing is kept safe by it. */
#define SHA1_SIZE 20u
void sha1(const void *data, size_t size, uint8_t ret[static SHA1_SIZE]);
