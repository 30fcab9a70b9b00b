#pragma once

#include <stddef.h>

#include "base/error.h"

/* SHA-256 of a file's content and of bytes in memory, as lower-case hex. The first one blocks. */
int digest_file(const char *path, char ret_sha256[65], struct error *err);
void digest_bytes(const void *data, size_t size, char ret_sha256[65]);
