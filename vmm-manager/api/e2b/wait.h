#pragma once

#include "api/e2b/e2b-private.h"

/*
 * A request that waits for its sandbox to be usable (it may sleep) or asleep. Owned by the request;
 * `fn` gets the request back, without a state, and answers it.
 */
typedef void (*e2b_ready_fn)(struct request *req, struct sandbox *sb, bool woken);
typedef void (*e2b_failed_fn)(struct request *req, const struct error *err);

/* Usable now: at once, else later. */
void e2b_touch(struct request *req, struct sandbox *sb, e2b_ready_fn fn, e2b_failed_fn failed);
/* Asleep. Whether it slept before is told by `woken`, as no. */
void e2b_sleep(struct request *req, struct sandbox *sb, e2b_ready_fn fn, e2b_failed_fn failed);
