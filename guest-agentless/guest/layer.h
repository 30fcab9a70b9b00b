#pragma once

#include "base/error.h"

/*
 * Writable layers of a build: each lies in LAYER_DIR-N on the disk, as overlayfs leaves it, and is
 * read as the tar of an OCI layer.
 */
#define IMAGE_DIR "/image"
#define DISK_DIR "/disk"
#define LAYER_DIR DISK_DIR "/layer"
#define LAYERS_MAX 64u /* their names must fit one mount option */

/*
 * Writes what is in a directory to a descriptor: files, links, devices, owners, times and extended
 * attributes; whiteouts and opaque directories in the form that layers have them in. Blocks.
 */
int layer_write_consume(int dir_fd, int out_fd, struct error *err);
