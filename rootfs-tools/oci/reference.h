#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/*
 * The name of an image in a registry: [HOST[:PORT]/]PATH[:TAG][@sha256:HEX], by the rules of
 * Docker: without a host it is in the default registry, a single word there is in "library/",
 * without tag and digest the tag is "latest".
 */
#define REFERENCE_SIZE 256u
#define DIGEST_SIZE 72u /* "sha256:" and 64 hex digits */

struct reference {
    char host[REFERENCE_SIZE]; /* as people write it */
    char repository[REFERENCE_SIZE];
    char tag[129]; /* "" with a digest alone */
    char digest[DIGEST_SIZE];
};

int reference_parse(const char *text, struct reference *ret, struct error *err);
/* The shortest way to write it; parsing that gives the same again. -ENAMETOOLONG. */
int reference_format(const struct reference *ref, char *text, size_t size);
/* Names a registry for sure: has a tag, a digest or a path, which no imported image has. */
bool reference_is_explicit(const char *text);

bool digest_is_valid(const char *s); /* "sha256:" and 64 lower-case hex digits */
bool host_is_valid(const char *s);

/* The host that names without one mean (HEARTH_DEFAULT_REGISTRY). */
const char *reference_default_host(void);
/* Where the registry called `host` answers. */
const char *reference_api_host(const char *host);
/* The other names under which credentials for `host` are kept; NULL: none. */
const char *reference_credential_key(const char *host);
