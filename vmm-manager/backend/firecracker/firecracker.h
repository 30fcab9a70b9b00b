#pragma once

#include "backend/backend.h"

/*
 * Firecracker (1.16.1 or newer) on KVM: jailed when we are root and the jailer is there, a plain
 * process otherwise. Owned by the caller.
 */
int backend_firecracker_new(const struct backend_env *env, struct backend **ret, struct error *err);
