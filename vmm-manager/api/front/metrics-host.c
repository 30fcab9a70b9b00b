#include "api/front/metrics-host.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/loop.h"
#include "core/core.h"
#include "core/keys.h"

int metrics_head(struct buf *text, const char *name, const char *type, const char *help)
{
    return buf_printf(text, "# HELP %1$s %3$s\n# TYPE %1$s %2$s\n", name, type, help);
}

int metrics_value(struct buf *text, const char *name, const char *type, const char *help,
                  double value)
{
    int r = metrics_head(text, name, type, help);

    return r < 0 ? r : buf_printf(text, "%s %.17g\n", name, value);
}

/* ---- sandboxes ---- */

struct totals {
    uint64_t by_state[SANDBOX_STATE_COUNT];
    uint64_t cpus, memory_mib, disk_mib;
};

static void add_sandbox(struct sandbox *sb, void *userdata)
{
    const struct sandbox_spec *spec = sandbox_get_spec(sb);
    struct totals *t = userdata;

    t->by_state[sandbox_get_state(sb)]++;
    t->disk_mib += spec->disk_mib;
    if (sandbox_pid(sb) > 0) {
        t->cpus += spec->cpus;
        t->memory_mib += spec->memory_mib;
    }
}

/* ---- pools ---- */

static const struct {
    const char *name, *type, *key, *help;
} pool_values[] = {
    {"hearth_pool_ready", "gauge", "ready", "Warm sandboxes of a template that can be had now."},
    {"hearth_pool_target", "gauge", "target", "How many of them there are to be."},
    {"hearth_pool_filling", "gauge", "filling", "Warm sandboxes that are being made."},
    {"hearth_pool_claims_total", "counter", "claims", "Sandboxes handed over from the pool."},
    {"hearth_pool_misses_total", "counter", "misses", "Creations that found none ready."},
    {"hearth_pool_failures_total", "counter", "failures", "Refills that came to nothing."},
};

static int print_pools(struct core *core, struct buf *text)
{
    json_t *pools = core_pools_to_json(core), *pool;
    size_t i;
    int r = pools ? 0 : -ENOMEM;

    for (size_t v = 0; v < ARRAY_SIZE(pool_values) && r >= 0; v++) {
        r = metrics_head(text, pool_values[v].name, pool_values[v].type, pool_values[v].help);
        json_array_foreach(pools, i, pool)
        {
            if (r >= 0)
                r = buf_printf(
                    text, "%s{template=\"%s\"} %lld\n", pool_values[v].name,
                    json_string_value(json_object_get(pool, "template")),
                    (long long)json_integer_value(json_object_get(pool, pool_values[v].key)));
        }
    }
    json_decref(pools);
    return r;
}

int metrics_print_core(struct core *core, struct buf *text)
{
    struct totals t = {0};
    uint64_t quota, stored = core_snapshot_bytes(core, &quota);
    int r = metrics_head(text, "hearth_sandboxes", "gauge", "Sandboxes by state.");

    sandbox_each(core, add_sandbox, &t);
    for (unsigned i = 0; i < SANDBOX_STATE_COUNT && r >= 0; i++)
        r = buf_printf(text, "hearth_sandboxes{state=\"%s\"} %llu\n",
                       sandbox_state_name((enum sandbox_state)i),
                       (unsigned long long)t.by_state[i]);
    if (r >= 0)
        r = metrics_value(text, "hearth_machines_cpus", "gauge",
                          "Virtual CPUs of the machines that run.", (double)t.cpus);
    if (r >= 0)
        r = metrics_value(text, "hearth_machines_memory_bytes", "gauge",
                          "Memory that the machines which run may use.",
                          (double)t.memory_mib * 1024 * 1024);
    if (r >= 0)
        r = metrics_value(text, "hearth_sandboxes_disk_bytes", "gauge",
                          "Size of the writable disks of all sandboxes.",
                          (double)t.disk_mib * 1024 * 1024);
    if (r >= 0)
        r = metrics_value(text, "hearth_snapshots_bytes", "gauge",
                          "What all snapshots take on disk.", (double)stored);
    if (r >= 0)
        r = metrics_value(text, "hearth_snapshots_quota_bytes", "gauge",
                          "What they may take; 0: no limit.", (double)quota);
    if (r >= 0)
        r = print_pools(core, text);
    return r;
}

/* ---- the daemon itself ---- */

static unsigned count_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned count = 0;

    while (dir && readdir(dir))
        count++;
    if (dir)
        (void)closedir(dir);
    return count > 3 ? count - 3 : 0; /* ".", ".." and the directory itself */
}

static double resident_bytes(void)
{
    _cleanup_free_ char *text = NULL;
    unsigned long long size, resident;
    size_t length;

    if (file_read("/proc/self/statm", 4096, &text, &length, NULL) < 0 ||
        sscanf(text, "%llu %llu", &size, &resident) != 2)
        return 0;
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static double seconds(const struct timeval *t)
{
    return (double)t->tv_sec + (double)t->tv_usec / 1e6;
}

int metrics_print_process(const struct loop *loop, uint64_t started_wall_usec, struct buf *text)
{
    struct rusage usage = {0};
    struct rlimit files = {0};
    int r;

    (void)getrusage(RUSAGE_SELF, &usage);
    (void)getrlimit(RLIMIT_NOFILE, &files);
    r = metrics_value(text, "process_cpu_seconds_total", "counter",
                      "User and system CPU time of the daemon.",
                      seconds(&usage.ru_utime) + seconds(&usage.ru_stime));
    if (r >= 0)
        r = metrics_value(text, "process_resident_memory_bytes", "gauge",
                          "Resident memory of the daemon.", resident_bytes());
    if (r >= 0)
        r = metrics_value(text, "process_open_fds", "gauge", "Open file descriptors.",
                          count_files());
    if (r >= 0)
        r = metrics_value(text, "process_max_fds", "gauge", "Limit of file descriptors.",
                          (double)files.rlim_cur);
    if (r >= 0)
        r = metrics_value(text, "process_start_time_seconds", "gauge",
                          "Start of the daemon since the epoch.", (double)started_wall_usec / 1e6);
    if (r >= 0)
        r = metrics_value(text, "hearth_loop_slow_callbacks_total", "counter",
                          "Callbacks that held the event loop for more than 10 ms.",
                          (double)loop_slow_callbacks(loop));
    if (r >= 0)
        r = buf_printf(text,
                       "# HELP hearth_build_info Version of the daemon.\n"
                       "# TYPE hearth_build_info gauge\n"
                       "hearth_build_info{version=\"%s\"} 1\n",
                       HEARTH_VERSION);
    return r;
}
