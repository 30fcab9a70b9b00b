#pragma once

#include "api/e2b/e2b-private.h"
#include "api/e2b/template-script.h"
#include "core/build.h"
#include "core/recipe.h"

/*
 * Builds of E2B's templates: an image by a Dockerfile of its steps, then a template of that image
 * which its start command has made ready. Builds are remembered while the daemon runs; what they
 * made stays: the template NAME:TAG is called e2b.NAME.TAG here and stands on the image e2b.BUILD.
 * They belong to the host's own tenant, as all images and templates do.
 */
#define E2B_TEMPLATE_PREFIX "e2b."
#define E2B_TAG_DEFAULT "default"
#define E2B_BUILD_ID_SIZE 33u
#define E2B_NAME_SIZE 64u

#define BUILDS_MAX 64u /* known; of those that are over the oldest goes */
#define BUILDS_RUNNING_MAX 4u
#define BUILD_LOG_ENTRIES_MAX 10000u /* the oldest go */
#define BUILD_LOG_LINE_MAX 4096u

enum e2b_build_state { E2B_BUILD_WAITING, E2B_BUILD_RUNNING, E2B_BUILD_READY, E2B_BUILD_FAILED };

struct context_job;
struct e2b_build {
    struct api_e2b *e2b; /* weak */
    struct e2b_build *next;
    enum e2b_build_state state;
    char id[E2B_BUILD_ID_SIZE];
    char name[E2B_NAME_SIZE];
    char **tags; /* owned */
    struct sandbox_spec machine;
    /* What was asked for. */
    json_t *steps;       /* owned */
    char *start, *ready; /* owned, may be NULL */
    bool force;
    struct template_script script;
    /* What is under way. */
    struct context_job *job;    /* weak: the worker's */
    struct build *build;        /* owned */
    struct template_make *make; /* owned */
    unsigned step;              /* of the build; 0: its base */
    bool finalizing;
    /* What is told. */
    json_t *log; /* owned list */
    size_t log_dropped;
    struct buf line[3]; /* of output that has not ended, by stream */
    char reason[512];
};

/* "NAME" or "NAME:TAG"; tag "" when none is given. -EINVAL and err when it is neither. */
int e2b_name_parse(const char *text, char name[static E2B_NAME_SIZE],
                   char tag[static E2B_NAME_SIZE], struct error *err);
/* Of the template NAME:TAG here. */
int e2b_name_full(const char *name, const char *tag, char ret[static E2B_NAME_SIZE],
                  struct error *err);
/* What clients call a template that was built here; NULL: it was not. */
const char *e2b_name_shown(const char *template, char ret[static E2B_NAME_SIZE]);
/* The template that a client means, as it is called here; false: none that was built. */
bool e2b_template_find(struct api_e2b *e2b, const char *text, char ret[static E2B_NAME_SIZE]);

/* Weak; NULL: too many are under way, or no memory. Waits for e2b_build_start(). */
struct e2b_build *e2b_build_new(struct api_e2b *e2b, const char *name);
struct e2b_build *e2b_build_find(struct api_e2b *e2b, const char *name, const char *id);
/* Its script is there: it begins. Its end is in its state. */
int e2b_build_start(struct e2b_build *b, struct error *err);
void e2b_build_log(struct e2b_build *b, const char *level, const char *text);
/* The step that failed or is under way, as clients count them. */
void e2b_build_step(const struct e2b_build *b, char ret[static 16]);
void e2b_builds_free(struct api_e2b *e2b);
/* Images that no template stands on any more go. */
void e2b_images_sweep(struct api_e2b *e2b);

/* ---- template-files.c ---- */

/* Whether all is there that the script copies; err names the first step without. */
int e2b_files_check(struct api_e2b *e2b, const struct template_script *script, struct error *err);
/* Makes the context on a worker; then it is b's to build, or b has failed. */
int context_job_start(struct e2b_build *b, struct error *err);
void context_job_cancel(struct context_job *job);
void e2b_build_context(struct e2b_build *b, int fd_consume, const struct error *err);
void e2b_files_free(struct api_e2b *e2b);
