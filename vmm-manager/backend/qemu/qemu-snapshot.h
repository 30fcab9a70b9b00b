#pragma once

#include "backend/qemu/qemu-verbs.h"

/*
 * Snapshots of running VMs; verb_snapshot() itself is in qemu-verbs.h.
 *
 * Device state is written by a command that QEMU has for Xen and that leaves memory out: a state of
 * sections only, without the one about the configuration that a migration begins with. The memory
 * comes from outside, see qemu-memory.h.
 */

/* Puts the request's pages into the memory of a VM that waits for its state. */
int snapshot_install(struct driver *d, struct verb_request *q, struct error *err);
