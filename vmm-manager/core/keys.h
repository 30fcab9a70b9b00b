#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "model/access.h"

/*
 * Keys of the API: `e2b_` and 40 hex digits, 160 random bits. Only a hash of each is kept, in the
 * store and in memory, so that a key is seen once, when it is made. Revoking takes effect at once.
 */
struct core;
struct key;
struct sandbox;

#define KEY_SECRET_SIZE 45u /* with the NUL */
#define KEYS_MAX 4096u

struct key_options {
    const char *tenant; /* name_is_valid() */
    const char *name;   /* NULL or at most 63 bytes */
    enum role role;
    struct quota quota;
};

int core_key_create(struct core *core, const struct key_options *options,
                    char ret_secret[static KEY_SECRET_SIZE], const struct key **ret,
                    struct error *err);
/* Of any tenant when `tenant` is NULL. */
int core_key_revoke(struct core *core, const char *tenant, const char *id, struct error *err);

/* The key of this secret, or NULL; takes as long for a wrong one. Weak. */
struct key *core_key_check(struct core *core, const char *secret);
void key_principal(const struct key *key, struct principal *ret);
/* Takes one request from what its rate allows; -EDQUOT and how long to wait otherwise. */
int key_take(struct key *key, uint64_t now_usec, uint64_t *ret_wait_usec);

/* Without the secret: {id, tenant, name?, role, quota: {}, created, used?}. */
json_t *key_to_json(const struct key *key);
/* All of a tenant (NULL: of every one), as an array. */
json_t *core_keys_to_json(struct core *core, const char *tenant);

/* ---- what a tenant holds ---- */
struct tenant_usage {
    uint64_t sandboxes, cpus, memory_mib, disk_mib;
};
void core_tenant_usage(struct core *core, const char *tenant, struct tenant_usage *ret);

/* ---- per sandbox ---- */
/*
 * A token that opens one sandbox for one purpose ("envd", "traffic", …) without a key. It is
 * derived from a secret of this host: nothing is stored, and it stays the same while the sandbox
 * lives.
 */
#define SANDBOX_TOKEN_SIZE 65u /* hex, with the NUL */
void core_sandbox_token(struct core *core, const char *sandbox_id, const char *purpose,
                        char ret[static SANDBOX_TOKEN_SIZE]);
/* Constant time; NULL is no token. */
bool core_sandbox_token_ok(struct core *core, const char *sandbox_id, const char *purpose,
                           const char *token);

/*
 * A signature of a file's URL, as the E2B SDKs make it from the access token: operation `read` or
 * `write`, user "" when none was given, expiration in Unix seconds (NULL: none).
 */
#define URL_SIGNATURE_SIZE 47u /* "v1_", 43 of base64 without padding, NUL */
void url_signature(const char *path, const char *operation, const char *user, const char *token,
                   const char *expiration, char ret[static URL_SIGNATURE_SIZE]);
/* -EPERM and err (unauthorized): missing, wrong or expired at `now_sec`. */
int url_signature_check(const char *path, const char *operation, const char *user,
                        const char *token, const char *signature, const char *expiration,
                        uint64_t now_sec, struct error *err);

/* Of the core: made by core_new(), freed by core_free(). */
struct keys;
int keys_new(struct core *core, struct keys **ret, struct error *err);
struct keys *keys_free(struct keys *keys); /* always NULL */
