#include "cli/bench-svg.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/macros.h"

#define WIDTH 760.0
#define LEFT 64.0
#define RIGHT 24.0
#define TOP 52.0        /* title */
#define PANEL 150.0     /* with its label */
#define PANEL_HEAD 34.0 /* above the bars */
#define BOTTOM 58.0     /* axis and its name */
#define BINS 40u
#define TICKS 8u

static const char style[] =
    "<style>\n"
    "  svg { background: #ffffff; font: 13px system-ui, sans-serif; }\n"
    "  text { fill: #1f2328; } .dim { fill: #59636e; } .title { font-size: 17px; font-weight: 600; "
    "}\n"
    "  .back { fill: #ffffff; } .bar { fill: #3b74d1; } .more { fill: #b3540e; }\n"
    "  .axis { stroke: #59636e; } .grid { stroke: #d8dee4; } .middle { stroke: #b3540e; "
    "stroke-dasharray: 4 3; }\n"
    "  @media (prefers-color-scheme: dark) {\n"
    "    svg { background: #0d1117; } text { fill: #e6edf3; } .dim { fill: #9198a1; }\n"
    "    .back { fill: #0d1117; } .bar { fill: #6ca4f8; } .more { fill: #f0883e; }\n"
    "    .axis { stroke: #9198a1; } .grid { stroke: #30363d; } .middle { stroke: #f0883e; }\n"
    "  }\n"
    "</style>\n";

double svg_step(double range, unsigned parts)
{
    static const double factors[] = {1.0, 2.0, 5.0};
    double power = 1.0;

    if (!(range > 0.0) || parts == 0)
        return 1.0;
    while (power * parts >= range && power > 1e-12)
        power /= 10.0;
    for (unsigned i = 0; i < 64; i++, power *= 10.0) {
        for (size_t k = 0; k < ARRAY_SIZE(factors); k++) {
            if (power * factors[k] * parts >= range * (1.0 - 1e-9))
                return power * factors[k];
        }
    }
    return range;
}

void svg_number(double value, char *text, size_t size)
{
    int digits = value < 1.0 ? 3 : value < 10.0 ? 2 : value < 100.0 ? 1 : 0;

    (void)snprintf(text, size, "%.*f", digits, value);
}

/* An axis' number: no more digits than its steps need. */
static void tick_number(double value, double step, char *text, size_t size)
{
    int digits = 0;

    for (double s = step; s < 0.999999 && digits < 6; s *= 10.0)
        digits++;
    (void)snprintf(text, size, "%.*f", digits, value);
}

static int escaped(struct buf *b, const char *text)
{
    int r = 0;

    for (; *text && r >= 0; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '<')
            r = buf_append_string(b, "&lt;");
        else if (c == '>')
            r = buf_append_string(b, "&gt;");
        else if (c == '&')
            r = buf_append_string(b, "&amp;");
        else if (c == '"')
            r = buf_append_string(b, "&quot;");
        else if (c < 0x20 || c >= 0x7f) /* XML forbids some, and we say nothing of an encoding */
            r = buf_append_string(b, "?");
        else
            r = buf_append(b, text, 1);
    }
    return r;
}

static int text_at(struct buf *b, double x, double y, const char *class, const char *anchor,
                   const char *text)
{
    int r = buf_printf(b, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">", x, y,
                       class, anchor);

    if (r >= 0)
        r = escaped(b, text);
    return r < 0 ? r : buf_append_string(b, "</text>\n");
}

static int line_at(struct buf *b, double x1, double y1, double x2, double y2, const char *class)
{
    return buf_printf(b, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n",
                      x1, y1, x2, y2, class);
}

struct scale {
    double end, step; /* of the values; the axis begins at 0 */
};

static double x_of(const struct scale *scale, double value)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * MIN(value / scale->end, 1.0);
}

/* ---- one panel ---- */

static void count_bins(const struct samples *s, const struct scale *scale, size_t bins[static BINS])
{
    for (size_t i = 0; i < s->count; i++) {
        double at = s->values[i] / scale->end * BINS;

        bins[at < BINS ? (size_t)at : BINS - 1]++;
    }
}

static int draw_bars(struct buf *b, const struct svg_panel *panel, const struct scale *scale,
                     double base, size_t *ret_tallest)
{
    size_t bins[BINS] = {0}, beyond = 0, tallest = 1;
    double wide = (WIDTH - LEFT - RIGHT) / BINS, high = PANEL - PANEL_HEAD;
    int r = 0;

    count_bins(panel->samples, scale, bins);
    for (size_t i = 0; i < panel->samples->count; i++)
        beyond += panel->samples->values[i] >= scale->end;
    for (size_t i = 0; i < BINS; i++)
        tallest = MAX(tallest, bins[i]);
    for (size_t i = 0; i < BINS && r >= 0; i++) {
        double tall = high * (double)bins[i] / (double)tallest;

        if (bins[i] == 0)
            continue;
        r = buf_printf(b,
                       "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"%s\">"
                       "<title>%zu</title></rect>\n",
                       LEFT + (double)i * wide + 0.5, base - tall, wide - 1.0, tall,
                       i == BINS - 1 && beyond > 0 ? "more" : "bar", bins[i]);
    }
    *ret_tallest = tallest;
    return r;
}

