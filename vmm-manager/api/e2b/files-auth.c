#include "api/e2b/files-auth.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "core/keys.h"

/* Whether a signature is there, and right. */
static bool signature_ok(struct request *req, const char *id, const char *operation,
                         const char *path, const char *user, struct error *err)
{
    const char *signature = NULL, *expiration = NULL;
    char token[SANDBOX_TOKEN_SIZE];

    if (request_query(req, "signature", &signature, err) < 0 ||
        request_query(req, "signature_expiration", &expiration, err) < 0)
        return false;
    core_sandbox_token(e2b_of(req)->core, id, E2B_TOKEN_PURPOSE, token);
    return url_signature_check(path ? path : "", operation, user ? user : "", token, signature,
                               expiration, clock_wall_usec() / USEC_PER_SEC, err) >= 0;
}

bool files_request(struct request *req, const char *operation, struct files_request *ret)
{
    const char *user = NULL;
    struct error err = {0};
    uint16_t port;
    char id[65];

    *ret = (struct files_request){0};
    if (envd_address(req, id, &port) != 1) {
        e2b_answer_status(req, 400, "the headers E2b-Sandbox-Id and E2b-Sandbox-Port are needed");
        return false;
    }
    if (!e2b_query(req, "path", &ret->path) || !e2b_query(req, "username", &user))
        return false;
    if (!core_sandbox_token_ok(e2b_of(req)->core, id, E2B_TOKEN_PURPOSE,
                               request_header(req, "X-Access-Token")) &&
        !signature_ok(req, id, operation, ret->path, user, &err)) {
        e2b_answer_status(req, 401, err.text);
        return false;
    }
    ret->sb = envd_sandbox(req, /* signed_url= */ true);
    if (!ret->sb)
        return false;
    if (user && user[0]) {
        if (strlen(user) > 128) {
            e2b_answer_status(req, 401, "'username': is too long");
            return false;
        }
        (void)snprintf(ret->user, sizeof(ret->user), "%s", user);
        return true;
    }
    if (envd_user(req, ret->sb, ret->user, &err) < 0) {
        e2b_answer_error(req, &err);
        return false;
    }
    return true;
}
