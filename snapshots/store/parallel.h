#pragma once

#include <stdint.h>

/* Work that costs CPU, on a few threads that end with it. For workers, which may block. */
#define PARALLEL_MAX 4u

struct parallel_job {
    void *(*fn)(void *userdata); /* its result is not looked at */
    void *userdata;
};

/* How many parts are worth it for so many bytes on this machine; at least 1. */
unsigned parallel_parts(uint64_t bytes);
/* Runs all of them, the first on this thread; a thread that cannot be had is done without. */
void parallel_run(const struct parallel_job *jobs, unsigned n);
