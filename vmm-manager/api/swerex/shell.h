#pragma once

#include "api/swerex/rex-private.h"
#include "base/buf.h"
#include "host/exec.h"

/*
 * One interactive bash on a terminal. Commands do not go through the terminal, whose lines are
 * short, but through a pipe of their own; a second pipe tells what the shell does, with the
 * offset that the terminal's output had reached. Both are out of the way of commands.
 */
#define SHELL_OUTPUT_MAX (64u * 1024u * 1024u) /* kept until somebody asks; the oldest goes */

/* What the shell said on its pipe. */
enum shell_word {
    SHELL_BEGUN,  /* command `number` is being evaluated */
    SHELL_ENDED,  /* it ended with `status` */
    SHELL_PROMPT, /* the shell is back at its prompt; `status` is that of what ran last */
};
struct shell_event {
    enum shell_word word;
    uint64_t number;
    int status;
    uint64_t offset; /* of the terminal's output */
};

struct shell_ops {
    void (*event)(void *owner, const struct shell_event *event);
    /* More output; shell_output() has it. */
    void (*output)(void *owner);
    /* It is over, or out of reach for now. */
    void (*gone)(void *owner, const struct error *reason);
};

struct rex_shell {
    struct api_swerex *rex; /* weak */
    struct rex_shell *prev, *next;
    char sandbox_id[65];
    char *name;                  /* owned */
    struct sandbox_watch *watch; /* owned; NULL: the console went */
    struct exec *exec;           /* owned; NULL: not attached */
    uint64_t process_id;
    uint64_t received[EXEC_STREAMS_MAX]; /* offsets */
    struct buf output;                   /* of the terminal, from `at` on */
    uint64_t at;
    struct buf words; /* of the pipe, not whole yet */
    char word[64];
    size_t n_word;
    struct buf input; /* for the shell, until it takes it: see shell_type(), shell_send() */
    struct buf lines;
    uint64_t number; /* of the last command */
    unsigned owed;   /* prompts still to come of what has been answered */
    bool dead;
    const struct shell_ops *ops; /* weak: who waits; NULL: nobody */
    void *owner;
};

int rex_shell_new(struct api_swerex *rex, struct sandbox *sb, struct console *c, const char *name,
                  struct rex_shell **ret, struct error *err);
/* Also ends the process. */
void rex_shell_close(struct rex_shell *s);
struct rex_shell *rex_shell_find(struct api_swerex *rex, const char *sandbox_id, const char *name);
/* After the console went and came back. */
int rex_shell_attach(struct rex_shell *s, struct sandbox *sb, struct console *c, struct error *err);
void rex_shell_wait(struct rex_shell *s, const struct shell_ops *ops, void *owner);

/* Text as from the keyboard. */
int rex_shell_type(struct rex_shell *s, const char *text);
/* A command for the pipe: evaluated when the shell is at its prompt. Its number. */
int rex_shell_send(struct rex_shell *s, const char *command, uint64_t *ret_number);

/* Output from `at` up to an offset, or all there is; then it is forgotten. */
const void *rex_shell_output(const struct rex_shell *s, size_t *ret_size);
void rex_shell_consume(struct rex_shell *s, size_t size);
