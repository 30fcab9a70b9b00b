#pragma once

#include "core/create.h"
#include "core/disk-copy.h"
#include "core/resolve.h"
#include "core/sandbox-private.h"
#include "core/template.h"

/* One creation, for create.c and claim.c. */
struct creation {
    struct sandbox *sandbox; /* weak: owns this */
    struct sandbox_create_callbacks cb;
    void *userdata;
    bool forgotten;
    bool queued, in_flight;
    struct creation *next;         /* weak: queue */
    struct resolve_job *resolving; /* weak: until it is done */
    struct resolution resolution;
    struct template_wait *wait; /* owned */
    struct template *template;  /* ref */
    struct disk_copy *copy;     /* owned */
    struct source *answer;      /* owned: of a claim, which is over at once */
    bool cold, fell_back;
    uint64_t asked_usec, step_usec;
};

/* Its maker is not told from inside the call that made it. */
struct creation *creation_new(struct sandbox *sb, const struct sandbox_create_callbacks *cb,
                              void *userdata);
