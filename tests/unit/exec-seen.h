#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "host/console.h"
#include "host/exec.h"

/* What an exec's callbacks saw, for tests. */
struct seen {
    struct exec *e; /* owned */
    unsigned started, exited, closed, writable, ends;
    struct buf out[EXEC_STREAMS_MAX];
    uint64_t next[EXEC_STREAMS_MAX]; /* expected offset */
    uint32_t pid;
    struct exec_exit exit;
    struct error reason;
    struct exec_range ranges[EXEC_STREAMS_MAX];
    bool hold;               /* does not acknowledge */
    bool gaps;               /* offsets may jump */
    struct exec **free_exec; /* in the next callback */
    struct console **free_console;
};

#define SEEN_BYTES_MAX (16u << 20)

void seen_init(struct seen *s);
/* Frees the exec too. */
void seen_done(struct seen *s);

/* userdata is the struct seen. */
extern const struct exec_callbacks seen_callbacks;
