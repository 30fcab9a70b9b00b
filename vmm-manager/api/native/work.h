#pragma once

#include "api/native/native.h"

/*
 * A request that waits for long work of the core. With `Accept: application/x-ndjson` the answer is
 * lines {"progress": …} and a last one {KEY: result} or {"error": …}; else the result alone.
 */
struct work {
    struct request *req; /* weak; NULL once the client is gone */
    const char *key;     /* weak; NULL: the result is an object with its own */
    unsigned status;     /* of a plain answer */
    bool lines;
    struct sandbox_wait *wait; /* owned; NULL: the core calls work_done() in any case */
    struct fork *fork;         /* weak, until work_done() */
};

/* NULL: the error is already the answer. Owned by the request and the work. */
struct work *work_new(struct request *req, const char *key, unsigned status);
/* The work could not be begun. */
void work_fail(struct work *w, const struct error *err);

/* For core_call and sandbox_wait_callbacks; userdata is the work. */
void work_progress(const char *step, int percent, void *userdata);
void work_done(json_t *result_consume, const struct error *err, void *userdata);
void work_sandbox_done(struct sandbox *sb, const struct error *err, void *userdata);
struct core_call work_call(struct work *w);
