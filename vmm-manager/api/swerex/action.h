#pragma once

#include <regex.h>

#include "api/swerex/shell.h"

/*
 * One request that waits for a shell: a command, an interactive line, an interrupt or a session's
 * start. Owned by its request.
 */
#define ACTION_EXPECT_MAX 32u

enum action_kind {
    ACTION_CREATE,
    ACTION_COMMAND,
    ACTION_INTERACTIVE,
    ACTION_QUIT, /* of something interactive */
    ACTION_INTERRUPT,
};

enum action_check { CHECK_RAISE, CHECK_SILENT, CHECK_IGNORE };

struct action {
    struct request *req;     /* weak */
    struct rex_shell *shell; /* weak; NULL: gone */
    struct exec *syntax;     /* owned: bash -n */
    struct sandbox_watch *watch;
    struct buf syntax_out, syntax_err;
    enum action_kind kind;
    enum action_check check;
    char *command, *error_msg; /* owned */
    char *expect_text[ACTION_EXPECT_MAX];
    regex_t expect[ACTION_EXPECT_MAX];
    size_t n_expect;
    double timeout_sec;   /* negative: none */
    struct source *timer; /* owned */
    uint64_t number;      /* of the command */
    bool begun, ended;
    unsigned stale; /* prompts of what was before */
    int status;
    uint64_t end_offset;
    unsigned retries; /* of an interrupt, left */
    unsigned phase;   /* of an interrupt: ^C, ^Z, kill, quiet */
};

/* Fills in from the body; false: the answer is out. */
bool action_decode(struct action *a, const json_t *body);
