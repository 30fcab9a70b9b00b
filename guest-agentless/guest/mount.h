#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/*
 * The root of the sandbox: the image (drive 0, read-only) under the writable layer (drive 1, or
 * memory when there is none), joined by overlayfs at NEWROOT. An EROFS image says how many devices
 * hold the bytes of its files: those are drives 2 and on.
 */
#define NEWROOT "/newroot"
#define CGROUP_DIR "/sys/fs/cgroup/hearth"

/* /dev, /proc, /sys and cgroup2 of the initramfs itself. */
int mount_own(struct error *err);

/* Waits for the drives with a deadline and mounts them. */
int mount_root(struct error *err);
/* File systems inside the root that every program expects; missing directories are made. */
int mount_inside(struct error *err);

/*
 * The root again, with an empty writable layer over the image and the layers before this one. Only
 * the kernel's own file systems are mounted inside, so that what a build leaves in /run or /tmp is
 * its own.
 */
int mount_new_layer(uint32_t number, struct error *err);

/* At power-off: leaves the writable layer clean. Everybody else must be gone. */
void mount_undo(void);

/* mkdir that does not mind what is there. */
int make_dir(const char *path, unsigned mode, struct error *err);
