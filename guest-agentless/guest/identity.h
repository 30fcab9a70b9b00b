#pragma once

#include "base/error.h"
#include "protocol/session.pb-c.h"

/* -EINVAL and a reason when a field of Thaw is not what session.proto says. */
int identity_check(const Hearth__V1__Thaw *thaw, struct error *err);

/*
 * Gives this machine its identity: random pool, wall clock, host name, boot id, machine id. `root`
 * is the user's root file system. Blocks as long as the user's file systems do.
 */
int identity_apply(const Hearth__V1__Thaw *thaw, const char *root, struct error *err);
