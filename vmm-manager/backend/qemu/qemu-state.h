#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/*
 * QEMU's stream of device state, as far as it concerns us (docs/devel/migration.rst there): magic,
 * version, then sections, each with kind, number and name before and its number again behind.
 */
#define STATE_MAX (16u << 20)

/* Whether it begins without a section about the configuration: a snapshot's does, a template's not.
 */
int state_is_bare(const char *path, bool *ret, struct error *err);

/*
 * Whether both have their virtio devices in the same state, that is the same place in the queues
 * that they share with the guest. Clocks go on while a machine stands still and are left out.
 */
bool state_same_queues(const void *a, size_t size_a, const void *b, size_t size_b);
