#pragma once

#include "api/http.h"
#include "core/core.h"

/*
 * Before a request uses a sandbox: at once when it can be used, else when it has been woken, `go`
 * is called with the request, which looks the sandbox up again. If it cannot be woken the error is
 * the answer.
 */
void touch_then(struct request *req, struct sandbox *sb, void (*go)(struct request *req));
