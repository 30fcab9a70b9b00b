#pragma once

#include <stdint.h>

#include "base/error.h"

/*
 * The console as a bare client talks to it: a blocking socket, one request, one reply. No loop, no
 * channels, no windows: what is measured is the guest and the way to it.
 */

/* Connects and says hello; returns a descriptor when the guest has answered. */
int bare_console_open(const char *path, struct error *err);

/* One ping there and back. */
int bare_console_ping(int fd, uint32_t number, struct error *err);
