#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "dockerfile/parse.h"

/* The stages of a Dockerfile, what each stands on, and which are needed for the one asked for. */
#define STAGE_NONE ((size_t)-1)

struct build_stage {
    char *name;     /* owned; NULL: only its number */
    char *base;     /* owned: the name of an image; NULL: another stage, or scratch */
    size_t parent;  /* the stage it stands on, or STAGE_NONE */
    char *platform; /* owned; NULL: this host's */
    unsigned line;
    size_t first, end; /* its instructions, without FROM */
    bool needed;
};

struct build_plan {
    struct dockerfile dockerfile; /* owned */
    char *file;                   /* owned: what the Dockerfile is called */
    char **build_args;            /* owned strv: "K=V", as given */
    char **globals;               /* owned strv: "K=V", of ARG before the first FROM */
    struct build_stage *stages;   /* owned */
    size_t n_stages;
    size_t target;
    size_t n_steps; /* instructions of the stages that are needed, FROM included */
};

/*
 * Parses and arranges. `target` is a stage's name or number, NULL: the last. Errors name the line.
 */
int plan_make(const char *data, size_t size, const char *file, char *const *build_args,
              const char *target, struct build_plan *ret, struct error *err);
void plan_done(struct build_plan *plan);
#define _cleanup_plan_ _cleanup_(plan_done)

/* The stage before `before` that COPY --from=NAME means, or STAGE_NONE: it is an image. */
size_t plan_find_stage(const struct build_plan *plan, const char *name, size_t before);
/* Puts "FILE:LINE: NAME" before the error. */
void plan_wrap(const struct build_plan *plan, const struct instruction *in, struct error *err);

/* Value of "K=V" in a list, weak; NULL: not there. */
const char *pairs_get(char *const *pairs, const char *key);
/* Replaces or adds. */
int pairs_set(char ***pairs, const char *key, const char *value);
