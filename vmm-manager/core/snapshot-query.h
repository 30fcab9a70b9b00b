#pragma once

#include "core/core-private.h"
#include "store/snapshot.h"

/* Looking through the snapshots, on a worker; `done` comes once from the loop. */

struct snapshot_query {
    const char *tenant;     /* whose; NULL: of every one */
    const char *sandbox;    /* those of it, and those that its state goes back to; NULL: all */
    const char *checkpoint; /* the one that this sandbox's state follows; NULL or "": none */
};

/* What is done with one that was found. */
enum snapshot_check {
    SNAPSHOT_CHECK_NOT,
    SNAPSHOT_CHECK_VERIFY, /* every byte of it */
    SNAPSHOT_CHECK_MEND,   /* and mended, where that can be */
};

/* An array of snapshots as docs/API.md has them, oldest first; owned by the callee. */
typedef void (*snapshot_list_fn)(json_t *list, const struct error *err, void *userdata);
int snapshot_list(struct core *core, const struct snapshot_query *query, snapshot_list_fn done,
                  void *userdata);

/*
 * One of them, by id or name; the newest of that name. `done` may take what is in info by clearing
 * it.
 */
struct snapshot_found {
    struct snapshot_info info;
    bool mended;
    struct error damage; /* what was wrong */
};
struct snapshot_find_callbacks {
    void (*on_progress)(const char *step, int percent, void *userdata); /* may be NULL */
    void (*done)(struct snapshot_found *found, const struct error *err, void *userdata);
};
int snapshot_find(struct core *core, const struct snapshot_query *query, const char *id_or_name,
                  enum snapshot_check check, const struct snapshot_find_callbacks *cb,
                  void *userdata);

json_t *snapshot_to_json(const struct snapshot_info *info);
