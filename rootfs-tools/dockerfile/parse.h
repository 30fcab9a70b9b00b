#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/macros.h"

/*
 * A Dockerfile as text: instructions with their lines, continued lines joined, here-documents
 * taken. What the words mean is decided when a step is due (state.h), because variables do.
 */
#define DOCKERFILE_BYTES_MAX ((size_t)1024 * 1024)
#define DOCKERFILE_INSTRUCTIONS_MAX 1000u
#define DOCKERFILE_HEREDOCS_MAX 16u /* of one instruction */

enum instruction_type {
    INSTRUCTION_ADD,
    INSTRUCTION_ARG,
    INSTRUCTION_CMD,
    INSTRUCTION_COPY,
    INSTRUCTION_ENTRYPOINT,
    INSTRUCTION_ENV,
    INSTRUCTION_EXPOSE,
    INSTRUCTION_FROM,
    INSTRUCTION_HEALTHCHECK,
    INSTRUCTION_LABEL,
    INSTRUCTION_MAINTAINER,
    INSTRUCTION_ONBUILD,
    INSTRUCTION_RUN,
    INSTRUCTION_SHELL,
    INSTRUCTION_STOPSIGNAL,
    INSTRUCTION_USER,
    INSTRUCTION_VOLUME,
    INSTRUCTION_WORKDIR,
};
#define INSTRUCTION_TYPE_COUNT 18
const char *instruction_name(enum instruction_type type);

struct heredoc {
    char *name;    /* owned */
    char *content; /* owned */
    bool expand;   /* its name was not quoted: variables are replaced */
};

struct instruction {
    enum instruction_type type;
    unsigned line;
    char **flags; /* owned strv: "from=x", without the dashes; "link" */
    char *text;   /* owned: what follows the flags */
    struct heredoc *heredocs;
    size_t n_heredocs;
};

struct dockerfile {
    struct instruction *instructions;
    size_t n;
    char escape; /* a backslash unless a directive says otherwise */
};

/* Foreign bytes. `name` is what errors call it: "NAME:LINE: …". */
int dockerfile_parse(const char *data, size_t size, const char *name, struct dockerfile *ret,
                     struct error *err);
void dockerfile_done(struct dockerfile *d);
#define _cleanup_dockerfile_ _cleanup_(dockerfile_done)

/* The value of a flag ("" for one without); NULL: not given. */
const char *instruction_flag(const struct instruction *in, const char *name);
/* The first flag that is none of `known` (ends with NULL), or NULL. */
const char *instruction_unknown_flag(const struct instruction *in, const char *const *known);
/* 1 and a strv when the text is a JSON array of strings, 0 when it is not, -ENOMEM. */
int instruction_exec_form(const struct instruction *in, char ***ret);
