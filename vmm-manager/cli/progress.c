#include "cli/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"

#define SHOW_AFTER_USEC (2 * USEC_PER_SEC)
#define REDRAW_USEC (100 * USEC_PER_MSEC)
#define BAR_WIDTH 24

void progress_begin(struct progress *p, bool quiet, bool verbose, const char *step)
{
    memset(p, 0, sizeof(*p));
    p->terminal = !quiet && isatty(STDERR_FILENO) == 1;
    p->verbose = verbose && !p->terminal;
    p->percent = -1;
    p->start_usec = clock_now_usec();
    if (step)
        progress_update(p, step, -1);
    else
        (void)snprintf(p->step, sizeof(p->step), "waiting for the daemon");
}

void progress_update(struct progress *p, const char *step, int percent)
{
    p->percent = percent < 0 ? -1 : MIN(percent, 100);
    if (!step || strncmp(p->step, step, sizeof(p->step) - 1) == 0)
        return;
    (void)snprintf(p->step, sizeof(p->step), "%s", step);
    for (char *c = p->step; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    if (p->verbose)
        (void)fprintf(stderr, "hearth: %s\n", p->step);
}

void progress_format(const struct progress *p, uint64_t now_usec, char *text, unsigned size)
{
    static const char spinner[] = "|/-\\";
    uint64_t elapsed = now_usec - p->start_usec;
    char bar[BAR_WIDTH + 16] = "";

    if (p->percent >= 0) {
        unsigned filled = (unsigned)p->percent * BAR_WIDTH / 100;
        char cells[BAR_WIDTH + 1];

        for (unsigned i = 0; i < BAR_WIDTH; i++)
            cells[i] = i < filled ? '#' : '-';
        cells[BAR_WIDTH] = '\0';
        (void)snprintf(bar, sizeof(bar), " [%s] %3d%%", cells, p->percent);
    }
    (void)snprintf(text, size, "%c %s%s  %" PRIu64 " s", spinner[elapsed / REDRAW_USEC % 4],
                   p->step, bar, elapsed / USEC_PER_SEC);
}

void progress_tick(struct progress *p)
{
    uint64_t now = clock_now_usec();
    char text[192];

    if (!p->terminal || now - p->start_usec < SHOW_AFTER_USEC || now - p->drawn_usec < REDRAW_USEC)
        return;
    progress_format(p, now, text, sizeof(text));
    (void)fprintf(stderr, "\r%s\033[K", text);
    p->drawn = true;
    p->drawn_usec = now;
}

void progress_end(struct progress *p)
{
    if (p->drawn)
        (void)fputs("\r\033[K", stderr);
    p->drawn = false;
    p->terminal = false;
    p->verbose = false;
}
