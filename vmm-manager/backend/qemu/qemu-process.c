#include "backend/qemu/qemu-process.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "backend/qemu/qemu-xml.h"
#include "base/fd.h"
#include "base/strv.h"

#define PROGRAM "qemu-system-"
#define COMMAND_LINE_MAX (XML_SIZE_MAX + 1)
#define MIB (UINT64_C(1) << 20)

/* Text of a file in /proc/PID, cut to fit, 0 behind it; its size, or -ESRCH. */
static ssize_t read_proc(pid_t pid, const char *name, char *data, size_t size)
{
    char path[64];
    ssize_t n;

    (void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -ESRCH;
    n = fd_read_full(fd, data, size - 1);
    if (n <= 0)
        return -ESRCH;
    data[n] = '\0';
    return n;
}

bool process_is_vm(pid_t pid, const char *id)
{
    char want[128], data[8192];
    const char *base;
    ssize_t n;

    n = read_proc(pid, "cmdline", data, sizeof(data));
    if (n < 0)
        return false;
    base = strrchr(data, '/');
    base = base ? base + 1 : data;
    if (!string_starts_with(base, PROGRAM))
        return false;
    (void)snprintf(want, sizeof(want), "guest=%s,", id);
    for (const char *arg = data; arg < data + n; arg += strlen(arg) + 1)
        if (string_starts_with(arg, want))
            return true;
    return false;
}

/* Its stat line: pid (comm) state ppid pgrp session. */
bool process_is_dead_qemu(pid_t pid)
{
    char data[256], state;
    const char *comm, *end;
    int parent, session;

    if (read_proc(pid, "stat", data, sizeof(data)) < 0)
        return false;
    comm = strchr(data, '(');
    end = strrchr(data, ')');
    /* The kernel cuts the name to 15 bytes. */
    if (!comm || !end || !string_starts_with(comm + 1, PROGRAM))
        return false;
    return sscanf(end + 1, " %c %d %*d %d", &state, &parent, &session) == 3 && state == 'Z' &&
           parent == getpid() && session != getsid(0);
}

size_t process_hold_sockets(int pidfd, pid_t pid, int *ret_fds, size_t max)
{
    char path[64], target[64];
    struct dirent *e;
    size_t n = 0;
    DIR *dir;

    (void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    dir = opendir(path);
    while (dir && n < max && (e = readdir(dir)) != NULL) {
        ssize_t size = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);
        uint64_t fd;

        if (size <= 0 || parse_u64(e->d_name, 0, INT32_MAX, &fd) < 0)
            continue;
        target[size] = '\0';
        if (!string_starts_with(target, "socket:"))
            continue;
        ret_fds[n] = pidfd_getfd(pidfd, (int)fd, 0);
        if (ret_fds[n] >= 0)
            n++;
    }
    if (dir)
        (void)closedir(dir);
    return n;
}

void ram_done(struct ram *ram)
{
    free(ram->path);
    *ram = (struct ram){0};
}

/* The value of a QEMU option list as it was before xml_escape() doubled its commas. */
static char *unescape(const char *text)
{
    char *out = malloc(strlen(text) + 1), *to = out;

    for (; out && *text; text++) {
        *to++ = *text;
        if (text[0] == ',' && text[1] == ',')
            text++;
    }
    if (out)
        *to = '\0';
    return out;
}

/* As put_commandline() in qemu-xml.c wrote it. */
static int parse_object(const char *text, struct ram *ret)
{
    static const char path_key[] = ",mem-path=";
    struct ram ram = {0};
    unsigned mib;
    char kind[8], share[4];
    const char *path;
    int n = 0;

    if (sscanf(text, "memory-backend-%7[a-z],id=" XML_RAM_ID ",size=%uM,share=%3[a-z]%n", kind,
               &mib, share, &n) < 3 ||
        n == 0 || mib == 0)
        return -ENOENT;
    ram.size = mib * MIB;
    if (strcmp(kind, "ram") == 0) {
        *ret = ram;
        return 0;
    }
    path = text + n;
    if (strcmp(kind, "file") != 0 || !string_starts_with(path, path_key))
        return -ENOENT;
    ram.shared = strcmp(share, "on") == 0;
    ram.path = unescape(path + sizeof(path_key) - 1);
    if (!ram.path)
        return -ENOMEM;
    *ret = ram;
    return 0;
}

int process_ram_parse(const char *words, size_t size, struct ram *ret)
{
    for (const char *word = words; word < words + size; word += strlen(word) + 1) {
        int r = parse_object(word, ret);

        if (r != -ENOENT)
            return r;
    }
    return -ENOENT;
}

int process_ram(pid_t pid, struct ram *ret, struct error *err)
{
    _cleanup_free_ char *words = malloc(COMMAND_LINE_MAX);
    ssize_t n;
    int r;

    if (!words)
        return error_set(err, ENOMEM, "out of memory");
    n = read_proc(pid, "cmdline", words, COMMAND_LINE_MAX);
    if (n < 0)
        return error_set(err, ESRCH, "QEMU (pid %d) has ended", (int)pid);
    r = process_ram_parse(words, (size_t)n, ret);
    if (r == -ENOENT)
        return error_set(err, EOPNOTSUPP,
                         "QEMU (pid %d) was started by an older version, which did not say where "
                         "its guest's memory is",
                         (int)pid);
    return r < 0 ? error_set(err, -r, "out of memory") : 0;
}
