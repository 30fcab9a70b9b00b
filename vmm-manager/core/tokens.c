#include <assert.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/strv.h"
#include "core/core-private.h"
#include "core/keys-private.h"
#include "core/keys.h"

#define TOKEN_BYTES 32u
static_assert(2 * TOKEN_BYTES + 1 == SANDBOX_TOKEN_SIZE, "a token is hex");

void core_sandbox_token(struct core *core, const char *sandbox_id, const char *purpose,
                        char ret[static SANDBOX_TOKEN_SIZE])
{
    uint8_t hash[TOKEN_BYTES];
    crypto_generichash_state state;

    (void)crypto_generichash_init(&state, core->keys->token_key, TOKEN_KEY_SIZE, sizeof(hash));
    /* With its NUL: no two pairs give the same bytes. */
    (void)crypto_generichash_update(&state, (const uint8_t *)purpose, strlen(purpose) + 1);
    (void)crypto_generichash_update(&state, (const uint8_t *)sandbox_id, strlen(sandbox_id));
    (void)crypto_generichash_final(&state, hash, sizeof(hash));
    hex_encode(hash, sizeof(hash), ret);
}

static bool text_equal(const char *want, const char *have)
{
    return strlen(have) == strlen(want) && sodium_memcmp(want, have, strlen(want)) == 0;
}

bool core_sandbox_token_ok(struct core *core, const char *sandbox_id, const char *purpose,
                           const char *token)
{
    char want[SANDBOX_TOKEN_SIZE];

    core_sandbox_token(core, sandbox_id, purpose, want);
    return token && text_equal(want, token);
}

static void hash_part(crypto_hash_sha256_state *state, const char *text, bool last)
{
    (void)crypto_hash_sha256_update(state, (const uint8_t *)text, strlen(text));
    if (!last)
        (void)crypto_hash_sha256_update(state, (const uint8_t *)":", 1);
}

void url_signature(const char *path, const char *operation, const char *user, const char *token,
                   const char *expiration, char ret[static URL_SIGNATURE_SIZE])
{
    uint8_t hash[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_state state;

    (void)crypto_hash_sha256_init(&state);
    hash_part(&state, path, false);
    hash_part(&state, operation, false);
    hash_part(&state, user ? user : "", false);
    hash_part(&state, token, !expiration);
    if (expiration)
        hash_part(&state, expiration, true);
    (void)crypto_hash_sha256_final(&state, hash);
    (void)snprintf(ret, URL_SIGNATURE_SIZE, "v1_");
    (void)sodium_bin2base64(ret + 3, URL_SIGNATURE_SIZE - 3, hash, sizeof(hash),
                            sodium_base64_VARIANT_ORIGINAL_NO_PADDING);
}

int url_signature_check(const char *path, const char *operation, const char *user,
                        const char *token, const char *signature, const char *expiration,
                        uint64_t now_sec, struct error *err)
{
    char want[URL_SIGNATURE_SIZE];
    uint64_t until = UINT64_MAX;

    if (!signature)
        return error_set_code(err, ERR_UNAUTHORIZED, "missing signature query parameter");
    url_signature(path, operation, user, token, expiration, want);
    if (!text_equal(want, signature))
        return error_set_code(err, ERR_UNAUTHORIZED, "invalid signature");
    if (expiration && parse_u64(expiration, 0, INT64_MAX, &until) < 0)
        return error_set_code(err, ERR_UNAUTHORIZED, "invalid signature expiration");
    if (until < now_sec)
        return error_set_code(err, ERR_UNAUTHORIZED, "signature is already expired");
    return 0;
}
