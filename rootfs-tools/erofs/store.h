#pragma once

#include "erofs/image.h"

/* Inside of the image store: what image.c and import.c share. */

/* Formats CACHE/images/SUB; path holds 256 bytes. */
int store_path(char *path, const char *sub, struct error *err);
/* Takes the store's lock, so that a blob is not removed while a name is being pointed to it. */
int store_lock(int *ret_fd, struct error *err);
/* Moves a finished EROFS file into the store and points the name to it. */
int store_publish(const char *name, const char *erofs_path, struct image *ret, struct error *err);
