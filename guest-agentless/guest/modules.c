#include "guest/modules.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "guest/console.h"

#define LIST_MAX (64u * 1024u)

static void load(const char *dir, const char *name)
{
    _cleanup_close_ int fd = -EBADF;
    char path[512];

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        console_say("module %s: %s", name, errno_text(errno));
        return;
    }
    if (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST)
        console_say("module %s: %s", name, errno_text(errno));
}

int modules_load(const char *dir, struct error *err)
{
    _cleanup_close_ int fd = -EBADF;
    _cleanup_free_ char *text = malloc(LIST_MAX + 1);
    char path[512];
    ssize_t n;

    if (!text)
        return error_set(err, ENOMEM, "out of memory");
    (void)snprintf(path, sizeof(path), "%s/modules.list", dir);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : error_set(err, errno, "open %s: %s", path, errno_text(errno));
    n = fd_read_full(fd, text, LIST_MAX);
    if (n < 0)
        return error_set(err, (int)-n, "read %s: %s", path, errno_text((int)-n));
    text[n] = '\0';
    for (char *p = text; *p;) {
        char *end = strchrnul(p, '\n');
        bool last = *end == '\0';

        *end = '\0';
        if (*p)
            load(dir, p);
        if (last)
            break;
        p = end + 1;
    }
    return 0;
}
