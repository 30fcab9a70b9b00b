#pragma once

#include <stddef.h>
#include <stdint.h>

/* The table of keys, shared by keys.c and tokens.c. */
#define TOKEN_KEY_SIZE 32u

struct core;
struct key;

struct keys {
    struct core *core; /* weak */
    struct key **list; /* owned, by hash: found by bisection */
    size_t count;
    uint8_t token_key[TOKEN_KEY_SIZE]; /* of core_sandbox_token() */
};
