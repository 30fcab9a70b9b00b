#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/*
 * The guest's server as an ordinary process, for tests of the host side: no VM, no boot, the same
 * code. PID 1 uses the same loop with its own transport (main.c).
 */
struct guest_options {
    const char *root;       /* NULL or "/": no chroot */
    const char *cgroup_dir; /* NULL: no cgroups, trees are sessions found in /proc */
    bool thawed_from_start;
    bool fake_identity; /* Thaw checks its fields and changes nothing on the machine */
    /* Puts the n-th fresh writable layer over the root; NULL: there are none. */
    int (*new_layer)(uint32_t number, struct error *err);
};

/*
 * Serves one connected stream descriptor until its end of file or a PowerOff, kills what it
 * started and returns 0, or a negative errno when it could not begin. Closes fd. Blocks; SIGPIPE
 * is ignored meanwhile in the whole process.
 */
int guest_serve(int fd, const struct guest_options *options);
/* The same for all who connect to a listening descriptor, one after the other, until a PowerOff. */
int guest_serve_listener(int fd, const struct guest_options *options);
