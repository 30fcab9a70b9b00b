#pragma once

#include "api/http.h"
#include "core/idempotency.h"

/*
 * Idempotency-Key on a creation. False: the request is answered already, with the first one's
 * answer or the reason why not. True with *ret NULL: the client did not ask for it.
 */
bool native_once(struct request *req, struct once **ret);
/* The answer of a creation that is over; takes `once`, which may be NULL. */
void native_once_done(struct once *once, unsigned status, const json_t *json);
