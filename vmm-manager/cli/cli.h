#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "cli/http.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/wait.h"

#define EXIT_DONE 0
#define EXIT_FAILED 1
#define EXIT_USAGE 2

/* One run of the program. */
struct cli {
    struct options options;
    struct wait wait;
    struct progress progress;
    struct http http; /* to the daemon, kept between requests */
    bool told_build;  /* daemon_connect(): the remark about another build was made */
    bool accepted;    /* client_work(): the daemon has begun with it */
};

/* Parses, runs one verb, returns the exit status of the program. argv is rearranged. */
int cli_main(int argc, char **argv);

void cli_init(struct cli *cli);
void cli_done(struct cli *cli);

/* "hearth: text" on stderr, or {"error": …} on stdout with --json; returns the exit status. */
int cli_fail(struct cli *cli, const struct error *err);
/* A remark on stderr; nothing with --quiet. */
void cli_note(const struct cli *cli, const char *format, ...) _printf_(2, 3);

/* Starts and ends the progress line; waits draw it meanwhile. */
void cli_progress_begin(struct cli *cli, const char *step);
void cli_progress_end(struct cli *cli);
