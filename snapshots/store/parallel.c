#include "store/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>

#include "base/macros.h"

#define PART_BYTES (UINT64_C(16) * 1024 * 1024)

unsigned parallel_parts(uint64_t bytes)
{
    uint64_t parts = bytes / PART_BYTES;
    cpu_set_t cpus;

    CPU_ZERO(&cpus);
    if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
        parts = MIN(parts, (uint64_t)CPU_COUNT(&cpus));
    parts = MIN(parts, (uint64_t)PARALLEL_MAX);
    return parts > 1 ? (unsigned)parts : 1;
}

void parallel_run(const struct parallel_job *jobs, unsigned n)
{
    pthread_t threads[PARALLEL_MAX];
    bool started[PARALLEL_MAX] = {0};

    for (unsigned i = 1; i < n; i++)
        started[i] = pthread_create(&threads[i], NULL, jobs[i].fn, jobs[i].userdata) == 0;
    for (unsigned i = 0; i < n; i++)
        if (!started[i])
            (void)jobs[i].fn(jobs[i].userdata);
    for (unsigned i = 1; i < n; i++)
        if (started[i])
            (void)pthread_join(threads[i], NULL);
}
