#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

/*
 * Starts hearth-pager for one VM. It makes a Unix socket at `socket` to which the VMM connects when
 * it loads the snapshot with an `Uffd` memory backend, serves that VM's memory, and ends by itself:
 * when the VMM dies, when nobody connects in time, or when the snapshot turns out to be damaged (it
 * kills the VMM then and says why in its log). It is no child of the caller and outlives it.
 */
struct pager_spawn {
    const char *program;           /* NULL: hearth-pager beside this program */
    const char *socket;            /* to be made, at most 107 bytes; removed when the pager ends */
    const char *snapshot_dir;      /* STORE/ID, opened and so verified by the caller */
    const char *base_memory;       /* TEMPLATES/ID/memory, as snapshot_base_memory() gives it */
    const char *log_file;          /* appended to; NULL: nowhere */
    const char *stats_file;        /* JSON of counters, written anew now and then; NULL: none */
    uid_t uid;                     /* owner of the socket: who may connect */
    gid_t gid;                     /* its group */
    uint64_t connect_timeout_usec; /* 0: 30 s */
};

/* Returns when the socket listens. Blocks: for workers. */
int pager_spawn(const struct pager_spawn *options, struct error *err);
