#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * The serial log of a VM: what kernel and init print. The VMM appends to the file without a limit
 * of its own, so the owner calls serial_trim() now and then; a guest that prints without end costs
 * what it prints in between.
 */
#define SERIAL_MAX_BYTES (1024u * 1024u)
#define SERIAL_KEEP_BYTES (256u * 1024u)

/* Cuts the file to its last SERIAL_KEEP_BYTES when it is over SERIAL_MAX_BYTES. */
void serial_trim(const char *path);

/* Whether the guest's kernel said that it has stopped for good, without an end of its machine. */
bool serial_says_halted(const char *path);

/*
 * Why the VM ended, for a person: the guest's own last words (panic, fatal error of init) if the
 * log has them, else how the process of `vmm` ended. si_pid 0: its status is not known.
 */
void serial_reason(const char *path, const siginfo_t *info, const char *vmm, char *text,
                   size_t size);
