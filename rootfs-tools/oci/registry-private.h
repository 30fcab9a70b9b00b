#pragma once

#include "oci/http.h"
#include "oci/registries.h"
#include "oci/registry.h"

/* Insides of the registry client. */
struct endpoint {
    char host[REFERENCE_SIZE]; /* whose credentials count */
    char base[REFERENCE_SIZE + 32];
    bool plain;          /* http is allowed */
    bool mirror;         /* may lack things */
    char *token;         /* owned; NULL: none yet */
    char *user_password; /* owned: the registry wants basic; NULL */
};

#define ENDPOINTS_MAX 9u

struct registry {
    struct reference ref;
    const _Atomic bool *cancel; /* weak */
    struct registries config;
    struct endpoint endpoints[ENDPOINTS_MAX]; /* mirrors first, the registry itself last */
    size_t n_endpoints;
    const struct credentials *credentials; /* weak: instead of those on disk; NULL */
};

/*
 * Answers a 401: gets a token, or the credentials for basic. 0, or ERR_REGISTRY_DENIED. Called
 * again after a 401 with what it gave, it says that access is denied.
 */
int registry_authenticate(struct registry *r, struct endpoint *e, const char *header, bool again,
                          struct error *err);
/* The error that an HTTP status means, for `what` ("manifest", "blob"). */
int registry_status_error(const struct registry *r, const struct endpoint *e, const char *what,
                          long status, const struct buf *body, struct error *err);
