#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/*
 * Credentials of registries. `hearth login` keeps them in STATE/credentials.json, readable by its
 * owner only, in the form of Docker's config.json; those that docker keeps in its own file
 * (DOCKER_CONFIG or ~/.docker) are used too. Helper programs are never run.
 */
struct credentials {
    char user[256];
    char password[8192];
    char identity_token[8192]; /* instead of a password; "" when none */
};

/* 0 and *ret, 1 when there are none, or an error. */
int credentials_find(const char *host, struct credentials *ret, struct error *err);
int credentials_store(const char *host, const struct credentials *credentials, struct error *err);
/* -ENOENT when there were none of ours. */
int credentials_remove(const char *host, struct error *err);
/* From the text of a config.json; 1 when it has none for this host. */
int credentials_parse(const char *text, size_t size, const char *host, struct credentials *ret,
                      struct error *err);

/* What a WWW-Authenticate header asks for. */
struct challenge {
    bool bearer; /* else basic */
    char realm[1024];
    char service[256];
    char scope[512];
};
/* 0, or -EINVAL when there is nothing in it that we can do. */
int challenge_parse(const char *header, struct challenge *ret);

/* The token in a token server's answer; malloc'd, owned by the caller. NULL: none. */
char *token_parse(const char *text, size_t size);
