#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "host-guest.h"
#include "host/session-internal.h"
#include "host/session.h"

/* What one view of a command has seen. */
struct seen_view {
    struct session_view *v; /* owned */
    struct buf out[3];
    uint64_t offset[3]; /* of the next byte */
    bool gap;           /* bytes were missing */
    bool hold;          /* consumes nothing */
    bool free_in_output, free_in_result;
    unsigned started, done;
    uint64_t start[3];
    struct session_result result;
    char cwd[4096];
    struct error err;
};

/* A session on a real guest server, and what its owner was told. */
struct fixture {
    struct guest guest;
    struct session *session; /* owned */
    struct session_record record;
    uint8_t line[SESSION_RECORD_LINE_MAX]; /* of the record */
    unsigned records;
    enum session_state state;
    struct error err;
    unsigned killed;
};

/* The shells of this machine, one list each; ends with an empty one. */
struct shell_choice {
    const char *name;
    struct session_shell list[2];
};
extern const struct shell_choice shell_choices[];

void fixture_start(struct fixture *f, const struct shell_choice *shell,
                   const struct session_spec *spec);
void fixture_stop(struct fixture *f);
/* As after a daemon's death: session and console go without a word, a new pair takes over. */
void fixture_adopt(struct fixture *f, const struct session_spec *spec);

void seen_view_init(struct seen_view *seen);
void seen_view_done(struct seen_view *seen);
extern const struct session_view_callbacks seen_view_callbacks;

/* Starts a command. */
void run_start(struct fixture *f, struct seen_view *seen, const char *text, uint64_t timeout_msec,
               bool with_stdin);
void run_wait(struct fixture *f, struct seen_view *seen);
/* Runs a command to its end; free with seen_view_done(). */
void run(struct fixture *f, struct seen_view *seen, const char *text);
/* Runs it and compares all of its stdout and its exit code. */
void expect_at(const char *file, int line, struct fixture *f, const char *text, const char *out,
               int exit_code);
#define EXPECT(f, text, out, exit_code) expect_at(__FILE__, __LINE__, f, text, out, exit_code)

/* Runs the test for every shell that is installed. */
#define FOR_EACH_SHELL(choice)                                                                     \
    for (const struct shell_choice *choice = shell_choices; choice->name; choice++)                \
        if (access(choice->list[0].path, X_OK) == 0)
