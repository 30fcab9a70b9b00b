#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "backend/firecracker/fc-find.h"
#include "backend/firecracker/fc-jail.h"
#include "base/error.h"

/* One Firecracker process in its jail. Everything here blocks: for worker threads. */
struct fc_vmm {
    struct fc_jail jail;
    pid_t pid;
    uint64_t start_time; /* of the process, from /proc: tells it from another with the same pid */
    int pidfd;           /* owned, -EBADF when none */
};

struct fc_launch {
    struct fc_programs programs;
    char base[160];
    uid_t uid;
    uint32_t memory_mib; /* for the cgroup's limit; 0: no limit */
    uint32_t cpus;
    uint64_t deadline_usec;
};

/* Starts a process and waits until its API socket is there. Nothing is left of it on failure. */
int fc_vmm_launch(const struct fc_launch *launch, struct fc_vmm *ret, struct error *err);

/* SIGKILL and wait for the end (it may be our child or not). The jail stays. */
int fc_vmm_kill(struct fc_vmm *vmm, uint64_t deadline_usec, struct error *err);

/* Record in a VM's directory, to find the process after a daemon restart. */
int fc_vmm_record_write(const struct fc_vmm *vmm, const char *dir, struct error *err);
/* -ESRCH when the process is gone or another one; *ret is filled as far as the record goes. */
int fc_vmm_record_read(const char *dir, struct fc_vmm *ret, struct error *err);

/* The process of a jail by its pid file, for orphans; -ESRCH when none lives. */
int fc_vmm_find(const struct fc_jail *jail, struct fc_vmm *ret, struct error *err);
