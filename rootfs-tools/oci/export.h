#pragma once

#include <stdbool.h>

#include "base/error.h"

/*
 * Writes an image as an OCI archive (a tar of an image layout) with one layer, that others can
 * load. `path` is written beside and renamed. Blocks.
 */
int image_export(const char *name, const char *path, const _Atomic bool *cancel, struct error *err);
