#pragma once

#include "core/core-private.h"

/*
 * Care of the snapshots: when nothing else is under way, a thread of its own makes long chains flat
 * and compresses what nobody has used for long; and the quota, with what may go for it.
 */
struct care;

int care_new(struct core *core, const struct core_options *options, struct care **ret);
/* Nothing begins any more, and what runs stops. Waits for that: it is soon. */
void care_quiesce(struct care *c);
struct care *care_free(struct care *c); /* always NULL */

/* A snapshot is about to be sealed: which ones are in use is looked up, before any has to go. */
void care_before_seal(struct care *c);
