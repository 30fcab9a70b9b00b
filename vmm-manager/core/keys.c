#include "core/keys.h"

#include <assert.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/core-private.h"
#include "core/keys-private.h"
#include "core/sandbox-private.h"
#include "core/store-keys.h"
#include "model/text.h"

#define KEY_PREFIX "e2b_"
#define KEY_RANDOM_SIZE 20u
static_assert(sizeof(KEY_PREFIX) - 1 + 2 * KEY_RANDOM_SIZE + 1 == KEY_SECRET_SIZE, "its text");

struct key {
    struct key_row row;
    uint64_t used_wall_usec; /* 0: not since this daemon started */
    uint64_t tokens_milli;   /* thousandths of a request that may come now */
    uint64_t filled_usec;    /* when that was true */
};

static void hash_secret(const char *secret, uint8_t hash[static KEY_HASH_SIZE])
{
    (void)crypto_generichash(hash, KEY_HASH_SIZE, (const uint8_t *)secret, strlen(secret), NULL, 0);
}

/* Index of the first key whose hash is not below. */
static size_t lower_bound(const struct keys *keys, const uint8_t *hash)
{
    size_t low = 0, high = keys->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (memcmp(keys->list[middle]->row.hash, hash, KEY_HASH_SIZE) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int keys_add(struct keys *keys, const struct key_row *row, struct key **ret)
{
    struct key **list;
    struct key *key;
    size_t at = lower_bound(keys, row->hash);

    if (keys->count >= KEYS_MAX)
        return -E2BIG;
    list = reallocarray(keys->list, keys->count + 1, sizeof(*list));
    if (!list)
        return -ENOMEM;
    keys->list = list;
    key = calloc(1, sizeof(*key));
    if (!key)
        return -ENOMEM;
    key->row = *row;
    key->tokens_milli = UINT64_C(2000) * row->quota.rate;
    key->filled_usec = clock_now_usec();
    memmove(&list[at + 1], &list[at], (keys->count - at) * sizeof(*list));
    list[at] = key;
    keys->count++;
    if (ret)
        *ret = key;
    return 0;
}

static int on_row(const struct key_row *row, void *userdata)
{
    return keys_add(userdata, row, NULL);
}

int keys_new(struct core *core, struct keys **ret, struct error *err)
{
    struct keys *keys = calloc(1, sizeof(*keys));
    int r;

    if (!keys)
        return error_set(err, ENOMEM, "keys: out of memory");
    keys->core = core;
    r = store_key_each(core->store, on_row, keys, err);
    if (r >= 0)
        r = store_secret(core->store, "sandbox-token", keys->token_key, TOKEN_KEY_SIZE, err);
    if (r < 0) {
        (void)keys_free(keys);
        return r;
    }
    *ret = keys;
    return 0;
}

struct keys *keys_free(struct keys *keys)
{
    if (!keys)
        return NULL;
    for (size_t i = 0; i < keys->count; i++)
        free(keys->list[i]);
    free(keys->list);
    sodium_memzero(keys->token_key, sizeof(keys->token_key));
    free(keys);
    return NULL;
}

/* ---- making and revoking ---- */

int core_key_create(struct core *core, const struct key_options *options,
                    char ret_secret[static KEY_SECRET_SIZE], const struct key **ret,
                    struct error *err)
{
    struct key_row row = {
        .role = options->role,
        .quota = options->quota,
        .created_wall_usec = clock_wall_usec(),
    };
    uint8_t random[KEY_RANDOM_SIZE];
    char secret[KEY_SECRET_SIZE];
    struct key *key;
    int r;

    if (core->keys->count >= KEYS_MAX)
        return error_set_code(err, ERR_TOO_MANY, "there are %u keys, the limit", KEYS_MAX);
    randombytes_buf(random, sizeof(random));
    (void)snprintf(secret, sizeof(secret), "%s", KEY_PREFIX);
    hex_encode(random, sizeof(random), secret + strlen(KEY_PREFIX));
    hash_secret(secret, row.hash);
    (void)snprintf(row.tenant, sizeof(row.tenant), "%s", options->tenant);
    (void)snprintf(row.name, sizeof(row.name), "%s", options->name ? options->name : "");
    r = random_id(row.id, KEY_ID_LENGTH);
    if (r < 0)
        return error_set(err, -r, "key: %s", errno_text(-r));
    r = store_key_put(core->store, &row, err);
    if (r < 0)
        return r;
    r = keys_add(core->keys, &row, &key);
    if (r < 0) {
        (void)store_key_delete(core->store, row.id, NULL);
        return error_set(err, -r, "key: %s", errno_text(-r));
    }
    memcpy(ret_secret, secret, sizeof(secret));
    sodium_memzero(secret, sizeof(secret));
    log_notice("Key '%s' of tenant '%s' was made", row.id, row.tenant);
    *ret = key;
    return 0;
}

int core_key_revoke(struct core *core, const char *tenant, const char *id, struct error *err)
{
    struct keys *keys = core->keys;
    int r;

    for (size_t i = 0; i < keys->count; i++) {
        struct key *key = keys->list[i];

        if (strcmp(key->row.id, id) != 0 || (tenant && strcmp(key->row.tenant, tenant) != 0))
            continue;
        r = store_key_delete(core->store, id, err);
        if (r < 0)
            return r;
        log_notice("Key '%s' of tenant '%s' was revoked", key->row.id, key->row.tenant);
        keys->count--;
        memmove(&keys->list[i], &keys->list[i + 1], (keys->count - i) * sizeof(keys->list[0]));
        free(key);
        return 0;
    }
    return error_set_code(err, ERR_NOT_FOUND, "key '%.64s': no such key", id);
}

/* ---- checking ---- */

struct key *core_key_check(struct core *core, const char *secret)
{
    uint8_t hash[KEY_HASH_SIZE];
    struct keys *keys = core->keys;
    size_t at;

    /* Where bisection stops tells of hashes only, of which nobody can choose the start. */
    hash_secret(secret, hash);
    at = lower_bound(keys, hash);
    if (at >= keys->count || sodium_memcmp(keys->list[at]->row.hash, hash, KEY_HASH_SIZE) != 0)
        return NULL;
    keys->list[at]->used_wall_usec = clock_wall_usec();
    return keys->list[at];
}

void key_principal(const struct key *key, struct principal *ret)
{
    *ret = (struct principal){.role = key->row.role, .quota = key->row.quota};
    memcpy(ret->tenant, key->row.tenant, sizeof(ret->tenant));
    memcpy(ret->key_id, key->row.id, sizeof(ret->key_id));
}

int key_take(struct key *key, uint64_t now_usec, uint64_t *ret_wait_usec)
{
    uint64_t rate = key->row.quota.rate, most = 2000 * rate, added;

    if (rate == 0)
        return 0;
    /* Thousandths: rate per second is rate per 1000 us in these. */
    added = (now_usec - key->filled_usec) / USEC_PER_MSEC * rate;
    if (added > 0) {
        key->tokens_milli = MIN(most, key->tokens_milli + added);
        key->filled_usec = now_usec;
    }
    if (key->tokens_milli < 1000) {
        *ret_wait_usec = (1000 - key->tokens_milli + rate - 1) / rate * USEC_PER_MSEC;
        return -EDQUOT;
    }
    key->tokens_milli -= 1000;
    return 0;
}

json_t *key_to_json(const struct key *key)
{
    const struct key_row *row = &key->row;
    char created[32], used[32];
    json_t *o;

    clock_format_wall(row->created_wall_usec, created, sizeof(created));
    o = json_pack("{s:s, s:s, s:s, s:s, s:{s:I, s:I, s:I, s:I, s:I}}", "id", row->id, "tenant",
                  row->tenant, "role", role_name(row->role), "created", created, "quota",
                  "sandboxes", (json_int_t)row->quota.sandboxes, "cpus",
                  (json_int_t)row->quota.cpus, "memory_mib", (json_int_t)row->quota.memory_mib,
                  "disk_mib", (json_int_t)row->quota.disk_mib, "rate", (json_int_t)row->quota.rate);
    if (o && row->name[0])
        (void)json_object_set_new(o, "name", json_text(row->name));
    if (o && key->used_wall_usec) {
        clock_format_wall(key->used_wall_usec, used, sizeof(used));
        (void)json_object_set_new(o, "used", json_string(used));
    }
    return o;
}

static int by_creation(const void *a, const void *b)
{
    const struct key *left = *(const struct key *const *)a, *right = *(const struct key *const *)b;

    if (left->row.created_wall_usec != right->row.created_wall_usec)
        return left->row.created_wall_usec < right->row.created_wall_usec ? -1 : 1;
    return strcmp(left->row.id, right->row.id);
}

json_t *core_keys_to_json(struct core *core, const char *tenant)
{
    const struct keys *keys = core->keys;
    _cleanup_free_ const struct key **sorted = calloc(keys->count + 1, sizeof(*sorted));
    json_t *array = sorted ? json_array() : NULL;

    if (!array)
        return NULL;
    for (size_t i = 0; i < keys->count; i++)
        sorted[i] = keys->list[i];
    qsort(sorted, keys->count, sizeof(*sorted), by_creation);
    for (size_t i = 0; i < keys->count; i++) {
        if (!tenant || strcmp(sorted[i]->row.tenant, tenant) == 0)
            (void)json_array_append_new(array, key_to_json(sorted[i]));
    }
    return array;
}

/* ---- what a tenant holds ---- */

void core_tenant_usage(struct core *core, const char *tenant, struct tenant_usage *ret)
{
    *ret = (struct tenant_usage){0};
    for (size_t i = 0; i < core->n_sandboxes; i++) {
        const struct sandbox *sb = core->sandboxes[i];

        if (sb->pooled || strcmp(sandbox_tenant(sb), tenant) != 0)
            continue;
        /* Nobody waits for the removal of these: who asks next must not meet the last one. */
        if (sb->spec.transient && sb->state == SANDBOX_STOPPING)
            continue;
        ret->sandboxes++;
        ret->disk_mib += sb->spec.disk_mib;
        /* One that is asleep or over holds no machine. */
        if (sb->state == SANDBOX_PAUSED || sb->state == SANDBOX_STOPPED ||
            sb->state == SANDBOX_FAILED)
            continue;
        ret->cpus += sb->spec.cpus;
        ret->memory_mib += sb->spec.memory_mib;
    }
}
