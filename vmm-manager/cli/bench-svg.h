#pragma once

#include "base/buf.h"
#include "cli/bench-stats.h"

/* Histograms as SVG: one panel for each row, one under the other, on the same scale. */
#define SVG_PANELS_MAX 8u
#define SVG_MAX ((size_t)1024 * 1024)

struct svg_panel {
    const char *label;             /* weak */
    const struct samples *samples; /* weak; without values it is left out */
};

struct svg_chart {
    const char *title, *unit; /* weak; the unit stands at the axis */
    struct svg_panel panels[SVG_PANELS_MAX];
    size_t n_panels;
};

/*
 * Appends a document that stands for itself: no script, no font, no link; light and dark by what
 * the viewer prefers. The scale begins at zero; what lies beyond every panel's 99th percentile is
 * counted in the last bar. Foreign text is escaped. -ENOMEM or -ENOBUFS.
 */
int svg_write(struct buf *out, const struct svg_chart *chart);

/* The smallest of 1, 2, 5, 10, 20, … that divides `range` into at most `parts`. */
double svg_step(double range, unsigned parts);
/* "0.043", "12.5", "1200": as many digits as tell something; text holds at least 24 bytes. */
void svg_number(double value, char *text, size_t size);
