#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * One line on stderr for what takes long. On a terminal it appears after two seconds and goes away
 * at the end; elsewhere nothing is written, unless `verbose`: then one plain line a step.
 */
struct progress {
    bool terminal;
    bool verbose;
    bool drawn;
    char step[96];       /* printable */
    int percent;         /* -1: unknown */
    uint64_t start_usec; /* monotonic */
    uint64_t drawn_usec;
};

/* `step` NULL: waiting for the daemon, which is no step worth a line of its own. */
void progress_begin(struct progress *p, bool quiet, bool verbose, const char *step);
/* `step` may come from the daemon: control bytes are replaced. NULL keeps the old one. */
void progress_update(struct progress *p, const char *step, int percent);
/* Draws when it is time. */
void progress_tick(struct progress *p);
/* Takes the line away. Safe to call twice and on a zeroed struct. */
void progress_end(struct progress *p);

/* The line as it is drawn, without control sequences; for tests. */
void progress_format(const struct progress *p, uint64_t now_usec, char *text, unsigned size);
