#pragma once

#include <stdint.h>

/* The kernel's announcements of devices, to wait for one at boot without polling. */

/* A descriptor, or a negative errno. */
int uevent_open(void);
/*
 * Waits for the next announcement or the deadline. With no descriptor (fd < 0), and against one
 * that was missed, it also comes back after a tenth of a second: at boot only.
 */
void uevent_wait(int fd, uint64_t deadline_usec);
