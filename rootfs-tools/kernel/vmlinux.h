#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "kernel/kernel.h"

/*
 * Firecracker on x86_64 starts an ELF, the distribution ships a bzImage that holds one compressed
 * (gzip, xz, lz4, zstd, as the kernel was configured).
 */

/* Whether the file is a bzImage; false for an ELF, an arm64 Image and what cannot be read. */
bool kernel_is_bzimage(const char *path);

/* Writes the ELF inside a bzImage to `to`, beside and renamed. Blocks; for workers and tools. */
int kernel_extract_elf(const char *bzimage, const char *to, struct error *err);

/*
 * Path of the kernel as an ELF: itself, or `vmlinux` beside it, which is made when it is not there.
 * Blocks for a second or so at the first call.
 */
int kernel_elf(const struct kernel *kernel, char *ret, size_t size, struct error *err);
