#pragma once

#include <pthread.h>

#include "backend/firecracker/fc-client.h"
#include "backend/firecracker/fc-machine.h"
#include "backend/firecracker/fc-vmm.h"
#include "backend/firecracker/firecracker.h"

/*
 * Theory of operation, loop side. A `vm` is one VM of ours from the first wish for it until nothing
 * of it is left. It goes through these phases, each of which somebody else ends:
 *
 *   PREPARING  a worker starts a process (or takes over an idle one) and shares the VM's files
 *   CALLING    requests of a verb go to Firecracker's API, one after the other
 *   RUNNING    nothing to do; the process is watched
 *   COPYING    a worker copies what a snapshot of a VM wrote out of its jail
 *   PAUSED     after a snapshot, until resume() or kill(); the process is watched
 *   ENDING     SIGKILL is sent; waits for the process to be gone
 *   CLEANING   a worker takes a saved VM's files out, removes jail and record
 *
 * Every failure goes through ENDING and CLEANING before it is answered: whoever hears of it may
 * trust that nothing is left. A process that ends by itself goes to CLEANING at once.
 */
enum fc_phase {
    FC_PREPARING,
    FC_CALLING,
    FC_RUNNING,
    FC_COPYING,
    FC_PAUSED,
    FC_ENDING,
    FC_CLEANING,
};

enum fc_verb {
    VERB_NONE,
    VERB_BOOT,
    VERB_RESTORE,
    VERB_SAVE,
    VERB_SNAPSHOT,
    VERB_UNDO, /* a snapshot failed; the VM is made to run again */
    VERB_RESUME,
    VERB_LOOK, /* of an adoption */
    VERB_WAKE, /* of one that was left paused */
};

struct fc;
struct fc_idle;

struct fc_kill_wait {
    backend_done_fn done;
    void *userdata;
    struct fc_kill_wait *next;
};

struct fc_vm {
    struct fc *b; /* weak */
    char id[64];
    enum fc_phase phase;
    bool busy;     /* a worker holds a copy of what it needs */
    int cancel_fd; /* weak, the worker's: written, it starts no process any more; else -EBADF */
    struct backend_vm vm;
    char *disk, *memory_file; /* owned; where they are on the host */
    struct fc_vmm vmm;        /* its pidfd is owned; no jail yet while jail.dir is "" */
    struct source *child;     /* owned; watches the process */
    int64_t log_size;         /* when it was looked at last */
    bool stopped;             /* the process was when it was looked at last */
    bool died;                /* it ended by itself */
    char reason[256];         /* why */

    /* The verb under way. */
    enum fc_verb verb;
    uint64_t deadline_usec;
    struct fc_request requests[FC_REQUESTS_MAX]; /* owned */
    int n_requests, next_request;
    struct fc_call *call; /* owned */
    char *state_file;     /* owned; of a save or a snapshot */
    char *changed_file;   /* owned; of a snapshot */
    bool saved;           /* all that is left is to take the files out */
    backend_vm_fn on_vm;
    backend_done_fn on_done;
    void *userdata;
    struct error err;

    struct fc_kill_wait *kills; /* owned list */
    struct source *kill_late;   /* owned; timer: the process does not die */
    struct fc_vm *next;
};

struct fc {
    struct backend base;
    struct loop *loop;       /* ref */
    struct workers *workers; /* ref */
    backend_gone_fn gone;
    void *userdata;
    char dir[128];                    /* absolute: jails below it, records in dir/vms */
    struct fc_client *client;         /* owned */
    struct fc_vm *vms;                /* owned list */
    struct source *housework;         /* owned; timer */
    bool closing;                     /* no more work is begun */
    uint64_t uids[FC_UID_COUNT / 64]; /* bit set: a jail has this one */
    struct fc_options options;

    pthread_mutex_t lock; /* guards the next two: probe() runs on a worker */
    bool found;
    struct fc_programs programs;

