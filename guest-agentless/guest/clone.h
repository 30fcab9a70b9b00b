#pragma once

#include <sys/types.h>

/*
 * Starts a child in the cgroup at once: moving it there afterwards waits for a grace period of RCU.
 * Both return as fork() does; ENOSYS, EINVAL, E2BIG or EOPNOTSUPP when the kernel cannot.
 */

/* The child has a copy of the memory and goes on where the caller is. */
pid_t clone_into(int cgroup_fd);

/*
 * The child runs fn, which never returns, in the caller's own memory but with its own descriptors,
 * directories and signals; the caller stands still until the child has executed a program or ended.
 * That spares the copy of all page tables. What fn allocates stays allocated.
 */
pid_t clone_shared_into(int cgroup_fd, void (*fn)(void *argument), void *argument);
