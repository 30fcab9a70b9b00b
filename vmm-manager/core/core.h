#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/error.h"
#include "base/loop.h"
#include "erofs/prune.h"
#include "host/console.h"
#include "host/session.h"
#include "model/spec.h"
#include "model/state.h"

/*
 * The core: what exists, who may do what when, and in which state it is. One thread (the loop's)
 * owns everything here. The API calls down into it and never reaches a backend or the store by
 * itself.
 */
struct core;
struct sandbox;

/* How a backend is made; the daemon decides which there are. */
struct core_backend_factory {
    const char *name;
    int (*make)(const struct backend_env *env, struct backend **ret, struct error *err);
};

struct core_options {
    const char *state_dir;                       /* absolute */
    uint32_t max_sandboxes;                      /* 0: 256 */
    const struct core_backend_factory *backends; /* best first; weak, used during core_new() */
    size_t n_backends;
    const char *init_path;        /* hearth-init; NULL: beside the running program */
    uint32_t min_free_mib;        /* host disk space that must stay free; 0: 256 */
    uint64_t answer_timeout_usec; /* for a guest's first answer; 0: by accelerator */
    uint32_t pool_size;           /* warm sandboxes of each template in use; 0: no pools */
    /* ---- what is done for snapshots when nothing else is; see care.h ---- */
    uint64_t snapshot_quota_bytes; /* of all of them; 0: no limit */
    uint64_t compress_after_usec;  /* since somebody used it; 0: never */
    uint32_t chain_max;            /* one over this many others is made flat; 0: never */
};

int core_new(struct loop *loop, const struct core_options *options, struct core **ret,
             struct error *err);
/* Lets go of everything; VMs stay alive, to be adopted by the next daemon. */
struct core *core_free(struct core *core);
/* Adopts what lives, finishes or undoes what was half done. `done` when requests may come. */
int core_recover(struct core *core, void (*done)(const struct error *err, void *userdata),
                 void *userdata);

/*
 * The daemon is told to end: warm sandboxes that nobody claimed go, the others stay. `done` comes
 * when they are gone or after a few seconds, perhaps from inside this call. A second call comes
 * back at once.
 */
void core_stop(struct core *core, void (*done)(void *userdata), void *userdata);

/* ---- sandboxes ---- */
struct sandbox_create_callbacks {
    /* May be NULL. percent -1: unknown. */
    void (*on_progress)(const char *step, int percent, void *userdata);
    /* Running, or err says why not and nothing is left of it. Called once. */
    void (*on_done)(struct sandbox *sb, const struct error *err, void *userdata);
};
/* The spec is copied. Cancelled by sandbox_create_forget(): then no callback comes, creation goes
 * on. */
int sandbox_create(struct core *core, const struct sandbox_spec *spec,
                   const struct sandbox_create_callbacks *cb, void *userdata, struct sandbox **ret,
                   struct error *err);
/*
 * The same, but where a warm sandbox of a pool is handed over there is nothing to wait for: then it
 * returns 1, *ret runs and no callback comes.
 */
int sandbox_claim_or_create(struct core *core, const struct sandbox_spec *spec,
                            const struct sandbox_create_callbacks *cb, void *userdata,
                            struct sandbox **ret, struct error *err);
void sandbox_create_forget(struct sandbox *sb, void *userdata);

/*
 * By id or name; NULL and err (sandbox_not_found) otherwise. Weak. The first one finds those of any
 * tenant: an API asks the second one, through access_sandbox().
 */
struct sandbox *sandbox_find(struct core *core, const char *id_or_name, struct error *err);
struct sandbox *sandbox_find_in(struct core *core, const char *tenant, const char *id_or_name,
                                struct error *err);
const char *sandbox_tenant(const struct sandbox *sb);
typedef void (*sandbox_each_fn)(struct sandbox *sb, void *userdata);
void sandbox_each(struct core *core, sandbox_each_fn fn, void *userdata);

/* Kills, removes all files, forgets. `done` may be NULL. Any state; twice is fine. */
int sandbox_remove(struct sandbox *sb, backend_done_fn done, void *userdata);

const char *sandbox_id(const struct sandbox *sb);
enum sandbox_state sandbox_get_state(const struct sandbox *sb);
const struct sandbox_spec *sandbox_get_spec(const struct sandbox *sb);
pid_t sandbox_pid(const struct sandbox *sb);
const char *sandbox_log_path(const struct sandbox *sb);
json_t *sandbox_to_json(const struct sandbox *sb);
/* The same as text, kept until it changes: weak, NULL when out of memory. */
const char *sandbox_to_text(struct sandbox *sb, size_t *ret_size);
uint64_t sandbox_created_wall_usec(const struct sandbox *sb);
/* When it is ended or put to sleep, 0: never. */
uint64_t sandbox_expires_wall_usec(const struct sandbox *sb);
/* It lives this long from now on, whatever was said before. */
int sandbox_set_timeout(struct sandbox *sb, uint32_t sec, struct error *err);

