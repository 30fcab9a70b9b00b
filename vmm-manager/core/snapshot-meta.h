#pragma once

#include <jansson.h>

#include "core/sandbox-private.h"

/*
 * What the core keeps in a snapshot beside memory and disk: all that a sandbox of it needs to be
 * known by. Written when the guest is frozen, so that the sessions are those of that instant.
 */
json_t *snapshot_meta_make(const struct sandbox *sb); /* NULL: out of memory */

struct snapshot_meta {
    struct sandbox_spec spec; /* owned */
    char template_id[MANIFEST_ID_SIZE];
    char checkpoint[MANIFEST_ID_SIZE]; /* the one its state follows; "": none */
    uint64_t frozen_wall_usec;
    const json_t *sessions; /* borrowed: an array */
};
void snapshot_meta_done(struct snapshot_meta *m);
/* Strict; ERR_SNAPSHOT_INVALID. */
int snapshot_meta_parse(const json_t *json, struct snapshot_meta *ret, struct error *err);

/*
 * The sandbox's sessions become those of the snapshot, here and in the store; what one of them runs
 * has not lost time meanwhile.
 */
int sandbox_sessions_restore(struct sandbox *sb, const struct snapshot_meta *m, struct error *err);
json_t *sandbox_sessions_record(const struct sandbox *sb); /* NULL: out of memory */
