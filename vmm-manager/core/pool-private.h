#pragma once

#include "core/guest-run.h"
#include "core/pool.h"
#include "core/sandbox-private.h"

#define POOL_BURST_MAX 8u   /* to which misses alone raise a target */
#define POOL_FILLING_MAX 2u /* at a time, of all templates */

enum pooled_state {
    POOLED_FILLING, /* being created */
    POOLED_WARMING, /* runs the warm-up */
    POOLED_READY,
};

struct pooled {
    struct pool *pool;       /* weak: owns this */
    struct sandbox *sandbox; /* weak; its `entry` is this */
    enum pooled_state state;
    struct sandbox_watch *watch; /* owned; NULL while FILLING */
    struct guest_run *run;       /* owned, while WARMING */
    size_t step;                 /* of the warm-up */
    uint64_t alive_usec;         /* monotonic, of the guest's last answer */
    bool probing;
    struct pooled *next; /* owned; the oldest first */
};

struct pool {
    struct core *core; /* weak */
    char template_id[MANIFEST_ID_SIZE];
    struct sandbox_spec spec; /* owned: how another one is made */
    char *image;              /* owned: for people */
    bool configured;          /* size was set for this template */
    uint32_t size;            /* ready ones to keep when nothing happens */
    uint32_t target;          /* ready ones to keep now */
    struct pooled *entries;   /* owned */
    struct source *timer;     /* owned */
    bool dropped;             /* its template is gone: it ends with its last entry */

    uint64_t pressed_usec;   /* monotonic, of the last miss or step down */
    uint64_t refill_at_usec; /* not before */
    uint64_t wanted_usec;    /* since when it is short of one; 0: it is not */
    uint64_t backoff_usec;   /* after failures */
    uint64_t used_usec;      /* of the last claim or miss */
    uint64_t wake_usec;      /* when the timer comes; 0: it does not */

    uint64_t n_claims, n_misses, n_refills, n_failures, n_replaced;
    struct pool *next; /* owned list */
};

size_t pool_count(const struct pool *pool);
size_t pool_ready(const struct pool *pool);
struct pool *pool_lookup(struct core *core, const char *template_id);
/* Looks after the pool at that time, or sooner. */
void pool_wake(struct pool *pool, uint64_t at_usec);
/* Everything that is due: surplus, probes, refill, the next time. The pool may be freed. */
void pool_keep(struct pool *pool);
/* Takes it off its list and frees it; the sandbox stays, without an entry. */
void pooled_forget(struct pooled *e);
/* Into the pool, to be warmed. -errno: the sandbox has no entry. */
int pooled_add(struct pool *pool, struct sandbox *sb);
/* Marked sandboxes without an entry are removed, from the loop. */
void pools_sweep(struct core *core);
/* The pool and whatever of its entries can go at once. */
void pool_free_if_over(struct pool *pool);
