#pragma once

#include "backend/backend.h"
#include "base/uring.h"

/*
 * Copies the data extents of a sparse file on io_uring; by reflink where the file system can. Holes
 * stay holes. `to` must not exist; it is removed again on failure and when freed before `done`.
 */
struct extent_copy;

int extent_copy_start(struct loop *loop, struct uring *uring, const char *from, const char *to,
                      backend_done_fn done, void *userdata, struct extent_copy **ret,
                      struct error *err);
/* After `done`, or when the uring is gone. Always NULL. */
struct extent_copy *extent_copy_free(struct extent_copy *copy);
