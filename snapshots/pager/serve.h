#pragma once

#include "pager/guest.h"
#include "pager/memory.h"

struct serve {
    struct memory *memory;   /* ref */
    struct guest *guest;     /* ref */
    int pidfd;               /* weak: of the VMM */
    const char *seal;        /* weak: of the snapshot */
    const char *working_set; /* weak: path of it */
    const char *stats_file;  /* weak; NULL: none */
    bool prefetch;           /* use the working set when there is one */
};

/*
 * Serves until the VMM has died: 0. On an error the guest's memory can no longer be served rightly
 * and whoever called must end the VMM. Blocks.
 */
int serve(const struct serve *options, struct error *err);
