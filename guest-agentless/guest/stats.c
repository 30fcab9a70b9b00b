#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/event.h"
#include "guest/server.h"

/* Figures of the whole guest, from /proc of PID 1. */

static void read_proc(const char *path, char *text, size_t size)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : fd_read_full(fd, text, size - 1);

    text[n > 0 ? n : 0] = '\0';
}

static uint64_t meminfo(const char *text, const char *key)
{
    const char *p = strstr(text, key);
    unsigned long long kib = 0;

    if (!p || sscanf(p + strlen(key), ": %llu", &kib) != 1)
        return 0;
    return (uint64_t)kib * 1024;
}

static uint64_t cpu_usec(void)
{
    unsigned long long user = 0, nice = 0, system = 0;
    long ticks = sysconf(_SC_CLK_TCK);
    char text[256];

    read_proc("/proc/stat", text, sizeof(text));
    if (ticks <= 0 || sscanf(text, "cpu %llu %llu %llu", &user, &nice, &system) != 3)
        return 0;
    return (uint64_t)(user + nice + system) * USEC_PER_SEC / (uint64_t)ticks;
}

void event_stats(struct server *s, uint32_t channel)
{
    Hearth__V1__StatsReply stats = HEARTH__V1__STATS_REPLY__INIT;
    Hearth__V1__Event event = HEARTH__V1__EVENT__INIT;
    struct statvfs fs;
    char text[4096];
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    read_proc("/proc/meminfo", text, sizeof(text));
    stats.memory_total = meminfo(text, "MemTotal");
    stats.memory_available = meminfo(text, "MemAvailable");
    if (statvfs(s->options.root ? s->options.root : "/", &fs) == 0) {
        stats.disk_total = (uint64_t)fs.f_blocks * fs.f_frsize;
        stats.disk_free = (uint64_t)fs.f_bavail * fs.f_frsize;
    }
    stats.cpu_usec = cpu_usec();
    stats.cpus = cpus > 0 ? (uint32_t)cpus : 1;
    stats.processes = process_count_alive(s);
    stats.uptime_usec = clock_now_usec();
    event.event_case = HEARTH__V1__EVENT__EVENT_STATS;
    event.stats = &stats;
    (void)event_send(s, channel, &event);
}
