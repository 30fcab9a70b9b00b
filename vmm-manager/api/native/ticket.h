#pragma once

#include "api/http.h"
#include "core/core.h"

/*
 * A request that waits for a callback which cannot be taken back: the ticket is the callback's
 * userdata and outlives the request. With a sandbox given, the end of its console answers the
 * request with the reason and ends the ticket, since no callback comes from a console that is gone.
 */
struct ticket;

/* NULL: out of memory or the sandbox is not there; the error is already the answer. */
struct ticket *ticket_new(struct request *req, struct sandbox *sb);
/* In the callback, or when the call failed at once: frees it and gives the request, NULL when gone.
 */
struct request *ticket_take(struct ticket *t);
/* Without ending it: for callbacks that come more than once. NULL when gone. */
struct request *ticket_peek(const struct ticket *t);
/* The usual callback: 204, or the error. */
void ticket_answer_done(struct ticket *t, const struct error *err);
