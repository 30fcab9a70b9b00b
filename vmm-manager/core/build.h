#pragma once

#include "core/core.h"

/*
 * Images from Dockerfiles. Commands run in sandboxes that are booted for the build from what its
 * stage has come to; everything else happens on a worker (dockerfile/builder.h). A build ends with
 * its owner: freeing it leaves no sandbox and no name behind, only its cache.
 */
struct build;

#define BUILD_RUN_MSEC_DEFAULT (3600u * 1000u)
#define BUILD_RUN_MSEC_MAX (7u * 24u * 3600u * 1000u)
#define BUILD_CONTEXT_MAX (UINT64_C(16) * 1024 * 1024 * 1024)

struct build_options {
    const char *name;       /* of the image; NULL: it stays in the cache only */
    const char *dockerfile; /* path in the context; NULL: "Dockerfile" */
    const char *target;     /* NULL: the last stage */
    const char *platform;   /* NULL: this host's */
    char *const *args;      /* "K=V"; NULL: none */
    bool no_cache;
    uint32_t run_timeout_msec;          /* of each command; 0: BUILD_RUN_MSEC_DEFAULT */
    const struct sandbox_spec *machine; /* size and backend of the sandboxes */
};

/* All from the loop. */
struct build_callbacks {
    /* A step begins: its number, line in the Dockerfile and text, weak. */
    void (*on_step)(size_t index, size_t total, unsigned line, const char *text, void *userdata);
    void (*on_step_done)(size_t index, bool cached, uint64_t duration_usec, void *userdata);
    void (*on_progress)(const char *what, int percent, void *userdata);
    void (*on_warning)(const char *text, void *userdata);
    /* Of a command, stream 1 or 2; to be acknowledged with build_output_consumed(). */
    void (*on_output)(int stream, const uint8_t *data, size_t size, void *userdata);
    /* Once: the image (weak), or err says why not. Nothing is left of its sandboxes. */
    void (*on_done)(const struct image *image, const struct error *err, void *userdata);
};

/* Everything is copied. The context follows. */
int core_build(struct core *core, const struct build_options *options,
               const struct build_callbacks *cb, void *userdata, struct build **ret,
               struct error *err);
/* A piece of the context, a tar. */
int build_context_write(struct build *b, const void *data, size_t size, struct error *err);
/* A file that nobody else sees, where builds keep theirs; -errno. */
int build_temporary(struct core *core, struct error *err);
/* Or all of it at once, a tar in a file, and the build begins. Takes the descriptor. */
int build_context_take(struct build *b, int fd_consume, struct error *err);
/* That was all of it: the build begins. */
int build_context_end(struct build *b, struct error *err);
void build_output_consumed(struct build *b, int stream, size_t size);
/* No callback comes any more. Always NULL. */
struct build *build_free(struct build *b);
