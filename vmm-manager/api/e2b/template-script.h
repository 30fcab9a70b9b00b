#pragma once

#include <jansson.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"

/*
 * The steps of E2B's template builds as a Dockerfile. What a step copies was uploaded as a tar of
 * its own and lies in the context below "sN/", N being the step's number, from 1.
 */
#define SCRIPT_STEPS_MAX 200u
#define SCRIPT_HASH_SIZE 65u

struct script_base {
    const char *image; /* to stand on */
    /* Who and where commands run at first. user NULL: it has to be set up, as E2B's images are. */
    const char *user, *workdir;
};

struct script_copy {
    char hash[SCRIPT_HASH_SIZE];
    unsigned step;
};

struct template_script {
    struct buf dockerfile;
    struct script_copy *copies; /* owned */
    size_t n_copies;
    unsigned *steps; /* owned: of each line, from the first on; 0: the base */
    size_t n_lines;
};

/* `steps`: [{type, args: [], filesHash}]. Errors name the step. */
int template_script_make(const json_t *steps, const struct script_base *base,
                         struct template_script *ret, struct error *err);
void template_script_done(struct template_script *script);
/* Lower-case hex of a SHA-256. */
bool script_hash_is_valid(const char *hash);
/* What a step is, for people; one line, owned by the caller. */
char *script_step_text(const json_t *step);
/* A command as its user's shell would run it, for /bin/sh; owned by the caller. */
char *script_shell(const char *command);
