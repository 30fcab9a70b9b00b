#pragma once

#include "api/http.h"
#include "core/core.h"

/*
 * Before a request uses a sandbox: at once when it can be used, else when it has been woken, `go`
 * is called with the request, which looks the sandbox up again. If it cannot be woken the error is
 * the answer.
 */
void touch_then(struct request *req, struct sandbox *sb, void (*go)(struct request *req));

/* The same with more to say. One of `go` and `ready` is set. */
struct touch_ops {
    void (*go)(struct request *req);
    /* `waited`: it was not so at once. */
    void (*ready)(struct request *req, struct sandbox *sb, bool waited);
    void (*failed)(struct request *req, const struct error *err); /* NULL: request_answer_error() */
};
/* Until it can be used. */
void touch_wait(struct request *req, struct sandbox *sb, const struct touch_ops *ops);
/* Until it sleeps. */
void sleep_wait(struct request *req, struct sandbox *sb, const struct touch_ops *ops);
