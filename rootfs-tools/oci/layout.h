#pragma once

#include "erofs/image.h"

/*
 * An image that others wrote to disk: an OCI layout (directory or tar) or what `docker save` wrote.
 * Takes its layers into the store and names it. 1 when the source is nothing of the kind. Blocks.
 */
int layout_import(const char *name, const char *source, image_progress_fn progress, void *userdata,
                  struct image *ret, struct error *err);
