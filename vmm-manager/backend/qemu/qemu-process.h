#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

/* What /proc tells about a QEMU. Nothing here waits. What the reaper calls allocates no memory. */

/* Is this process QEMU with our `-name guest=ID,…`? */
bool process_is_vm(pid_t pid, const char *id);

/*
 * Is it a dead QEMU that is our child by adoption? One in our own session is a child that libvirt
 * made, and waits for, itself.
 */
bool process_is_dead_qemu(pid_t pid);

/*
 * Duplicates of its sockets, so that nobody sees them end before the caller closes these; returns
 * how many. Best effort: none when not permitted.
 */
size_t process_hold_sockets(int pidfd, pid_t pid, int *ret_fds, size_t max);

/* The guest's RAM as QEMU was told to make it. */
struct ram {
    uint64_t size;
    char *path;  /* owned; NULL: anonymous */
    bool shared; /* with the file at path; else a private view of it */
};
void ram_done(struct ram *ram);
static inline void ram_cleanup(struct ram *ram)
{
    ram_done(ram);
}

int process_ram(pid_t pid, struct ram *ret, struct error *err);
/* The same from the words of a command line, each with its 0 byte. -ENOENT when it says nothing. */
int process_ram_parse(const char *words, size_t size, struct ram *ret);
