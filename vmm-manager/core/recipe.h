#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/*
 * How a named template is made from an image: steps that are run once, in order, a command that
 * tells when it is ready, and commands that every pooled clone runs. Everything owned.
 */
#define RECIPE_STEPS_MAX 64u
#define RECIPE_WARM_MAX 16u
#define RECIPE_COMMAND_MAX 65536u
#define RECIPE_READY_SEC 60u
#define RECIPE_READY_SEC_MAX 3600u
#define RECIPE_DIGEST_SIZE 65u

struct recipe_step {
    char *run;       /* a command for /bin/sh; NULL: a copy */
    char *from, *to; /* of a copy: absolute, here and in the guest */
};

struct recipe {
    struct recipe_step *steps;
    size_t n_steps;
    char *ready; /* NULL: at once */
    uint32_t ready_sec;
    char **warm; /* NULL: none; run by root */
    /* Who runs the steps and the question whether it is ready; NULL: root, at home, nothing. */
    char *user, *workdir;
    char **env; /* "K=V" */
};

void recipe_done(struct recipe *recipe);
int recipe_copy(const struct recipe *from, struct recipe *to);
/* Nothing is done to the image. */
bool recipe_is_empty(const struct recipe *recipe);

/*
 * {steps: [{run} or {copy: {from, to}}], ready, ready_timeout_sec, warm: [], user, workdir, env:
 * {}}, every key optional; strict, other keys are the caller's. And back.
 */
int recipe_from_json(const json_t *json, struct recipe *ret, struct error *err);
json_t *recipe_to_json(const struct recipe *recipe);

/* Of everything above and the content of what is copied, in hex. Blocks. */
int recipe_digest(const struct recipe *recipe, char ret[RECIPE_DIGEST_SIZE], struct error *err);
