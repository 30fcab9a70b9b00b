#pragma once

#include "base/error.h"

/*
 * Files that every sandbox has, made in the writable layer where the image lacks them: the user
 * `user` (1000), root, /etc/hosts. Enters the root for good and blocks: for a helper process.
 */
int rootfs_prepare(const char *root, struct error *err);
