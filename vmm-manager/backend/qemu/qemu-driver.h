#pragma once

#include <libvirt/libvirt.h>
#include <stdint.h>

#include "backend/backend.h"
#include "backend/qemu/qemu-machine.h"
#include "backend/qemu/qemu-reaper.h"

/*
 * libvirt's embedded QEMU driver in this process: connection, its event loop on a thread of its
 * own, and what the first look at the host found out. All functions may be called from any thread;
 * those that say so block. One per process: libvirt has no second embedded driver.
 */
struct driver;

/* What is known once the driver is open; constant afterwards. */
struct driver_info {
    const struct machine *machine;
    enum accel accel;
    char why[160];      /* what decided the accelerator */
    char emulator[256]; /* absolute path */
    char type[64];      /* pinned machine type */
    char version[128];  /* "QEMU 7.2.22, libvirt 9.0.0" */
};

/* Cheap; nothing is opened yet. */
int driver_new(const char *state_dir, struct driver **ret, struct error *err);
struct driver *driver_free(struct driver *d);

/* STATE/qemu. */
const char *driver_root(const struct driver *d);
struct reaper *driver_reaper(struct driver *d);

/*
 * Opens the driver on first use, which adopts the VMs of an earlier daemon; a failure is tried
 * again at the next call. Blocks; seconds when libvirt's cache of capabilities is cold.
 */
int driver_open(struct driver *d, const struct driver_info **ret_info, virConnectPtr *ret_conn,
                struct error *err);

/* Fills err from libvirt's last error on this thread; returns its negative errno. */
int driver_error(struct error *err, const char *what, const char *id);

/* ---- migration events ---- */

enum migration_state {
    MIGRATION_RUNS,
    MIGRATION_COMPLETED,
    MIGRATION_FAILED,
};

/* Waits for the end of a migration of VM `id`, in or out. Embedded; on the caller's stack. */
struct migration_wait {
    const char *id; /* weak */
    enum migration_state state;
    struct migration_wait *next;
};

/* Begin before the command that starts it, so that no event is missed; end always. */
void driver_migration_begin(struct driver *d, struct migration_wait *w, const char *id);
/* The state after an event or at until_usec, whichever is first. */
enum migration_state driver_migration_wait(struct driver *d, struct migration_wait *w,
                                           uint64_t until_usec);
void driver_migration_end(struct driver *d, struct migration_wait *w);
