#pragma once

#include <stdbool.h>

#include "base/error.h"

/*
 * Which Firecracker there is and whether it can be used here. Looked for in HEARTH_FIRECRACKER (the
 * program or its directory), beside our programs (../libexec/hearth), on PATH; the jailer beside
 * it, in HEARTH_JAILER, on PATH.
 */
#define FC_VERSION_MIN "1.16.1"

struct fc_programs {
    char firecracker[256];
    char jailer[256];     /* "" when there is none */
    char version[32];     /* "1.16.1" */
    bool jailed;          /* root, a jailer and a cgroup v2 tree */
    char not_jailed[128]; /* why not */
};

/* Blocks for some milliseconds (runs the program with --version). */
int fc_find(struct fc_programs *ret, struct error *err);

/* "1.16.1" against "1.9": negative, 0, positive; -EINVAL is never returned, rubbish counts as 0. */
int fc_version_compare(const char *a, const char *b);

/* Whether /dev/kvm can run guests here; err tells why not and what to do. */
int fc_check_kvm(struct error *err);
