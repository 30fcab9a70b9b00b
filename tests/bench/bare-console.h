#pragma once

#include <stdint.h>

#include "base/error.h"

/*
 * The console as a bare client talks to it: a blocking socket, one request, one reply. No loop, no
 * channels, no windows: what is measured is the guest and the way to it.
 */

/* Connects and says hello; returns a descriptor when the guest has answered. */
int bare_console_open(const char *path, struct error *err);
/* The same on a descriptor that is connected; it stays the caller's. */
int bare_console_hello(int fd, struct error *err);

/* Gives the guest an identity, as every restore must. */
int bare_console_thaw(int fd, struct error *err);

/* Starts a program and waits for the first byte that it prints. */
int bare_console_exec(int fd, const char *const *argv, struct error *err);

/* One ping there and back. */
int bare_console_ping(int fd, uint32_t number, struct error *err);
