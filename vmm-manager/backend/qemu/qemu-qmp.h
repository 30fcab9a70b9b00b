#pragma once

#include <jansson.h>

#include "backend/qemu/qemu-driver.h"

/* Commands to one QEMU's monitor, through libvirt. All block; a dead QEMU makes them fail at once.
 */

/* Sends a QMP command; ret_reply (may be NULL) gets what "return" holds, owned by the caller. */
int qmp_command(virDomainPtr dom, const char *command, json_t **ret_reply, struct error *err);

/*
 * Device state out to an open file, or in from one; memory that is shared stays where it is. A
 * state that was written without that must be read without it.
 */
int qmp_migrate_out(struct driver *d, virDomainPtr dom, int fd, uint64_t deadline_usec,
                    struct error *err);
int qmp_migrate_in(struct driver *d, virDomainPtr dom, int fd, bool ignore_shared,
                   uint64_t deadline_usec, struct error *err);

/* Device state alone of a paused VM into a file that QEMU opens; the VM can go on afterwards. */
int qmp_save_devices(virDomainPtr dom, const char *path, struct error *err);
