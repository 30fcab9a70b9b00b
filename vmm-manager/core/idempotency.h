#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/*
 * Requests that say "once": a client that did not hear the answer asks again with the same key and
 * gets the first one's. What was answered is kept in the store for a day, at most
 * IDEMPOTENCY_KEPT_MAX of it; what is under way is known to this daemon only, since the next one
 * undoes what was half done.
 */
struct core;
struct once; /* a request under way */

#define IDEMPOTENCY_KEY_MAX 128u
#define IDEMPOTENCY_KEPT_MAX 4096u
#define IDEMPOTENCY_RUNNING_MAX 1024u
#define IDEMPOTENCY_KEPT_SEC (24u * 3600u)

/* The answer that was given. */
struct once_answer {
    unsigned status;
    char *body; /* owned by the caller */
};

/*
 * `scope` is whose key it is and for what; `asked` the request's content. Returns
 *   0 and *ret    it is new: end it with once_done() or once_free()
 *   1 and *answer it was answered before
 *   -EBUSY, err   it is under way, or the key was used for something else
 */
int once_begin(struct core *core, const char *scope, const char *key, const char *asked,
               struct once **ret, struct once_answer *answer, struct error *err);
/* Keeps the answer and frees it. */
void once_done(struct once *once, unsigned status, const char *body);
/* It came to nothing: the key is as new. Always NULL. */
struct once *once_free(struct once *once);
