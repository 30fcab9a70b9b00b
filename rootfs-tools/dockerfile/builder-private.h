#pragma once

#include "dockerfile/builder.h"
#include "dockerfile/copy.h"

/* Inside of builder.c and builder-files.c. */
struct builder {
    char *name, *dockerfile, *target, *platform; /* owned */
    char **args;                                 /* owned */
    bool no_cache;
    struct builder_events events;
    _Atomic bool cancel;

    struct store_work work;
    int hold_fd;          /* owned: nothing that it made is collected */
    struct stack context; /* owned */
    struct ignore ignore; /* owned */
    struct build_plan plan;
    struct stage_state *states; /* owned: one a stage */

    size_t stage, at; /* the instruction that is due: 0 is FROM */
    size_t step;      /* its number among those that are done */
    bool begun;       /* it was told of */
    uint64_t step_usec;

    /* What a guest is needed for. */
    enum builder_need need;
    char image[REFERENCE_SIZE];
    char image_sha256[65];
    char state_key[65];
    char key[65];       /* of the command's result */
    char **argv, **env; /* owned */
};

const struct instruction *builder_instruction(const struct builder *b);
/* An image's layers and configuration; 1: it has no layers, they have to be read first. */
int builder_image(struct builder *b, const char *name, const char *platform,
                  struct stage_state *ret, struct error *err);
/* COPY or ADD; 1 as above. */
int builder_copy(struct builder *b, bool *ret_cached, struct error *err);
/* Makes the directory where it is missing. */
int builder_workdir(struct builder *b, struct error *err);
