#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* What an operator may set, in the daemon's environment. */
struct fc_options {
    unsigned pool_size;             /* HEARTH_FC_POOL: idle processes kept ahead */
    uint64_t disk_bytes_per_second; /* HEARTH_FC_DISK_RATE ("64M"), of a VM's writable layer */
    uint64_t disk_ops_per_second;   /* HEARTH_FC_DISK_IOPS; both 0: no limit */
    char cpu_template[16];          /* HEARTH_FC_CPU_TEMPLATE, a static one ("T2S"); "": none */
    bool pager;                     /* HEARTH_FC_PAGER=1: snapshots by hearth-pager */
    bool clock_realtime;            /* HEARTH_FC_CLOCK_REALTIME=1: see fc-machine.c; x86_64 */
};

/* -EINVAL names the variable whose value makes no sense. */
int fc_options_read(struct fc_options *ret, struct error *err);
