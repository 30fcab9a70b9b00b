#pragma once

#include "erofs/image.h"

/*
 * An image from a registry into the cache: its layers are downloaded and taken apart side by side,
 * those that are there already are not asked for. What a pull that broke off has brought is kept
 * for the next one. Blocks, for minutes; several may run at once, also of the same image.
 */
struct pull_options {
    const char *reference;
    const char *platform;       /* "linux/arm64"; NULL: of this machine */
    const _Atomic bool *cancel; /* ends it soon when it becomes true; may be NULL */
    image_progress_fn progress; /* may be NULL; comes from this thread only */
    void *userdata;
};
int image_pull(const struct pull_options *options, struct image *ret, struct error *err);

/* User name and password for a registry: asked for, then kept. */
int registry_login(const char *host, const char *user, const char *password, struct error *err);
int registry_logout(const char *host, struct error *err);
