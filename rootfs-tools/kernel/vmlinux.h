#pragma once

#include <stdbool.h>

#include "base/error.h"

/*
 * Firecracker on x86_64 starts an ELF, the distribution ships a bzImage that holds one compressed
 * (gzip, xz, lz4, zstd, as the kernel was configured).
 */

/* Whether the file is a bzImage; false for an ELF, an arm64 Image and what cannot be read. */
bool kernel_is_bzimage(const char *path);

/* Writes the ELF inside a bzImage to `to`, beside and renamed. Blocks; for workers and tools. */
int kernel_extract_elf(const char *bzimage, const char *to, struct error *err);