    struct fc_idle *idle; /* owned list: processes that wait for a VM */
    unsigned n_idle, n_spawning;
    uint64_t pool_not_before_usec; /* after a failure */
    uint64_t pool_taken_usec;      /* when the last one was */
};

/* ---- firecracker.c ---- */
/* The programs, looked for once. Blocks at the first call. */
int fc_programs_get(struct fc *b, struct fc_programs *ret, struct error *err);
/* A uid that no other jail has; -EAGAIN when all are taken. */
int fc_uid_take(struct fc *b, uid_t *ret);
void fc_uid_release(struct fc *b, uid_t uid);
/* An earlier daemon gave it away. */
void fc_uid_claim(struct fc *b, uid_t uid);
/* Path of the record of a VM. */
void fc_record_path(const struct fc *b, const char *id, char *path, size_t size);
void fc_want_housework(struct fc *b);

/* ---- fc-vm.c ---- */
struct fc_vm *fc_vm_find(struct fc *b, const char *id);
/* -EEXIST, -EINVAL for an id that is no safe name, -ENOMEM. */
int fc_vm_new(struct fc *b, const char *id, struct fc_vm **ret);
/* Out of the list and freed; the process, if any, is left alone. */
void fc_vm_free(struct fc_vm *vm);
/* The process of vm->vmm is watched from now on. */
int fc_vm_watch(struct fc_vm *vm);
/* Sends the requests of the verb, then answers. */
void fc_vm_call(struct fc_vm *vm);
/* The verb under way is over, with vm->err or well. */
void fc_vm_answer(struct fc_vm *vm);
/* Ends it, with `err` (may be NULL) as the answer of the verb under way. */
void fc_vm_end(struct fc_vm *vm, const struct error *err);
int fc_vm_kill(struct fc_vm *vm, backend_done_fn done, void *userdata);
/* A phase on a worker is over: cleaning is. */
void fc_vm_finish(struct fc_vm *vm);

/* ---- fc-snapshot.c ---- */
int fc_vm_snapshot(struct fc_vm *vm, const char *state_file, const char *memory_file,
                   uint64_t deadline_usec, backend_done_fn done, void *userdata);
int fc_vm_resume(struct fc_vm *vm, backend_done_fn done, void *userdata);
/* Finds out whether an earlier daemon left it paused; then it is made to run. */
int fc_vm_adopt(struct fc_vm *vm, backend_vm_fn done, void *userdata);
/* All files of a snapshot are written; a worker copies them. */
void fc_vm_copy(struct fc_vm *vm);
/* A snapshot failed after the pause: the VM shall run, then the failure is told. */
void fc_vm_undo(struct fc_vm *vm, const struct error *err);
/* What the first answer of an adoption says. */
void fc_vm_adopted(struct fc_vm *vm, const json_t *answer);

/* ---- fc-work.c: what blocks ---- */
/* A process with the VM's files; takes an idle one if there is. `saved` NULL: it will be booted. */
int fc_vm_prepare(struct fc_vm *vm, const struct vm_spec *spec, const struct vm_saved *saved);
/* Tries again later when the queue is full. */
void fc_vm_clean(struct fc_vm *vm);
/* Jails that no VM has a claim to, left by a daemon that died: killed and removed. */
int fc_sweep(struct fc *b);

/* ---- fc-pool.c ---- */
/*
 * Starts processes until there are enough, a moment after the last was taken unless none is left.
 * Cheap when there are enough.
 */
void fc_pool_fill(struct fc *b);
/* Forgets processes that died or stand still. */
void fc_pool_check(struct fc *b);
/* An idle process, or -ENOENT. The caller owns its pidfd and jail. */
int fc_pool_take(struct fc *b, struct fc_vmm *ret);
/* Gives one back that was not used. */
void fc_pool_put(struct fc *b, const struct fc_vmm *vmm);
/* Kills all and removes their jails; blocks for some milliseconds. */
void fc_pool_done(struct fc *b);
