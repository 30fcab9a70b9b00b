#pragma once

#include "dockerfile/plan.h"
#include "oci/config.h"

/* What a stage has come to: its layers and its configuration, changed by instruction after
 * instruction. Everything owned. */
struct stage_state {
    char **layers; /* strv of digests, bottom first; NULL: nothing */
    struct image_config config;
    char **shell; /* NULL: /bin/sh -c */
    char **args;  /* "K=V" of ARG in this stage */
    bool cmd_set; /* by this Dockerfile, not by the image it stands on */
};
void state_done(struct stage_state *s);
#define _cleanup_state_ _cleanup_(state_done)
int state_copy(const struct stage_state *from, struct stage_state *to);

/* Something was ignored that others would honour. */
typedef void (*state_warn_fn)(const char *text, void *userdata);

/* Does this instruction change files? Those are RUN, COPY, ADD and WORKDIR. */
bool instruction_makes_files(const struct instruction *in);
/*
 * Applies one of the others; of WORKDIR the part that is no file. Errors lack the place: see
 * plan_wrap().
 */
int state_apply(struct stage_state *s, const struct build_plan *plan, const struct instruction *in,
                state_warn_fn warn, void *userdata, struct error *err);

/* A word with the stage's variables replaced. Owned by the caller. */
int state_expand(const struct stage_state *s, const struct build_plan *plan, const char *word,
                 bool raw, char **ret, struct error *err);
/* Words of an instruction, replaced, quotes removed; or its JSON array. A strv. */
int state_words(const struct stage_state *s, const struct build_plan *plan,
                const struct instruction *in, char ***ret, struct error *err);
/* Absolute, from the working directory, cleaned; a slash at its end stays. */
char *state_path(const struct stage_state *s, const char *path); /* NULL: out of memory */

/* What RUN runs, and its environment: strvs, owned by the caller. */
int state_run_argv(const struct stage_state *s, const struct instruction *in, char ***ret,
                   struct error *err);
int state_run_env(const struct stage_state *s, char ***ret);

/*
 * Names of results in the cache, as 64 hex digits: of the layers below and all that decides.
 * `extra` (may be NULL) is the digest of what is copied.
 */
void state_run_key(const struct stage_state *s, char *const *argv, char *const *env, char ret[65]);
void state_files_key(const struct stage_state *s, const char *kind, const char *extra,
                     char ret[65]);
