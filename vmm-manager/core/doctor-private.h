#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "core/core-private.h"

/* A report in the making; filled on a worker. */
struct doctor {
    struct core *core; /* weak; only what never changes is read */
    json_t *checks;    /* owned */
    bool ok;           /* no check of level error failed */
};

enum doctor_level {
    DOCTOR_INFO,    /* good to know */
    DOCTOR_WARNING, /* works, but worse than it could */
    DOCTOR_ERROR,   /* no sandbox can be made */
};

/* `level` is that of a failed check; a good one is info. `fix` NULL: nothing to do. */
void doctor_add(struct doctor *d, const char *name, bool ok, enum doctor_level level,
                const char *fix, const char *detail, ...) _printf_(6, 7);

/* doctor-host.c */
void doctor_check_user(struct doctor *d);
void doctor_check_arch(struct doctor *d);
void doctor_check_kvm(struct doctor *d);
void doctor_check_memory(struct doctor *d);
void doctor_check_cgroup(struct doctor *d);
void doctor_check_userfaultfd(struct doctor *d);
void doctor_check_files(struct doctor *d);
