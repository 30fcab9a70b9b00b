#pragma once

#include "base/error.h"
#include "kernel/kernel.h"

/*
 * The initramfs of a kernel: hearth-init as /init and the modules it needs, as a newc cpio archive
 * (LZ4 legacy or uncompressed), the same bytes for the same input. Kept in
 * CACHE/initramfs/SHA.cpio. init_path NULL: hearth-init beside the running program. Blocks; for
 * workers and tools.
 */
int initramfs_make(const struct kernel *kernel, const char *init_path, char ret_path[256],
                   char ret_sha256[65], struct error *err);
