#pragma once

#include "base/error.h"

/*
 * Theory of operation. libvirt starts every QEMU, also those it only asks for their capabilities,
 * as a grandchild, and ends one by polling kill(pid, 0) until it is gone. With the daemon as
 * sub-reaper the dead QEMU stays a zombie of ours, and that poll runs into its 40 seconds unless
 * somebody reaps it. VMs that run are watched by the loop. This thread does it for those that die
 * before: while a start is under way it looks every few milliseconds at the pid files of the VMs
 * being started, less often at all processes for libvirt's capability probes, and reaps exactly
 * those pids. Never all children: libvirt and others wait for theirs.
 */
struct reaper;

int reaper_new(const char *root, struct reaper **ret, struct error *err);
struct reaper *reaper_free(struct reaper *r);

/*
 * Between begin and end the VM's process is reaped here if it dies; id NULL: only capability
 * probes. From any thread. -ENOSPC when too many starts are under way.
 */
int reaper_begin(struct reaper *r, const char *id);
void reaper_end(struct reaper *r, int ticket);
