#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/error.h"
#include "base/loop.h"

/*
 * Firecracker's HTTP API on its Unix socket: asynchronous, on the daemon's loop, through libcurl's
 * multi interface. Every call has a deadline; an answer is bounded; freeing a call cancels it.
 */
struct fc_client;
struct fc_call;

#define FC_ANSWER_MAX (256u * 1024u)

int fc_client_new(struct loop *loop, struct fc_client **ret);
/* Cancels what is under way; no callback follows. */
struct fc_client *fc_client_free(struct fc_client *client);

/*
 * Exactly one of three shapes: err NULL and status 2xx (answer may be NULL: most calls have none);
 * err with Firecracker's own fault_message (ERR_BACKEND_FAILED, status 4xx or 5xx); err of the
 * transport (time-out, refused, broken answer) with status 0. `answer` is borrowed. The call is
 * freed after it.
 */
typedef void (*fc_call_fn)(long status, const json_t *answer, const struct error *err,
                           void *userdata);

/* `body` is stolen, also on failure; NULL sends none. */
int fc_client_call(struct fc_client *client, const char *socket_path, const char *method,
                   const char *path, json_t *body, uint64_t deadline_usec, fc_call_fn done,
                   void *userdata, struct fc_call **ret, struct error *err);
struct fc_call *fc_call_free(struct fc_call *call);
