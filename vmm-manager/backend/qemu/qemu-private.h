#pragma once

#include "backend/qemu/qemu-driver.h"
#include "backend/qemu/qemu-verbs.h"
#include "backend/qemu/qemu.h"
#include "base/strv.h"

/*
 * Theory of operation, loop side. A `vm` is one VM of ours that lives or is being started: at most
 * one job works on it, and its process, once known, is watched through a pidfd. It goes away when
 * it has neither. A kill waits for both; it sends SIGKILL as soon as there is a process to send it
 * to. libvirt notices the death by itself, later: nobody waits for that.
 */
struct job;
struct vm;

#define HELD_MAX 16

struct backend_qemu {
    struct backend base;
    struct loop *loop;       /* ref */
    struct workers *workers; /* ref */
    struct driver *driver;   /* owned */
    backend_gone_fn gone;
    void *userdata;
    struct vm *vms;           /* owned list */
    struct source *housework; /* owned; timer while there is something to look after */
    unsigned sweeps;          /* rounds of sweeping libvirt's logs that are still due */
};

struct kill_wait {
    backend_done_fn done;
    void *userdata;
    struct kill_wait *next;
};

struct vm {
    struct backend_qemu *b; /* weak */
    char id[64];
    struct backend_vm vm;
    int pidfd;                /* owned; -EBADF: no process (yet or any more) */
    struct source *child;     /* owned; watches pidfd */
    struct job *job;          /* weak; under way */
    struct job *queued;       /* owned; waits for that one, which is answered already */
    struct kill_wait *kills;  /* owned list */
    struct source *kill_late; /* owned; timer: the process does not die */
    int held[HELD_MAX];       /* owned; its sockets while it dies: see vm_kill() */
    size_t n_held;
    bool died;        /* it ended by itself */
    char reason[256]; /* why; may be known before the process is gone */
    struct vm *next;
};

struct vm *vm_find(struct backend_qemu *b, const char *id);
/* -EEXIST, -EINVAL for an id that is no safe name, -ENOMEM. */
int vm_new(struct backend_qemu *b, const char *id, struct vm **ret);
/* Out of the list and freed; the process, if any, is left alone. */
void vm_free(struct vm *vm);

/* The process is known from now on; takes the descriptor in any case. */
int vm_watch_consume(struct vm *vm, const struct backend_vm *info, int pidfd);
/* `done` (may be NULL) comes when neither process nor job is left; the vm is freed then. */
int vm_kill(struct vm *vm, backend_done_fn done, void *userdata);
/* A job ended: kills and queued verbs go on, a death meanwhile is told, an empty vm is freed. */
void vm_settle(struct vm *vm);

/* Jobs: qemu-job.c. One callback of the two, by kind. */
enum job_kind {
    JOB_START,
    JOB_SAVE,
    JOB_SNAPSHOT,
    JOB_PAUSE,
    JOB_RESUME,
    JOB_ADOPT,
};
/* Takes over what `q` owns, also on failure. -EBUSY while another is under way and not answered. */
int job_submit_consume(struct vm *vm, enum job_kind kind, struct verb_request *q,
                       backend_vm_fn on_vm, backend_done_fn on_done, void *userdata);
/* The job's VM is not wanted any more. */
void job_cancel(struct job *job);
/* The queued job of a VM that has no other any more: it runs, or fails with the VM. */
void job_unqueue(struct vm *vm);
void job_drop(struct job *job);
