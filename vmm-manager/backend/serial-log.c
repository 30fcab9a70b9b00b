#include "backend/serial-log.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

#define REASON_TAIL_BYTES (16u * 1024u)
#define LINE_MAX_BYTES 160
#define HALT_TAIL_BYTES 512u /* these are last words */

/* The last `max` bytes of a file as a string without NULs; owned by the caller, NULL if none. */
static char *read_tail(int fd, size_t max, size_t *ret_size)
{
    char *data;
    struct stat st;
    ssize_t n;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return NULL;
    data = malloc(max + 1);
    if (!data)
        return NULL;
    if (lseek(fd, st.st_size > (off_t)max ? st.st_size - (off_t)max : 0, SEEK_SET) < 0) {
        free(data);
        return NULL;
    }
    n = fd_read_full(fd, data, max);
    if (n < 0) {
        free(data);
        return NULL;
    }
    data[n] = '\0';
    *ret_size = (size_t)n;
    return data;
}

void serial_trim(const char *path)
{
    _cleanup_close_ int fd = -EBADF;
    _cleanup_free_ char *tail = NULL;
    struct stat st;
    size_t size;

    if (lstat(path, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size <= (off_t)SERIAL_MAX_BYTES)
        return;
    /* The VMM appends too: what it writes meanwhile may land before the tail or be lost. */
    fd = open(path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    tail = read_tail(fd, SERIAL_KEEP_BYTES, &size);
    if (ftruncate(fd, 0) == 0 && tail)
        (void)fd_write_full(fd, tail, size);
}

/* One line of guest text, printable only. */
static void copy_line(const char *from, char *line, size_t size)
{
    size_t n = 0;

    for (; *from && *from != '\n' && *from != '\r' && n + 1 < size; from++)
        line[n++] = *from >= ' ' && *from < 0x7f ? *from : '?';
    line[n] = '\0';
}

static int last_words(const char *path, char *line, size_t size)
{
    static const char *const marks[] = {"hearth-init: fatal:", "Kernel panic"};
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    _cleanup_free_ char *tail = NULL;
    size_t n;

    if (fd < 0)
        return -errno;
    tail = read_tail(fd, REASON_TAIL_BYTES, &n);
    if (!tail)
        return -EIO;
    for (size_t i = 0; i < n; i++)
        if (!tail[i])
            tail[i] = ' ';
    for (size_t i = 0; i < ARRAY_SIZE(marks); i++) {
        const char *found = strstr(tail, marks[i]);

        if (found) {
            copy_line(found, line, size);
            return 0;
        }
    }
    return -ENOENT;
}

bool serial_says_halted(const char *path)
{
    static const char *const marks[] = {"reboot: Power down", "reboot: System halted"};
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    _cleanup_free_ char *tail = NULL;
    size_t n = 0;

    tail = fd < 0 ? NULL : read_tail(fd, HALT_TAIL_BYTES, &n);
    for (size_t i = 0; tail && i < ARRAY_SIZE(marks); i++)
        if (memmem(tail, n, marks[i], strlen(marks[i])))
            return true;
    return false;
}

void serial_reason(const char *path, const siginfo_t *info, const char *vmm, char *text,
                   size_t size)
{
    char line[LINE_MAX_BYTES];

    if (last_words(path, line, sizeof(line)) >= 0)
        (void)snprintf(text, size, "the guest ended: %s", line);
    else if (info->si_pid == 0)
        (void)snprintf(text, size, "%s ended", vmm);
    else if (info->si_code == CLD_EXITED && info->si_status == 0)
        (void)snprintf(text, size, "the guest powered off or rebooted");
    else if (info->si_code == CLD_EXITED)
        (void)snprintf(text, size, "%s exited with status %d", vmm, info->si_status);
    else
        (void)snprintf(text, size, "%s was killed by signal %d%s", vmm, info->si_status,
                       info->si_status == SIGKILL ? " (by hand, or out of memory)" : "");
}
