#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "model/access.h"

/* Keys and secrets of the store. They are few and change seldom: read once, at start. */
struct store;

#define KEY_HASH_SIZE 32u
#define KEY_NAME_SIZE 64u

struct key_row {
    char id[KEY_ID_LENGTH + 1];
    uint8_t hash[KEY_HASH_SIZE]; /* of the secret: nothing else is kept of it */
    char tenant[TENANT_SIZE];
    char name[KEY_NAME_SIZE]; /* for people; "" when none */
    enum role role;
    struct quota quota;
    uint64_t created_wall_usec;
};

/* The tables; called by store_open(). */
int store_keys_set_up(struct store *s, struct error *err);

int store_key_put(struct store *s, const struct key_row *row, struct error *err);
int store_key_delete(struct store *s, const char *id, struct error *err);
typedef int (*store_key_fn)(const struct key_row *row, void *userdata);
/* In order of creation; stops when `fn` is negative and returns that. */
int store_key_each(struct store *s, store_key_fn fn, void *userdata, struct error *err);

/* The secret of this name, made at random when there is none yet. */
int store_secret(struct store *s, const char *name, void *data, size_t size, struct error *err);
