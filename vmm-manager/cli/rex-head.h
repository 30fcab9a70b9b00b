#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/error.h"
#include "cli/http-parse.h"

/*
 * The head of a request to a SWE-ReX server at the root, made into one to the runtime of a sandbox
 * on the daemon's own socket. Whoever may connect there is the host: so only what a SWE-ReX client
 * needs is passed on, nothing that chooses a tenant or a sandbox, and one request a connection.
 */
struct rex_head {
    bool has_token, token_is_right;
    struct http_head body; /* only what tells where the request's body ends */
};

/*
 * Reads a head from the front of `data` and appends the new one to `to`. Returns its size with the
 * empty line, 0 when it is not complete yet, -EPROTO when it is none or is too long.
 */
ssize_t rex_head_rewrite(const char *data, size_t size, const char *sandbox, const char *token,
                         struct buf *to, struct rex_head *ret, struct error *err);
