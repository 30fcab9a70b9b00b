#pragma once

#include <stdint.h>

#include "base/error.h"

/* A sparse file with an empty ext4 (no journal) for a sandbox's writable layer. Blocks. */
int disk_make(const char *path, uint32_t size_mib, struct error *err);
