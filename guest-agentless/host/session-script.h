#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "host/session-control.h"
#include "host/session.h"

/* The part of a session that runs in the guest's shell: the loop, and the lines it is fed. */

/* One shell that an image may have. */
struct session_shell {
    const char *path;
    const char *applet; /* argument that makes it a shell ("sh" of busybox), or NULL */
    bool bash;
};

#define SESSION_ARGV_MAX 9u

/* The signal that takes the shell out of a command, unless the user has changed that. */
int session_script_interrupt(enum session_kind kind);

/* Tried in this order; ends with a NULL path. */
extern const struct session_shell session_shells[];

/* Fills argv, NULL-terminated; the strings are static or the shell's. */
void session_script_argv(const struct session_shell *shell, enum session_kind kind,
                         const char *argv[static SESSION_ARGV_MAX]);

/* A text goes to bash in blocks of SESSION_BLOCK bytes, or in a line as to every shell. */
enum session_takes {
    SESSION_TAKES_UNKNOWN, /* a shell of an earlier daemon: what all understand */
    SESSION_TAKES_LINES,
    SESSION_TAKES_BLOCKS,
};

/* The longest line a command can become: every byte may take six. */
#define SESSION_LINE_MAX (6u * SESSION_TEXT_MAX + 4096u)

/* Appends the line that runs `text` as command `number`, its stdin from `input` (NULL: none). */
int session_script_run(struct buf *line, enum session_takes takes, uint64_t number,
                       const char *input, bool list_traps, const char *text, size_t size);

/* Appends the line that sets what the user wanted to run at the shell's end; `word` is quoted. */
int session_script_trap(struct buf *line, enum session_takes takes, const char *word, size_t size);

/* Appends a line that is answered by its number; ends a half-sent line before it. */
int session_script_probe(struct buf *line, uint64_t number);

/* Appends the line that puts a dead shell's state into this one, as command 0. */
int session_script_restore(struct buf *line, enum session_takes takes, bool bash, const char *cwd,
                           const char *dump, size_t size);

/* True when the text may change the shell's traps or tracing, now or by a function it defines. */
bool session_script_may_trap(const char *text);

/*
 * Reads the shell's list of traps. Returns 1 and the quoted word of a foreign EXIT trap, which may
 * be empty (ours was removed), or 0 when ours is in place.
 */
int session_script_foreign_trap(const char *list, size_t size, const char **ret_word,
                                size_t *ret_size);
