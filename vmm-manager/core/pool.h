#pragma once

#include "core/core-private.h"
#include "core/resolve.h"

/*
 * Warm pools: for each template that is used, some clones that are restored, have an identity and
 * have run their warm-up, and that nobody has asked for yet. Each is a sandbox like any other with
 * a mark (sandbox.pooled, also in its row), hidden from clients until a claim takes the mark away:
 * a hand-over inside the daemon, without a call to a VMM or a worker. Loop only.
 */
struct pool;
struct pooled;

/*
 * A ready clone that fits the spec, no longer of its pool, or NULL: then it has to be created, and
 * a pool that had none takes note.
 */
struct sandbox *pool_claim(struct core *core, const struct sandbox_spec *spec);
/* A claim that came to nothing: the sandbox goes. */
void pool_give_up(struct sandbox *sb);

/* A sandbox was created from a template: from now on that template has a pool, if pools are on. */
void pools_used(struct core *core, const struct resolution *resolution,
                const struct sandbox_spec *spec);
/* The template is gone: so is its pool. */
void pools_template_gone(struct core *core, const char *template_id);

/* A marked sandbox of an earlier daemon answers: back into its pool, if that wants it. */
void pool_adopt(struct sandbox *sb);
/* Recovery is over: configured pools fill, marked sandboxes that no pool wants go. */
void pools_start(struct core *core);

/* Nothing of them calls back any more. */
void pools_quiesce(struct core *core);
void pools_free(struct core *core);
