#pragma once

#include "base/error.h"
#include "protocol/session.pb-c.h"

/* -EINVAL and a reason when a field of Thaw is not what session.proto says. */
int identity_check(const Hearth__V1__Thaw *thaw, struct error *err);

/*
 * Gives this machine its identity: random pool, wall clock, host name, boot id, machine id. `root`
 * is the user's root file system; received_usec (of clock_now_usec()) is when the host's time was
 * right. Blocks as long as the user's file systems do.
 */
int identity_apply(const Hearth__V1__Thaw *thaw, uint64_t received_usec, const char *root,
                   struct error *err);
