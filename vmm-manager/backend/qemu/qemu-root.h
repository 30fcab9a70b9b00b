#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

/*
 * The directory that libvirt's embedded driver lives in: STATE/qemu with etc, cache, lib, log and
 * run below. `run` holds pid files and status files that libvirt syncs several times per start, and
 * that mean nothing after a reboot: it is a symlink into a memory file system where there is one.
 */

/* Makes the tree and the driver's configuration. Blocks. */
int root_prepare(const char *root, struct error *err);

/* The driver was closed: what root_prepare() put outside the root goes, unless a VM still lives. */
void root_release(const char *root);

/* Pid that libvirt recorded for the VM, or -ESRCH. It may be of the past: see root_open_vm(). */
pid_t root_read_pid(const char *root, const char *id);

/*
 * A descriptor of the VM's process, after checking that it is QEMU and runs this VM; -ESRCH when
 * there is none. Reads a few files of /proc, never waits.
 */
int root_open_vm(const char *root, const char *id, pid_t *ret_pid);

/* Ids of all VMs of this root whose process lives; a strv (NULL: none), owned by the caller. */
int root_list(const char *root, char ***ret, struct error *err);

/* What QEMU of this VM last complained about, from libvirt's log of it; -ENOENT for nothing. */
int root_last_words(const char *root, const char *id, char *text, size_t size);

/* Removes libvirt's per-VM logs of VMs that `alive` does not know and that are a while old. */
void root_sweep_logs(const char *root, bool (*alive)(const char *id, void *userdata),
                     void *userdata);
