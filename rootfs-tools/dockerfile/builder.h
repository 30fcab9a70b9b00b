#pragma once

#include "dockerfile/steps.h"

/*
 * A build without its guests: everything between two commands that have to run in a sandbox. All
 * calls block and belong to a worker; one at a time. Nothing of a build is seen by name before its
 * end, and what it leaves in the store is its cache.
 */
struct builder;

struct builder_events {
    /* A step begins; `text` is one line. */
    void (*step)(size_t index, size_t total, unsigned line, const char *text, void *userdata);
    void (*step_done)(size_t index, bool cached, uint64_t duration_usec, void *userdata);
    void (*warn)(const char *text, void *userdata);
    void (*progress)(int percent, const char *what, void *userdata); /* of a pull */
    void *userdata;
};

struct builder_options {
    const char *name;       /* of the image; NULL: it stays in the cache only */
    const char *dockerfile; /* path in the context; NULL: "Dockerfile" */
    const char *target;     /* NULL: the last stage */
    const char *platform;   /* NULL: this host's */
    char *const *args;      /* "K=V"; NULL: none */
    bool no_cache;
    struct builder_events events;
};

/* Strings are copied. */
int builder_new(const struct builder_options *options, struct builder **ret);
/* Removes all that it made for itself. */
struct builder *builder_free(struct builder *b);
/* From any thread: what is under way ends soon. */
void builder_cancel(struct builder *b);
/* The context as a tar (plain, gzip, zstd). */
int builder_open(struct builder *b, const char *tar_path, struct error *err);

enum builder_need {
    BUILDER_DONE,  /* the image is there */
    BUILDER_RUN,   /* a command has to run, then builder_ran() */
    BUILDER_IMAGE, /* an image has no layers: its files are needed, then builder_read() */
};

/* All of it is the builder's, until the next call. */
struct builder_next {
    enum builder_need need;
    const char *image; /* to boot from */
    const char *state; /* what the files are now; the same as after the last command: go on there */
    char *const *argv; /* of the command */
    char *const *env;  /* "K=V" */
    const char *user;  /* NULL: root */
    const char *workdir;
    struct image result; /* when done */
};
/* As far as it goes without a guest. Errors name the line. */
int builder_advance(struct builder *b, struct builder_next *ret, struct error *err);
/* The command ended well and changed this (a tar). *ret_state: what the files are now. */
int builder_ran(struct builder *b, const char *tar_path, const char **ret_state, struct error *err);
/* All files of the image. */
int builder_read(struct builder *b, const char *tar_path, struct error *err);
/* Puts the place of the command before its error. */
void builder_wrap(const struct builder *b, struct error *err);
