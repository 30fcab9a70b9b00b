#pragma once

#include "erofs/image.h"

/*
 * Gives space back. What can be made again goes first: EROFS files that nothing uses, least
 * recently used first, then pulled images. Imported images only go by name. What is in use, or was
 * within the last minutes, never goes.
 */
struct prune_options {
    char **in_use;        /* strv of digests of images that sandboxes or templates stand on; weak */
    bool all;             /* everything that can be had again */
    bool trim;            /* only until the cache is within limit_bytes */
    uint64_t limit_bytes; /* with trim; 0: the configured one */
};
struct prune_result {
    uint64_t removed; /* files and names */
    uint64_t freed_bytes;
};
int image_prune(const struct prune_options *options, struct prune_result *ret, struct error *err);

/* HEARTH_IMAGES_MAX (as 50G), or half of the file system that holds the cache. */
uint64_t image_cache_limit(void);
/* Bytes on disk of all images. */
uint64_t image_cache_usage(void);