/* ---- sleep ---- */
/*
 * Somebody waits for a sandbox to be usable, or to be asleep. Freeing the wait (also inside its
 * last call) ends it and changes nothing for the sandbox.
 */
struct sandbox_wait;
struct sandbox_wait_callbacks {
    /* May be NULL. percent -1: unknown. */
    void (*on_progress)(const char *step, int percent, void *userdata);
    /* Once, from the loop: it is, or err says why not. `sb` is NULL when it is gone. */
    void (*on_done)(struct sandbox *sb, const struct error *err, void *userdata);
};
/*
 * Whoever wants to use a sandbox calls this first. 1: it can be used now. 0: it sleeps, or is about
 * to, or stands still for a snapshot: it is woken, and the wait tells when it can be used. Negative
 * and err: it cannot be used (failed, stopped).
 */
int sandbox_touch(struct sandbox *sb, const struct sandbox_wait_callbacks *cb, void *userdata,
                  struct sandbox_wait **ret, struct error *err);
/*
 * To sleep: memory and disk are kept as a snapshot, no process is left. 1: it sleeps already. A
 * touch that comes before the end cancels it, and the wait fails with ERR_CANCELLED.
 */
int sandbox_hibernate(struct sandbox *sb, const struct sandbox_wait_callbacks *cb, void *userdata,
                      struct sandbox_wait **ret, struct error *err);
struct sandbox_wait *sandbox_wait_free(struct sandbox_wait *w); /* always NULL */

/*
 * The console of a running sandbox, or NULL and err (not running, failed with its reason). Weak:
 * valid until the next return to the loop unless a watch is held.
 */
struct console *sandbox_console(struct sandbox *sb, struct error *err);

/*
 * Tells once that the console which sandbox_console() gave is over: broken, failed, removed. Called
 * from the loop after the console's own last callbacks and before console_free(); nothing that
 * hangs on that console calls back afterwards. Freeing the watch (also inside the call) ends it.
 */
struct sandbox_watch;
typedef void (*sandbox_gone_fn)(struct sandbox *sb, const struct error *reason, void *userdata);
int sandbox_watch_new(struct sandbox *sb, sandbox_gone_fn gone, void *userdata,
                      struct sandbox_watch **ret);
struct sandbox_watch *sandbox_watch_free(struct sandbox_watch *w); /* always NULL */

/* Sessions by name. The one named "default" is made on first use. Weak. */
struct session *sandbox_session(struct sandbox *sb, const char *name, struct error *err);
int sandbox_session_new(struct sandbox *sb, const struct session_spec *spec, struct session **ret,
                        struct error *err);
int sandbox_session_remove(struct sandbox *sb, const char *name, backend_done_fn done,
                           void *userdata);
json_t *sandbox_sessions_to_json(struct sandbox *sb);

/* ---- snapshots ---- */
/* Of what takes long: progress, then one result or err. */
struct core_call {
    void (*on_progress)(const char *step, int percent, void *userdata); /* may be NULL */
    /* Once, from the loop. `result` is owned by the callee; NULL when there is none to give. */
    void (*on_done)(json_t *result, const struct error *err, void *userdata);
    void *userdata;
};

/* Takes a named snapshot; the sandbox goes on. Result: the snapshot. `name` may be NULL. */
int sandbox_checkpoint(struct sandbox *sb, const char *name, const struct core_call *call,
                       struct error *err);
/*
 * Back to a checkpoint of this sandbox (or of one it was forked from), by id or name. The snapshot
 * is checked to the last byte before what runs is given up. Result: the sandbox.
 */
int sandbox_rollback(struct sandbox *sb, const char *checkpoint, const struct core_call *call,
                     struct error *err);
/* Result: {checkpoints: [], current?}: its own and those it goes back to, oldest first. */
int sandbox_checkpoints(struct sandbox *sb, const struct core_call *call, struct error *err);

#define FORK_CHILDREN_MAX 256u
struct fork_options {
    struct sandbox *parent; /* or NULL and */
    const char *snapshot;   /* the id or name of a snapshot (of the parent's line, if both) */
    const char *tenant;     /* whose snapshot; NULL: of any */
    uint32_t count;
    const char *name; /* NULL: none; with more than one child NAME-1, NAME-2, … */
    /* May this many of that size be made? It may set their tenant. NULL: yes. */
    int (*admit)(struct sandbox_spec *spec, uint32_t count, void *userdata, struct error *err);
};
/*
 * New sandboxes with the memory, processes, sessions and disk of another, each with an identity of
 * its own; all or none. Result: {sandboxes: []}.
 */
