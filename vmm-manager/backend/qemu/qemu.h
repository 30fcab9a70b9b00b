#pragma once

#include "backend/backend.h"

/*
 * QEMU through libvirt's embedded driver (qemu:///embed?root=…): no libvirtd. KVM where a real one
 * works, else software emulation; HEARTH_ACCEL=kvm|tcg decides by force. Owned by the caller.
 */
int backend_qemu_new(const struct backend_env *env, struct backend **ret, struct error *err);
