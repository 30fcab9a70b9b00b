#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/strv.h"
#include "cli/bench-svg.h"
#include "cli/bench.h"
#include "cli/client.h"
#include "cli/text.h"

/* The ratio of its median to that of the row it refers to; negative: none. */
static double ratio_of(const struct bench_group *g, const struct bench_row *row)
{
    struct summary own, other;

    if (row->against < 0 || samples_summary(&row->samples, &own) < 0 ||
        samples_summary(&g->rows[row->against].samples, &other) < 0 || own.count == 0 ||
        !(other.p50 > 0.0))
        return -1.0;
    return own.p50 / other.p50;
}

/* ---- table ---- */

static const char *number(double value, char text[static 24])
{
    svg_number(value, text, 24);
    return text;
}

static int add_row(struct table *t, const struct bench_group *g, const struct bench_row *row)
{
    char count[24], min[24], p50[24], p95[24], p99[24], max[24], ratio[24] = "", reach[24] = "";
    struct summary sum;
    int r = samples_summary(&row->samples, &sum);

    if (r < 0 || sum.count == 0)
        return r;
    (void)snprintf(count, sizeof(count), "%zu", sum.count);
    if (ratio_of(g, row) >= 0.0)
        (void)snprintf(ratio, sizeof(ratio), "%.2fx", ratio_of(g, row));
    if (row->reach > 0.0 && ratio[0])
        (void)snprintf(reach, sizeof(reach), "<=%.1fx", row->reach);
    return table_add(t, (const char *const[]){row->name, count, number(sum.min, min),
                                              number(sum.p50, p50), number(sum.p95, p95),
                                              number(sum.p99, p99), number(sum.max, max), row->unit,
                                              ratio, reach});
}

static int print_table(const struct bench_group *groups, size_t n_groups)
{
    static const char *const heads[] = {"MEASURED", "COUNT", "MIN",  "P50",   "P95",
                                        "P99",      "MAX",   "UNIT", "RATIO", "REACH"};
    struct table t;
    int r;

    table_init(&t, ARRAY_SIZE(heads));
    r = table_add(&t, heads);
    for (size_t i = 0; i < n_groups && r >= 0; i++) {
        for (size_t k = 0; k < groups[i].n_rows && r >= 0; k++)
            r = add_row(&t, &groups[i], &groups[i].rows[k]);
    }
    if (r >= 0)
        r = table_print(&t);
    table_done(&t);
    for (size_t i = 0; i < n_groups; i++) {
        if (groups[i].note[0])
            (void)printf("%s: %s\n", groups[i].measure->name, groups[i].note);
    }
    return ferror(stdout) ? -EPIPE : r;
}

/* ---- JSON ---- */

static json_t *row_to_json(const struct bench_group *g, const struct bench_row *row)
{
    struct summary sum;
    json_t *json;

    if (samples_summary(&row->samples, &sum) < 0)
        return NULL;
    json = json_pack("{s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:f}", "name", row->name, "unit",
                     row->unit, "count", (json_int_t)sum.count, "min", sum.min, "p50", sum.p50,
                     "p95", sum.p95, "p99", sum.p99, "max", sum.max);
    if (json && ratio_of(g, row) >= 0.0) {
        (void)json_object_set_new(json, "ratio", json_real(ratio_of(g, row)));
        (void)json_object_set_new(json, "against", json_string(g->rows[row->against].name));
        if (row->reach > 0.0)
            (void)json_object_set_new(json, "reach", json_real(row->reach));
    }
    return json;
}

static json_t *group_to_json(const struct bench_group *g)
{
    json_t *rows = json_array();
    json_t *json = json_pack("{s:s, s:s, s:o}", "name", g->measure->name, "title",
                             g->measure->title, "rows", rows);

    for (size_t i = 0; json && i < g->n_rows; i++) {
        if (g->rows[i].samples.count > 0)
            (void)json_array_append_new(rows, row_to_json(g, &g->rows[i]));
    }
    if (json && g->note[0])
        (void)json_object_set_new(json, "note", json_string(g->note));
    if (json && g->failure.errnum)
        (void)json_object_set_new(json, "error",
                                  json_pack("{s:s, s:s}", "code", error_code_name(g->failure.code),
                                            "message", g->failure.text));
    return json;
}

static int print_json(struct bench *b, const struct bench_group *groups, size_t n_groups)
{
    json_auto_t *json = json_pack(
        "{s:s, s:s, s:s, s:s, s:I}", "image", client_string(b->sandbox, "image"), "template",
        b->template_id, "backend", client_string(b->sandbox, "backend"), "accelerator",
        client_string(b->sandbox, "accelerator"), "rounds", (json_int_t)b->rounds);
    json_t *list = json_array();

    for (size_t i = 0; i < n_groups; i++)
        (void)json_array_append_new(list, group_to_json(&groups[i]));
    if (!json || json_object_set_new(json, "groups", list) < 0)
        return -ENOMEM;
    return client_print_json(json);
}

int bench_print(struct bench *b, const struct bench_group *groups, size_t n_groups)
{
    return b->cli->options.json ? print_json(b, groups, n_groups) : print_table(groups, n_groups);
}

/* ---- pictures ---- */

static int draw_group(const struct bench_group *g, const char *dir, struct error *err)
{
    _cleanup_free_ char *path = string_printf("%s/%s.svg", dir, g->measure->name);
    _cleanup_buf_ struct buf svg = {0};
    struct svg_chart chart = {.title = g->measure->title};
    int r;

    for (size_t i = 0; i < g->n_rows && chart.n_panels < SVG_PANELS_MAX; i++) {
        const struct bench_row *row = &g->rows[i];

        if (row->samples.count == 0 || (chart.unit && strcmp(chart.unit, row->unit) != 0))
            continue; /* one scale, one unit */
        chart.unit = row->unit;
        chart.panels[chart.n_panels++] = (struct svg_panel){row->name, &row->samples};
    }
    if (chart.n_panels == 0)
        return 0;
    buf_init(&svg, SVG_MAX);
    r = svg_write(&svg, &chart);
    if (r < 0 || !path)
        return error_set(err, ENOMEM, "a picture: out of memory");
    return file_write_atomic(path, buf_string(&svg), svg.size, 0644, err);
}

int bench_draw(const struct bench_group *groups, size_t n_groups, const char *dir,
               struct error *err)
{
    int r = dir_create(dir, 0755, err);

    for (size_t i = 0; i < n_groups && r >= 0; i++)
        r = draw_group(&groups[i], dir, err);
    return r;
}
