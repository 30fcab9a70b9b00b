#pragma once

#include "core/core.h"

/* The creation flow of a sandbox in state CREATING; see create.c. */

/* Takes a place in the queue and starts when there is room. */
int creation_start(struct sandbox *sb, const struct sandbox_create_callbacks *cb, void *userdata,
                   struct error *err);
/*
 * Makes a sandbox of a pool that of its claimant: his spec, its row, a thaw. 1: it is his now.
 * 0: the maker hears of it as of any creation. On failure the caller sees to it that it goes.
 */
int creation_claim(struct sandbox *sb, const struct sandbox_spec *spec, bool at_once,
                   const struct sandbox_create_callbacks *cb, void *userdata, struct error *err);
/* Before anybody uses the console: see claim.c. */
void claim_settle(struct sandbox *sb);
/* Running: the maker hears it, the place is free. */
void creation_finish(struct sandbox *sb);
/* Lets go of all that can be let go of; what cannot is counted in sb->pending. */
void creation_cancel(struct sandbox *sb);
/*
 * Takes the creation out of the sandbox that is about to be freed and tells its maker why there is
 * none.
 */
void creation_report_failure(struct sandbox *sb);
struct creation *creation_free(struct creation *c);
/* The core ends: nothing of it calls back on its own any more. */
void creation_quiesce(struct sandbox *sb);
void creation_forget(struct sandbox *sb, const void *userdata);