static int draw_panel(struct buf *b, const struct svg_panel *panel, const struct svg_chart *chart,
                      const struct scale *scale, double top)
{
    double base = top + PANEL, middle;
    struct summary sum;
    char text[160], p50[24], p95[24], p99[24];
    size_t tallest = 1;
    int r = samples_summary(panel->samples, &sum);

    if (r < 0)
        return r;
    svg_number(sum.p50, p50, sizeof(p50));
    svg_number(sum.p95, p95, sizeof(p95));
    svg_number(sum.p99, p99, sizeof(p99));
    middle = x_of(scale, sum.p50);
    (void)snprintf(text, sizeof(text), "%zu x, p50 %s, p95 %s, p99 %s %s", sum.count, p50, p95, p99,
                   chart->unit);
    r = text_at(b, LEFT, top + 20, "label", "start", panel->label);
    if (r >= 0)
        r = text_at(b, WIDTH - RIGHT, top + 20, "dim", "end", text);
    if (r >= 0)
        r = line_at(b, LEFT, top + PANEL_HEAD, WIDTH - RIGHT, top + PANEL_HEAD, "grid");
    if (r >= 0)
        r = draw_bars(b, panel, scale, base, &tallest);
    if (r >= 0)
        r = line_at(b, middle, top + PANEL_HEAD, middle, base, "middle");
    if (r >= 0)
        r = line_at(b, LEFT, base, WIDTH - RIGHT, base, "axis");
    (void)snprintf(text, sizeof(text), "%zu", tallest);
    if (r >= 0)
        r = text_at(b, LEFT - 8, top + PANEL_HEAD + 4, "dim", "end", text);
    return r < 0 ? r : text_at(b, LEFT - 8, base, "dim", "end", "0");
}

/* ---- all of it ---- */

static int find_scale(const struct svg_chart *chart, struct scale *ret)
{
    double end = 0.0;

    for (size_t i = 0; i < chart->n_panels; i++) {
        struct summary sum;
        int r = samples_summary(chart->panels[i].samples, &sum);

        if (r < 0)
            return r;
        end = MAX(end, sum.p99);
    }
    if (!(end > 0.0))
        end = 1.0;
    ret->step = svg_step(end, TICKS);
    ret->end = ret->step;
    while (ret->end <= end)
        ret->end += ret->step;
    return 0;
}

static int draw_axis(struct buf *b, const struct svg_chart *chart, const struct scale *scale,
                     double base)
{
    char text[96];
    int r = 0;

    for (unsigned i = 0; i <= TICKS + 1 && r >= 0; i++) {
        double value = scale->step * i, x = x_of(scale, value);

        if (value > scale->end * 1.000001)
            break;
        tick_number(value, scale->step, text, sizeof(text));
        r = line_at(b, x, base, x, base + 5, "axis");
        if (r >= 0)
            r = text_at(b, x, base + 20, "dim", "middle", text);
    }
    (void)snprintf(text, sizeof(text), "%s (the last bar: this and above)", chart->unit);
    return r < 0 ? r : text_at(b, (LEFT + WIDTH - RIGHT) / 2, base + 42, "dim", "middle", text);
}

static int draw_all(struct buf *b, const struct svg_chart *chart, const struct scale *scale)
{
    double top = TOP;
    int r = text_at(b, LEFT, 30, "title", "start", chart->title);

    for (size_t i = 0; i < chart->n_panels && r >= 0; i++) {
        if (chart->panels[i].samples->count == 0)
            continue;
        r = draw_panel(b, &chart->panels[i], chart, scale, top);
        top += PANEL;
    }
    if (r >= 0)
        r = buf_printf(b,
                       "<text x=\"16\" y=\"%.1f\" class=\"dim\" text-anchor=\"middle\" "
                       "transform=\"rotate(-90 16 %.1f)\">how often</text>\n",
                       (TOP + top) / 2, (TOP + top) / 2);
    return r < 0 ? r : draw_axis(b, chart, scale, top);
}

int svg_write(struct buf *out, const struct svg_chart *chart)
{
    size_t shown = 0;
    struct scale scale;
    double height;
    int r = find_scale(chart, &scale);

    for (size_t i = 0; i < chart->n_panels; i++)
        shown += chart->panels[i].samples->count > 0;
    height = TOP + PANEL * (double)shown + BOTTOM;
    if (r >= 0)
        r = buf_printf(out,
                       "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                       "viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n<title>",
                       WIDTH, height, WIDTH, height);
    if (r >= 0)
        r = escaped(out, chart->title);
    if (r >= 0)
        r = buf_printf(out, "</title>\n%s<rect class=\"back\" width=\"%.0f\" height=\"%.0f\"/>\n",
                       style, WIDTH, height);
    if (r >= 0)
        r = draw_all(out, chart, &scale);
    return r < 0 ? r : buf_append_string(out, "</svg>\n");
}
