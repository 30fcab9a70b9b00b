#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "layers/layer.h"

/*
 * Layers of one image on their way into the store: a few threads take the blobs apart as they
 * arrive. The caller's thread adds blobs and waits.
 */
struct unpackers;

/* `n_layers` is how many there will be at most; `packed_bytes` all of them together. */
int unpackers_new(size_t n_layers, uint64_t packed_bytes, struct unpackers **ret,
                  struct error *err);
/* Adds to that. */
void unpackers_packed(struct unpackers *u, uint64_t bytes);
/* Ends the threads, finished or not. */
struct unpackers *unpackers_free(struct unpackers *u);

/*
 * Claims a layer: 0 it is ours to bring, 1 the store has it, -EAGAIN somebody else brings it now.
 */
int unpackers_claim(struct unpackers *u, const char *diff_id, size_t *ret_claim, struct error *err);
/*
 * The blob of a claimed layer is in `path`, which is removed afterwards. With a descriptor, `path`
 * is that one's name in /proc; it is closed instead, also on failure.
 */
int unpackers_add(struct unpackers *u, size_t claim, const char *path, int fd_consume,
                  struct error *err);
/* Has one failed? Then there is no use in going on. */
bool unpackers_failed(struct unpackers *u);
/* Until all that were added are in the store; the first failure otherwise. */
int unpackers_wait(struct unpackers *u, const _Atomic bool *cancel, struct error *err);
