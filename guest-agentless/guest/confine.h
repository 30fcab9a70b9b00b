#pragma once

#include "base/error.h"
#include "guest/users.h"
#include "protocol/session.pb-c.h"

/*
 * Confine of session.proto. The namespace of mounts is the child's own, so nothing else in the
 * guest notices, and the kernel takes it down with the last process that is in it.
 */
#define CONFINE_SCRATCH_MAX 4u
#define CONFINE_FILES_MAX 128u
#define CONFINE_PATH_MAX 512u
#define CONFINE_SCRATCH_PATH_MAX 256u
#define CONFINE_SCRATCH_BYTES_MIN UINT64_C(4096)
#define CONFINE_SCRATCH_BYTES_MAX (UINT64_C(1024) * 1024u * 1024u)

/* -EINVAL and a reason when it is not what session.proto says. */
int confine_check(const Hearth__V1__Confine *confine, struct error *err);

/* In the child, inside the root and still as root; `user` is to own what is writable. */
int confine_enter(const Hearth__V1__Confine *confine, const struct user *user, struct error *err);
/* In the child, as its user: writes the files. */
int confine_fill(const Hearth__V1__Confine *confine, struct error *err);
