#pragma once

#include <stdint.h>

#include "base/error.h"

/*
 * Guest kernels in the cache, CACHE/kernels/NAME/ with `kernel` (bootable image), `modules/` (files
 * in load order, listed in `modules.list`; may be empty) and `info.json` (name, version, source,
 * sha256). NAME is "distro" (the distribution's cloud kernel, unpacked from its package) or
 * "minimal" (built here from the distribution's kernel source; used by default as soon as it is
 * there).
 */
struct kernel {
    char name[32];
    char version[64];
    char path[256];        /* absolute path of the bootable image */
    char modules_dir[256]; /* absolute */
    char sha256[65];
};

/* The named kernel, or with NULL the default (HEARTH_KERNEL, else minimal, else distro). */
int kernel_find(const char *name, struct kernel *ret, struct error *err);
/* Fills at most max entries; returns the count. */
int kernel_list(struct kernel *ret, unsigned max, struct error *err);
