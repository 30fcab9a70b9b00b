#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/loop.h"
#include "base/uring.h"
#include "base/worker.h"
#include "core/core.h"
#include "core/initramfs-cache.h"
#include "core/store.h"

/*
 * The inside of the core, for its own files. Everything here belongs to the loop's thread, except
 * where a comment says otherwise.
 */
#define CORE_BACKENDS_MAX 4u
#define CORE_SANDBOXES_DEFAULT 256u
#define CORE_SANDBOXES_MAX 4096u
#define CORE_CREATIONS_MAX 16u /* in flight; more wait */
#define CORE_CREATION_QUEUE_MAX 1024u
#define CORE_MIN_FREE_MIB 256u
#define CORE_TEMPLATES_MAX 4096u
#define CORE_TEMPLATES_SPARE_MAX 32u /* that nobody needs: the least recently used goes first */
#define CORE_POOLED_MAX 32u          /* warm sandboxes that nobody has claimed, of all templates */
#define CORE_SESSIONS_MAX 32u        /* per sandbox */
#define CORE_WATCHES_MAX 4096u       /* per sandbox */

struct template;
struct creation;
struct snapshot_store;
struct pool;
struct resolve_entry;

struct backend_slot {
    struct backend *backend;    /* owned */
    pthread_mutex_t probe_lock; /* probe() runs on workers, one at a time */
    struct backend_caps caps;   /* under probe_lock until probed */
    bool probed;                /* under probe_lock; only success is remembered */
};

struct core {
    struct loop *loop;                /* ref */
    struct workers *vm_workers;       /* owned: calls of backends */
    struct workers *io_workers;       /* owned: files, mkfs, probes */
    struct workers *image_workers;    /* owned: pulls and imports, which take minutes */
    _Atomic bool images_stop;         /* any thread: what runs there ends soon */
    struct uring *uring;              /* owned; NULL where the kernel has no io_uring */
    struct store *store;              /* owned */
    struct snapshot_store *snapshots; /* owned; its calls block: see snapshots.h */
    struct care *care;                /* owned: see care.h */
    struct keys *keys;                /* owned: see keys.h */
    int lock_fd;                      /* owned: who owns the state directory */
    char *state_dir;                  /* owned */
    char *sandboxes_dir;              /* owned */
    char *templates_dir;              /* owned */
    char *init_path;                  /* owned, may be NULL */
    uint32_t max_sandboxes;
    uint32_t min_free_mib;
    uint64_t answer_timeout_usec;

    struct initramfs_cache initramfs;

    struct backend_slot slots[CORE_BACKENDS_MAX];
    size_t n_slots;

    struct sandbox **sandboxes; /* owned, in order of creation */
    size_t n_sandboxes;
    size_t sandboxes_room; /* max_sandboxes, and those of the pools */

    struct creation *queue_head, *queue_tail; /* weak: owned by their sandboxes */
    unsigned n_queued;
    unsigned n_creating;       /* in flight */
    struct source *queue_wake; /* owned */

    struct template *templates; /* owned list */
    size_t n_templates;

    struct fork *forks; /* owned list: those under way */

    struct once *once; /* each owned by who made it; see idempotency.c */
    size_t n_once;
    struct core_listener *listeners, *telling; /* each owned by who made it; see events.c */
    struct template_make *makes;               /* each owned by who made it */
    struct resolve_entry *resolved;            /* owned list; see resolve-cache.h */
    struct pool *pools;                        /* owned list */
    uint32_t pool_size;                        /* of a pool that nobody configured; 0: no pools */
    unsigned n_filling;                        /* pooled ones that are not ready yet */
    struct source *pools_sweep;                /* owned */
    struct source *claims_fold;                /* owned; see claim.c */
    bool stopping;                             /* core_stop() */
    unsigned stop_left;
    void (*stop_done)(void *userdata);
    void *stop_userdata;
    struct source *stop_deadline; /* owned */

    struct recovery *recovery; /* owned, while core_recover() is under way */
    bool closing;              /* core_free(): results of workers are dropped */
};

/* The slot of a backend by name, or NULL. */
struct backend_slot *core_slot(struct core *core, const char *name);

/* Answers with remembered capabilities, or asks. Blocks: workers only. */
void slot_probe(struct backend_slot *slot, struct backend_caps *ret);

/* Those that somebody asked for; pooled ones make room for them. */
size_t core_count_sandboxes(const struct core *core);
/* 0, or -EAGAIN: there is no room for another one. */
int core_add_sandbox(struct core *core, struct sandbox *sb);
void core_drop_sandbox(struct core *core, struct sandbox *sb);
/* As if it were the newest. */
void core_move_last(struct core *core, struct sandbox *sb);
struct sandbox *core_sandbox_by_id(struct core *core, const char *id);
