#pragma once

#include "base/error.h"
#include "erofs/image.h"

/*
 * Unpacks a rootfs tar (plain, gzip, bzip2, xz, zstd or lz4) into `dir`, an existing empty
 * directory that only we can enter. The archive is hostile: nothing is written outside of dir, not
 * through `..`, an absolute name, a symlink or a hard link; entries, bytes and depth have limits.
 * Owners, modes, times, extended attributes and device nodes are kept when root, modes and times
 * otherwise. What the tree looks like depends on the archive alone. On failure dir holds rubbish.
 * Blocks.
 */
int unpack_tar(const char *tar_path, const char *dir, image_progress_fn progress, void *userdata,
               struct error *err);

#define UNPACK_ENTRIES_MAX 2000000U
#define UNPACK_BYTES_MAX (UINT64_C(64) * 1024 * 1024 * 1024)
#define UNPACK_DEPTH_MAX 200U
#define UNPACK_PATH_MAX 3072U
