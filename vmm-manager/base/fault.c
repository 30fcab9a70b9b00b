#include "base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/macros.h"

enum fault_kind {
    FAULT_NONE,
    FAULT_TRACE,
    FAULT_KILL,
    FAULT_ENOSPC,
    FAULT_EIO,
};

/* Read once; the step is given up after it has failed. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool read;
    enum fault_kind kind;
    char step[256]; /* or the file of the trace */
} fault;

static void fault_read(const char *text)
{
    static const struct {
        const char *name;
        enum fault_kind kind;
    } kinds[] = {{"kill", FAULT_KILL}, {"enospc", FAULT_ENOSPC}, {"eio", FAULT_EIO}};
    const char *colon = text ? strchr(text, ':') : NULL;

    fault.read = true;
    fault.kind = FAULT_NONE;
    if (!colon)
        return;
    if (strncmp(text, "trace:", strlen("trace:")) == 0) {
        fault.kind = FAULT_TRACE;
        (void)snprintf(fault.step, sizeof(fault.step), "%s", colon + 1);
        return;
    }
    (void)snprintf(fault.step, sizeof(fault.step), "%.*s", (int)(colon - text), text);
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        if (strcmp(colon + 1, kinds[i].name) == 0)
            fault.kind = kinds[i].kind;
    }
}

static void trace(const char *step)
{
    _cleanup_close_ int fd = open(fault.step, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    if (fd >= 0)
        (void)dprintf(fd, "%s\n", step);
}

void fault_set(const char *text)
{
    (void)pthread_mutex_lock(&lock);
    fault_read(text);
    (void)pthread_mutex_unlock(&lock);
}

int fault_at(const char *step)
{
    enum fault_kind kind = FAULT_NONE;

    (void)pthread_mutex_lock(&lock);
    if (!fault.read)
        fault_read(getenv("HEARTH_FAULT"));
    if (fault.kind == FAULT_TRACE) {
        trace(step);
    } else if (fault.kind != FAULT_NONE && strcmp(fault.step, step) == 0) {
        kind = fault.kind;
        fault.kind = FAULT_NONE;
    }
    (void)pthread_mutex_unlock(&lock);
    switch (kind) {
    case FAULT_NONE:
    case FAULT_TRACE:
        return 0;
    case FAULT_KILL:
        (void)raise(SIGKILL);
        return -EINTR;
    case FAULT_ENOSPC:
        return -ENOSPC;
    case FAULT_EIO:
        return -EIO;
    }
    return 0;
}

int fault_check(const char *step, struct error *err)
{
    int r = fault_at(step);

    return r < 0 ? error_set(err, -r, "step '%s': %s", step, errno_text(-r)) : 0;
}