struct fork;
int core_fork(struct core *core, const struct fork_options *options, const struct core_call *call,
              struct fork **ret, struct error *err);
/* Nobody waits any more: no call back, and no child is left. */
void core_fork_cancel(struct fork *f);

/* Result: {snapshots: []}. tenant NULL: of every one. */
int core_snapshots(struct core *core, const char *tenant, const struct core_call *call,
                   struct error *err);
int core_snapshot_remove(struct core *core, const char *tenant, const char *id,
                         const struct core_call *call, struct error *err);
/* Every byte of it and of what it lies over. Result: the snapshot. */
int core_snapshot_verify(struct core *core, const char *tenant, const char *id,
                         const struct core_call *call, struct error *err);
/*
 * Mends it if it is damaged and does not need what is damaged. Result: the snapshot, `repaired`,
 * and then `damage`. ERR_SNAPSHOT_INVALID: it cannot be; it is left as it is.
 */
int core_snapshot_repair(struct core *core, const char *tenant, const char *id,
                         const struct core_call *call, struct error *err);

/* What all of them take on disk, and may take; 0: no limit. */
uint64_t core_snapshot_bytes(const struct core *core, uint64_t *ret_quota_bytes);

/* ---- templates, images, kernels, host ---- */
/* A sandbox or a template that is being made stands on this image. */
bool core_image_in_use(struct core *core, const char *image_sha256);
/*
 * Removes what no image needs, with `all` also what can be had again and nothing uses, with `trim`
 * only until the cache is within its limit. `done` may be NULL.
 */
typedef void (*core_pruned_fn)(const struct prune_result *result, const struct error *err,
                               void *userdata);
int core_images_prune(struct core *core, bool all, bool trim, core_pruned_fn done, void *userdata);
/* After images have grown: keeps them within the limit, when there is time. */
void core_images_trim(struct core *core);
/* Digests of the images that sandboxes and templates stand on; a strv, owned by the caller. */
char **core_images_in_use(struct core *core);
/*
 * image_remove(), but what is in use stays: *in_use is from core_images_in_use(), and grows by what
 * snapshots stand on. Blocks; for workers.
 */
int core_image_remove(struct core *core, const char *name, char ***in_use, struct error *err);
json_t *core_templates_to_json(struct core *core);
/* One, by id or name, with its recipe; NULL and err when there is none. */
json_t *core_template_to_json(struct core *core, const char *id_or_name, struct error *err);
int core_template_remove(struct core *core, const char *id_or_name, struct error *err);
/* One more name for it, by id or name; whoever had it loses it. */
int core_template_name(struct core *core, const char *id_or_name, const char *name,
                       struct error *err);

/* A named template: an image, set up once by a recipe, then kept as a snapshot. */
struct recipe;
struct template_make;
struct template_make_callbacks {
    void (*on_progress)(const char *step, int percent, void *userdata);
    /* The end of what a command printed that failed. */
    void (*on_output)(const char *text, size_t size, void *userdata);
    /* Once: it is there under its name (borrowed), or err says why not. */
    void (*on_done)(const json_t *template, const struct error *err, void *userdata);
};
/*
 * `machine` says image, size and backend; all is copied. One that was made of the same image and
 * the same steps, copied files included, is taken as it is. Callbacks come from the loop.
 */
int core_template_make(struct core *core, const char *name, const struct sandbox_spec *machine,
                       const struct recipe *recipe, const struct template_make_callbacks *cb,
                       void *userdata, struct template_make **ret, struct error *err);
/* No callback comes any more; what is being made is made, without the name. Always NULL. */
struct template_make *template_make_free(struct template_make *make);
json_t *core_pools_to_json(struct core *core);
/* How many warm ones this template (id or name) keeps, for good; 0: none. *ret: its pool as JSON.
 */
int core_pool_set(struct core *core, const char *template, uint32_t size, json_t **ret,
                  struct error *err);
/* As many as the daemon keeps by itself. */
int core_pool_unset(struct core *core, const char *template, struct error *err);
struct backend *core_backend(struct core *core, const char *name, struct error *err);
struct loop *core_loop(struct core *core);
struct workers *core_workers(struct core *core);
/* For work on images, which may take minutes; it ends soon when *ret_stop becomes true. */
struct workers *core_image_workers(struct core *core, const _Atomic bool **ret_stop);
/* {ok, checks:[…]}; asynchronous because probing may block. */
int core_doctor(struct core *core, void (*done)(json_t *report, void *userdata), void *userdata);
