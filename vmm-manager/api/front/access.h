#pragma once

#include "api/http.h"
#include "core/core.h"
#include "core/keys.h"

/*
 * Who may do what. Every API asks here for the things that a request names: what belongs to another
 * tenant does not exist, with the same words as what never was.
 */

/* By id or name, of the request's tenant. NULL and err (sandbox_not_found). Weak. */
struct sandbox *access_sandbox(struct request *req, struct core *core, const char *id_or_name,
                               struct error *err);
/*
 * By id alone, for who has no key but a token of the sandbox (core_sandbox_token()): `purpose` is
 * the token's. NULL and err as if it did not exist.
 */
struct sandbox *access_sandbox_by_token(struct core *core, const char *id, const char *purpose,
                                        const char *token, struct error *err);
/* Calls `fn` for each sandbox of the request's tenant. */
void access_sandbox_each(struct request *req, struct core *core, sandbox_each_fn fn,
                         void *userdata);

/* The tenant whose things the request may see; NULL: of every one. */
const char *access_tenant(const struct request *req);
/* Whether `tenant` is what the request may see: its own, or any for the host that asks for all. */
bool access_sees(const struct request *req, const char *tenant);

/*
 * Images that builds of a tenant made (IMAGE_BUILT and 32 hex digits) are for it alone, the host's
 * own tenant; in any form of its name.
 */
#define IMAGE_BUILT "e2b."
bool access_sees_image(const struct request *req, const char *name);

/*
 * Before making `count` sandboxes of this spec: sets its tenant, and asks whether the key's quota
 * lets the tenant have them. -EDQUOT and err (quota_exceeded); what it may not see is not there.
 */
int access_admit(struct request *req, struct core *core, struct sandbox_spec *spec, unsigned count,
                 struct error *err);

/*
 * The key that a request brings: X-API-Key, a bearer, or the subprotocol hearth-key.KEY of a
 * WebSocket; NULL: none. Valid until the next call.
 */
const char *access_secret(struct request *req);

/* For http_options.authorize. The first is for the daemon's own socket; userdata is the core. */
int access_authorize_host(struct request *req, void *userdata, struct error *err);
int access_authorize_key(struct request *req, void *userdata, struct error *err);
