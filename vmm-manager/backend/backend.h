#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/loop.h"
#include "base/page-source.h"
#include "base/worker.h"

/*
 * What runs a sandbox. Verbs are asynchronous: they return at once, run on worker threads or the
 * loop, and complete on the loop's thread exactly once, within their deadline. A VM is named by its
 * id and lives in its own directory; the daemon may die at any time and find it again by adopt().
 * A VMM is never a child that dies with the daemon.
 */
struct backend;

struct backend_caps {
    bool available;
    char reason[256];     /* why not, and what to do about it */
    char version[128];    /* "QEMU 7.2.22, libvirt 9.0.0" */
    char accelerator[32]; /* "kvm", "tcg" */
    char cpu_model[64];   /* part of a snapshot's fit */
    bool snapshot_memory;
    bool live_save;
    bool diff_snapshot;
    bool snapshot_from_base; /* a snapshot holds all that changed since the base memory file */
    bool snapshot_console;   /* the console connection outlives snapshot() and resume() */
    bool pager;              /* takes vm_saved.pager_dir, and is better off with it */
    bool elf_kernel;         /* boots an ELF; a bzImage must be unpacked first */
    char warning[256];       /* what a person should know although it works; "" when nothing */
    char warning_fix[128];
};

/* A machine. All paths absolute; strings weak, copied by the callee. */
struct vm_spec {
    const char *id;
    const char *dir; /* private directory of this VM, exists */
    uint32_t cpus;
    uint32_t memory_mib;
    const char *kernel;      /* boot only */
    const char *initramfs;   /* boot only */
    const char *image;       /* drive 0, read-only EROFS; the packs it needs are drives 2 and on */
    const char *disk;        /* drive 1, writable */
    const char *memory_file; /* boot for a template: shared memory file to create; else NULL */
};

/*
 * What a VM is restored from. Paths absolute, strings weak, copied by the callee; `pages` is read
 * on a worker until the verb completes and stays the caller's.
 */
struct vm_saved {
    const char *memory_file;   /* whole memory, mapped privately, never changed */
    const char *state_file;    /* device state */
    struct page_source *pages; /* lie over memory_file; NULL: none */
    const char *pager_dir;     /* snapshot to be served by hearth-pager instead; NULL: not */
};

struct backend_vm {
    pid_t pid;
    char console_path[108]; /* Unix socket to connect for the console */
    char log_path[256];     /* serial output */
};

typedef void (*backend_vm_fn)(const struct backend_vm *vm, const struct error *err, void *userdata);
typedef void (*backend_done_fn)(const struct error *err, void *userdata);
/* The VMM process of `id` ended without being asked to. */
typedef void (*backend_gone_fn)(const char *id, const char *reason, void *userdata);

struct backend_ops {
    const char *name;
    /*
     * The VMM takes a connection to the console before the guest does, and closes it again: until
     * the guest's first answer an end of the connection only means to try again.
     */
    bool console_closes_early;
    /* Blocking and cheap after the first call; the daemon calls it on a worker. */
    void (*probe)(struct backend *b, struct backend_caps *ret);
    /* Cold boot. */
    int (*boot)(struct backend *b, const struct vm_spec *spec, uint64_t deadline_usec,
                backend_vm_fn done, void *userdata);
    /*
     * A paused snapshot of device state into `state_file`, memory into the memory file that the VM
     * was booted with; the VM is gone afterwards, also on failure. For templates.
     */
    int (*save)(struct backend *b, const char *id, const char *state_file, uint64_t deadline_usec,
                backend_done_fn done, void *userdata);
    /* A new VM from a saved one: memory mapped privately, device state loaded, running. */
    int (*restore)(struct backend *b, const struct vm_spec *spec, const struct vm_saved *saved,
                   uint64_t deadline_usec, backend_vm_fn done, void *userdata);
    /*
     * Device state and changed memory of a running VM into two new files. The VM is paused by it
     * and stays so until resume() or kill(), so that its disk can be copied; after a failure it
     * runs. The memory file is sparse and as long as the memory: data where a page may differ from
     * what the VM was restored from, a hole where it does not. With caps.snapshot_from_base
     * "restored from" means vm_saved.memory_file alone, else with its pages too; for a booted VM it
     * means zeros. NULL: this backend cannot.
     */
    int (*snapshot)(struct backend *b, const char *id, const char *state_file,
                    const char *memory_file, uint64_t deadline_usec, backend_done_fn done,
                    void *userdata);
    int (*pause)(struct backend *b, const char *id, backend_done_fn done, void *userdata);
    int (*resume)(struct backend *b, const char *id, backend_done_fn done, void *userdata);
    /* Ends it by force. A VM that is already gone is success. Completes when no process is left. */
    int (*kill)(struct backend *b, const char *id, backend_done_fn done, void *userdata);
    /* After a daemon restart: -ESRCH through err when it no longer runs. */
    int (*adopt)(struct backend *b, const struct vm_spec *spec, backend_vm_fn done, void *userdata);
    /*
     * Ids of all VMs of this state directory that live, adopted or not; a strv (NULL: none),
     * owned by the caller.
     */
    int (*list)(struct backend *b, char ***ret_ids, struct error *err);
    /* A connected non-blocking console descriptor, or a negative errno; never blocks. */
    int (*console_connect)(struct backend *b, const char *id, struct error *err);
    /* The daemon ends: no more work goes to the workers, which are freed next. May be NULL. */
    void (*quiesce)(struct backend *b);
    struct backend *(*free)(struct backend *b);
};

struct backend {
    const struct backend_ops *ops;
};

/* What every backend gets at creation. */
struct backend_env {
    struct loop *loop;       /* ref */
    struct workers *workers; /* ref */
    const char *state_dir;   /* of the daemon, absolute; the backend keeps its own below it */
    backend_gone_fn gone;
    void *userdata;
};
