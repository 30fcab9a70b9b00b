#pragma once

#include "core/build.h"
#include "dockerfile/builder.h"
#include "host/exec.h"
#include "host/files.h"

/*
 * The guest's part of a build (build-guest.c): a sandbox that stays for commands that follow each
 * other.
 */
struct build_guest {
    struct build *build;             /* weak: owns this */
    struct core *core;               /* weak */
    struct sandbox *sb;              /* weak: ours to remove */
    bool creating;                   /* its creation is under way */
    struct sandbox_watch *watch;     /* owned, while it runs */
    struct build_farewell *farewell; /* weak: somebody waits for its end */
    char state[65];                  /* what its files are; "" when that is not known */
    uint32_t layers;                 /* put over its image */
    struct exec *exec;               /* owned */
    struct transfer *transfer;       /* owned */
    int tar_fd;                      /* owned: the layer that is being read */
    uint64_t tar_bytes;
    uint32_t read_layer; /* which one */
    bool command;        /* the command has to run; else the image is read */
    bool busy;           /* build_guest_done() is owed */
};

/* Runs the command or reads the image that `next` asks for; build_guest_done() follows. */
void build_guest_start(struct build_guest *g, const struct builder_next *next);
/* Lets the sandbox go; `done` (may be NULL) when it is gone. */
void build_guest_end(struct build_guest *g, backend_done_fn done, void *userdata);
/* Its files are this now: the next command may go on there. */
void build_guest_set_state(struct build_guest *g, const char *state);
/* No call back any more, no sandbox is left. */
void build_guest_free(struct build_guest *g);

/* build.c: the layer is in g->tar_fd, or err says why not. */
void build_guest_done(struct build *b, const struct error *err);
void build_guest_output(struct build *b, int stream, const uint8_t *data, size_t size);
void build_guest_progress(struct build *b, const char *step, int percent);
const struct builder_next *build_next(const struct build *b);
const struct sandbox_spec *build_machine(const struct build *b);
const char *build_name(const struct build *b);
uint32_t build_run_timeout_msec(const struct build *b);
