#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/*
 * The options of all verbs, each defined once: an option means the same wherever it is taken. A
 * verb names those it takes as a set of bits. Help and completion are printed from the same table.
 */
enum option_id {
    OPTION_JSON,
    OPTION_QUIET,
    OPTION_VERBOSE,
    OPTION_SOCKET,
    OPTION_STATE,
    OPTION_HELP,
    OPTION_IMAGE,
    OPTION_TEMPLATE,
    OPTION_CPUS,
    OPTION_MEMORY,
    OPTION_DISK,
    OPTION_LIFETIME, /* --timeout of a sandbox */
    OPTION_BACKEND,
    OPTION_NAME,
    OPTION_ENV,
    OPTION_USER,
    OPTION_WORKDIR,
    OPTION_TIMEOUT, /* --timeout of a command */
    OPTION_TTY,
    OPTION_INTERACTIVE,
    OPTION_NO_STDIN,
    OPTION_DETACH,
    OPTION_TENANT,
    OPTION_ROLE,
    OPTION_QUOTA,
    OPTION_SESSION,
    OPTION_KIND,
    OPTION_TAIL,
    OPTION_ALL,
    OPTION_FORCE,
    OPTION_JOBS,
    OPTION_TAR,
    OPTION_IDLE,
    OPTION_ON_TIMEOUT,
    OPTION_RETENTION,
    OPTION_CHILDREN, /* --count of a fork */
    OPTION_FROM,
    OPTION_TREE,
    OPTION_URL,
    OPTION_SHA256,
    OPTION_DIR,
    OPTION_PLATFORM,
    OPTION_USERNAME,
    OPTION_PASSWORD_STDIN,
    OPTION_ENTRYPOINT,
    OPTION_RUN,
    OPTION_COPY,
    OPTION_READY,
    OPTION_READY_TIMEOUT,
    OPTION_WARM,
    OPTION_OUT,
    OPTION_ROUNDS,
    OPTION_LANGUAGE,
    OPTION_CODE,
    OPTION_PORT,
    OPTION_TOKEN,
    OPTION_DOCKERFILE,
    OPTION_TAG,
    OPTION_BUILD_ARG,
    OPTION_TARGET,
    OPTION_NO_CACHE,
    OPTION_RUN_TIMEOUT,
};
#define OPTION_COUNT (OPTION_RUN_TIMEOUT + 1)
static_assert(OPTION_COUNT <= 64, "options are bits of a number");
#define OPT(id) (UINT64_C(1) << OPTION_##id)
#define OPT_GLOBAL (OPT(JSON) | OPT(QUIET) | OPT(VERBOSE) | OPT(SOCKET) | OPT(STATE) | OPT(HELP))
#define OPT_SPEC                                                                                   \
    (OPT(IMAGE) | OPT(TEMPLATE) | OPT(CPUS) | OPT(MEMORY) | OPT(DISK) | OPT(BACKEND) | OPT(NAME) | \
     OPT(ENV) | OPT(USER) | OPT(WORKDIR))
#define OPT_LIFE (OPT(LIFETIME) | OPT(IDLE) | OPT(ON_TIMEOUT) | OPT(RETENTION))
#define OPT_STDIO (OPT(TTY) | OPT(INTERACTIVE) | OPT(NO_STDIN))

enum option_type {
    OPTION_TYPE_FLAG,
    OPTION_TYPE_STRING,
    OPTION_TYPE_COUNT,    /* whole number from 1 */
    OPTION_TYPE_MIB,      /* size, kept in MiB */
    OPTION_TYPE_BYTES,    /* size, kept in bytes */
    OPTION_TYPE_DURATION, /* kept in microseconds */
    OPTION_TYPE_ENV,      /* "K=V", or "K" to pass on ours; may be repeated */
    OPTION_TYPE_LIST,     /* a text each time */
    OPTION_TYPE_STEP, /* the same, kept as "NAME=TEXT": several options fill one list in order */
};

struct option_def {
    const char *name;  /* without "--" */
    char letter;       /* '\0': none */
    const char *value; /* what it takes, as help prints it; NULL for a flag */
    enum option_type type;
    size_t offset; /* in struct options */
    const char *help;
};
extern const struct option_def option_defs[OPTION_COUNT];

/* What was given; zero and NULL mean "not". Strings are weak: they live in argv. */
struct options {
    bool json, quiet, verbose, help;
    bool password_stdin;
    bool tty, interactive, no_stdin, detach, all, force;
    const char *socket, *state;
    const char *image, *template, *backend, *name, *user, *workdir;
    const char *tenant, *role, *quota;
    const char *platform, *username, *entrypoint;
    const char *session, *kind, *jobs, *tar;
    const char *url, *sha256, *dir;
    uint64_t cpus, memory_mib, disk_mib, tail_bytes;
    uint64_t lifetime_usec, timeout_usec, idle_usec, retention_usec;
    const char *on_timeout, *from;
    uint64_t children;
    bool tree;
    char **env;   /* owned, "K=V" */
    char **steps; /* owned, "run=CMD" or "copy=SRC:DST" */
    char **warm;  /* owned */
    const char *ready;
    const char *language, *code, *token;
    uint64_t port;
    uint64_t ready_usec;
    const char *out;
    uint64_t rounds;
    const char *dockerfile, *tag, *target;
    char **build_args; /* owned, "K=V" */
    bool no_cache;
    uint64_t run_timeout_usec;
};
void options_done(struct options *o);

#define OPTIONS_NEVER_END UINT32_MAX

/*
 * Reads argv[0..argc): options in `allowed` go to `o`, the rest is moved to the front of argv in
 * order and counted in `ret_count`. "--" ends the options; so does the positional argument after
 * the first `end_after`, because it begins a command of the guest. -EINVAL and err on bad usage.
 */
int options_parse(struct options *o, uint64_t allowed, uint32_t end_after, int argc, char **argv,
                  uint32_t *ret_count, struct error *err);
