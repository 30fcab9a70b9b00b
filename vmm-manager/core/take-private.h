#pragma once

#include "core/disk-copy.h"
#include "core/sandbox-private.h"
#include "core/take.h"

/* A snapshot that is being taken, for take.c and take-release.c. */
enum take_step {
    TAKE_PREPARE,
    TAKE_FREEZE,
    TAKE_MEMORY,
    TAKE_DISK,
    TAKE_SEAL,
    TAKE_COMMIT,
    TAKE_KILL,
};

enum release_step {
    RELEASE_NOT,
    RELEASE_SOON, /* from the loop: what broke the console has told everybody by then */
    RELEASE_RESUME,
    RELEASE_THAW,
    RELEASE_CONTINUE, /* a new connection for the console that was parked */
    RELEASE_RELINK,
    RELEASE_DONE,
};

struct take {
    struct sandbox *sandbox; /* weak: owns this */
    struct take_options options;
    char name[65];
    char dir[512]; /* of the writer */
    enum take_step step;
    enum release_step release;
    struct snapshot_writer *writer; /* owned, unless a worker has it */
    struct snapshot_info info;      /* owned, unless a worker has it */
    struct backend_caps caps;
    struct disk_copy *copy; /* owned */
    struct source *soon;    /* owned */
    unsigned busy;
    bool frozen;    /* the guest is closed */
    bool paused;    /* the VM stands still */
    bool cut_off;   /* the snapshot ends the console's connection, which could not be parked */
    bool sealed;    /* the snapshot is in the store */
    bool cancelled; /* no sleep after all */
    bool forgotten; /* nobody wants the result */
    bool aborted;   /* the sandbox ends */
    bool vm_lost;   /* the VM ended by itself, after all was written */
    struct error err;
    uint64_t started_usec, paused_usec;
    uint64_t freeze_usec, step_usec; /* when the freeze was asked for; when the step began */
    struct take_figures figures;
};

bool take_is_sleep(const struct take *t);
/* The first one counts. */
void take_note_error(struct take *t, const struct error *err);
/* A call that cannot be taken back, and its end; false: do nothing more, the take may be gone. */
void take_begin_call(struct take *t);
bool take_end_call(struct take *t);
/* All is over: the one who asked hears of it, and the take is gone. */
void take_end(struct take *t);
/* The sandbox goes on: its VM runs, its guest is thawed, from the loop. */
void take_release(struct take *t);
