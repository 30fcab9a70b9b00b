#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/error.h"
#include "host/session.h"
#include "model/state.h"

/*
 * What exists, in one SQLite file. The truth about a VM is the VM: rows only say what to look for
 * after a restart. Calls are short and made from the loop; without a sync per write (WAL, NORMAL) a
 * crash of the daemon loses nothing, a crash of the host loses VMs and rows alike.
 */
struct store;

int store_open(const char *path, struct store **ret, struct error *err);
struct store *store_close(struct store *s);

/* Strings are weak: copied by put, valid during the call in each. */
struct sandbox_row {
    const char *id;
    enum sandbox_state state;
    const char *spec;   /* JSON */
    const char *origin; /* JSON, what the machine is made of; "" before that is known */
    const char *template_id;
    const char *error_code; /* "" when none */
    const char *error_text;
    const char *timings; /* opaque, of sandbox.c */
    bool vm_exists;
    uint64_t created_wall_usec;
    const char *identity; /* "MACHINE-ID BOOT-ID HOSTNAME"; "" in rows of old */
    bool held;            /* its guest may be frozen and its VM paused: a snapshot is being taken */
    const char *snapshot; /* what it resumes from; "" when it has none */
    const char *restored_from; /* the snapshot its memory lies over; "": the template */
    const char *checkpoint;    /* the one its state follows; "": none */
    uint64_t slept_wall_usec, woken_wall_usec; /* last time; 0: never */
    bool pooled;                               /* of a warm pool, nobody's yet */
};
int store_sandbox_put(struct store *s, const struct sandbox_row *row, struct error *err);
/*
 * Only what a claim changes: spec, timings, time, identity, and no longer pooled. Notes it, so that
 * it outlives the daemon; the row itself is written by store_fold(), which is to be called soon, or
 * by whoever opens or closes the store. A row that is not pooled stays as it is.
 */
int store_sandbox_claim(struct store *s, const struct sandbox_row *row, struct error *err);
int store_fold(struct store *s, struct error *err);
/* With its sessions. */
int store_sandbox_delete(struct store *s, const char *id, struct error *err);
typedef void (*store_sandbox_fn)(const struct sandbox_row *row, void *userdata);
/* `fn` must not change the table. */
int store_sandbox_each(struct store *s, store_sandbox_fn fn, void *userdata, struct error *err);

int store_session_put(struct store *s, const char *sandbox, const struct session_spec *spec,
                      uint64_t created_wall_usec, struct error *err);
int store_session_record(struct store *s, const char *sandbox, const char *name,
                         const struct session_record *record, struct error *err);
int store_session_delete(struct store *s, const char *sandbox, const char *name, struct error *err);
typedef void (*store_session_fn)(const struct session_spec *spec,
                                 const struct session_record *record, uint64_t created_wall_usec,
                                 void *userdata);
int store_session_each(struct store *s, const char *sandbox, store_session_fn fn, void *userdata,
                       struct error *err);

/* When a template was last used: kept for eviction only, so failures are logged, not returned. */
void store_template_put(struct store *s, const char *id, uint64_t used_wall_usec);
void store_template_delete(struct store *s, const char *id);
uint64_t store_template_used(struct store *s, const char *id); /* 0: unknown */

/* Names that somebody gave to templates; store_template_delete() takes them with it. */
int store_template_name(struct store *s, const char *name, const char *id, struct error *err);
void store_template_unname(struct store *s, const char *name);
bool store_template_by_name(struct store *s, const char *name, char ret[33]);
bool store_template_has_name(struct store *s, const char *id);
json_t *store_template_names(struct store *s, const char *id); /* an array; NULL: out of memory */

/* Sizes of pools that somebody set. */
int store_pool_put(struct store *s, const char *template_id, uint32_t size, struct error *err);
void store_pool_delete(struct store *s, const char *template_id);
int64_t store_pool_size(struct store *s, const char *template_id); /* -1: not set */
typedef void (*store_pool_fn)(const char *template_id, uint32_t size, void *userdata);
/* `fn` may read from the store. */
void store_pool_each(struct store *s, store_pool_fn fn, void *userdata);
