#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "base/error.h"
#include "kernel/kernel.h"

/*
 * The last initramfs and what it was made of: making one reads and hashes all of it, which is too
 * much for every creation. Used from workers.
 */
struct initramfs_cache {
    pthread_mutex_t lock;
    bool valid;
    char kernel_sha256[65];
    struct stat init, modules; /* only what tells one version of a file from another is compared */
    char path[256];
    char sha256[65];
};

void initramfs_cache_init(struct initramfs_cache *cache);
void initramfs_cache_done(struct initramfs_cache *cache);
/* Like initramfs_make(). Blocks. */
int initramfs_cache_get(struct initramfs_cache *cache, const struct kernel *kernel,
                        const char *init_path, char ret_path[256], char ret_sha256[65],
                        struct error *err);
