#include "core/host-stats.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/fd.h"

/* "Pss:   1234 kB" somewhere in the text. */
static int parse_kib(const char *text, const char *key, uint64_t *ret_bytes)
{
    const char *found = strstr(text, key);
    unsigned long long kib;

    if (!found || sscanf(found + strlen(key), " %llu kB", &kib) != 1)
        return -ENODATA;
    *ret_bytes = kib * 1024u;
    return 0;
}

int host_process_memory(pid_t pid, struct host_memory *ret)
{
    char path[64], text[4096];
    _cleanup_close_ int fd = -EBADF;
    struct host_memory memory = {0};
    ssize_t n;
    int r;

    if (pid <= 0)
        return -ESRCH;
    (void)snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    n = fd_read_full(fd, text, sizeof(text) - 1);
    if (n < 0)
        return (int)n;
    text[n] = '\0';
    r = parse_kib(text, "\nRss:", &memory.rss_bytes);
    if (r >= 0)
        r = parse_kib(text, "\nPss:", &memory.pss_bytes);
    if (r < 0)
        return r;
    *ret = memory;
    return 0;
}

uint64_t host_memory_available_mib(void)
{
    _cleanup_close_ int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    char text[1024];
    uint64_t bytes;
    ssize_t n = fd < 0 ? -1 : fd_read_full(fd, text, sizeof(text) - 1);

    if (n < 0)
        return UINT64_MAX;
    text[n] = '\0';
    return parse_kib(text, "\nMemAvailable:", &bytes) < 0 ? UINT64_MAX : bytes / (1024u * 1024u);
}
