#pragma once

#include <stdint.h>
#include <sys/types.h>

/* What a process costs the host. */
struct host_memory {
    uint64_t rss_bytes;
    uint64_t pss_bytes; /* shared pages counted in parts */
};
/* From /proc/PID/smaps_rollup; a negative errno when it is gone or not ours to see. */
int host_process_memory(pid_t pid, struct host_memory *ret);
/* What new processes can still get of the host; UINT64_MAX when it is not known. */
uint64_t host_memory_available_mib(void);
