#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend/firecracker/fc-find.h"
#include "backend/firecracker/fc-jail.h"
#include "base/error.h"

#define FC_API_SOCKET "api.sock"
#define FC_CONSOLE_SOCKET "console.sock"
#define FC_SERIAL_LOG "serial.log"

/* One Firecracker process in its jail. Everything here blocks: for worker threads. */
struct fc_vmm {
    struct fc_jail jail;
    pid_t pid;
    uint64_t start_time; /* of the process, from /proc: tells it from another with the same pid */
    int pidfd;           /* owned, -EBADF when none */
    bool restored;       /* its VM was, and so its changes are recorded */
};

struct fc_launch {
    struct fc_programs programs;
    char base[160];
    uid_t uid;
    uint64_t deadline_usec;
    int cancel_fd; /* weak: given up as soon as it can be read; -EBADF: never */
};

/* Starts an idle process and waits until its API socket is there. Nothing is left of it on failure.
 */
int fc_vmm_launch(const struct fc_launch *launch, struct fc_vmm *ret, struct error *err);

/* Whether somebody stopped it (SIGSTOP, a debugger): it does nothing then, and says nothing. */
bool fc_vmm_is_stopped(pid_t pid);

/* SIGKILL and wait for the end (it may be our child or not). The jail stays. */
int fc_vmm_kill(struct fc_vmm *vmm, uint64_t deadline_usec, struct error *err);

/* A file that tells a later daemon which process and jail belong to a VM. */
int fc_vmm_record_write(const struct fc_vmm *vmm, const char *path, struct error *err);
/*
 * -ENOENT: no such record. -ESRCH: its process is gone (*ret is filled, without a pidfd: what is
 * left of the jail can be removed).
 */
int fc_vmm_record_read(const char *path, struct fc_vmm *ret, struct error *err);

/* The process that works in a jail, for orphans; -ESRCH when none lives. */
int fc_vmm_find(const struct fc_jail *jail, struct fc_vmm *ret, struct error *err);
