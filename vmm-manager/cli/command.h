#pragma once

#include <stdint.h>
#include <stdio.h>

#include "cli/cli.h"

#define ARGS_ANY UINT32_MAX

/* What the shell completes an argument with. */
enum completion {
    COMPLETE_NOTHING,
    COMPLETE_SANDBOX,
    COMPLETE_IMAGE,
    COMPLETE_TEMPLATE,
    COMPLETE_FILE,
    COMPLETE_SANDBOX_OR_FILE,
    COMPLETE_VERB,
};

struct command {
    const char *name;   /* "run", or "session run" */
    const char *args;   /* as help prints them */
    uint32_t min, max;  /* positional arguments */
    uint64_t options;   /* beside the global ones */
    uint32_t end_after; /* positional arguments before a guest command begins; else NEVER_END */
    enum completion completion;
    /* Returns the exit status of the program. args[count] is NULL. */
    int (*run)(struct cli *cli, char **args, uint32_t count);
    const char *help;    /* one line */
    const char *details; /* more of it; NULL: none */
    const char *alias;   /* another name; NULL: none */
};

extern const struct command commands[];
extern const unsigned command_count;

/* The verb that argv begins with, and how many words name it; NULL when there is none. */
const struct command *command_find(int argc, char **argv, int *ret_words);
/* Is it the first word of verbs with two? */
bool command_is_group(const char *word);

/* Help of everything, of a group, or of one verb; false when `topic` is neither. */
void help_print(FILE *to);
bool help_print_topic(FILE *to, const char *topic);
void help_print_command(FILE *to, const struct command *command);
void help_print_completion(FILE *to);
void help_print_markdown(FILE *to);
