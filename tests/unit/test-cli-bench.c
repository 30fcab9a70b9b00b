#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/strv.h"
#include "cli/bench-stats.h"
#include "cli/bench-svg.h"
#include "harness/test.h"

static void fill(struct samples *s, const double *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ASSERT_OK(samples_add(s, values[i]));
}

TEST(summary_of_one_value_is_that_value)
{
    struct samples s = {0};
    struct summary sum;

    ASSERT_OK(samples_summary(&s, &sum));
    ASSERT_EQ(sum.count, 0);
    ASSERT_OK(samples_add(&s, 3.5));
    ASSERT_OK(samples_summary(&s, &sum));
    ASSERT_EQ(sum.count, 1);
    ASSERT_TRUE(sum.min == 3.5 && sum.p50 == 3.5 && sum.p95 == 3.5 && sum.p99 == 3.5 &&
                sum.max == 3.5);
    samples_done(&s);
}

TEST(percentiles_are_of_the_nearest_rank)
{
    struct samples s = {0};
    struct summary sum;

    for (unsigned i = 0; i < 100; i++) /* 1 to 100, out of order */
        ASSERT_OK(samples_add(&s, (double)(i * 37 % 100 + 1)));
    ASSERT_OK(samples_summary(&s, &sum));
    ASSERT_TRUE(sum.min == 1.0 && sum.max == 100.0);
    ASSERT_TRUE(sum.p50 == 50.0);
    ASSERT_TRUE(sum.p95 == 95.0);
    ASSERT_TRUE(sum.p99 == 99.0);
    ASSERT_TRUE(s.values[1] == 38.0); /* the order of measuring stays */
    samples_done(&s);
}

TEST(median_of_few_is_one_of_them)
{
    struct samples s = {0};
    struct summary sum;

    fill(&s, (const double[]){9.0, 1.0, 4.0}, 3);
    ASSERT_OK(samples_summary(&s, &sum));
    ASSERT_TRUE(sum.p50 == 4.0 && sum.p95 == 9.0 && sum.p99 == 9.0);
    ASSERT_OK(samples_add(&s, 2.0));
    ASSERT_OK(samples_summary(&s, &sum));
    ASSERT_TRUE(sum.p50 == 2.0);
    samples_done(&s);
}

TEST(values_that_are_none_are_refused_and_their_number_has_a_limit)
{
    struct samples s = {0};

    ASSERT_ERR(samples_add(&s, -1.0), EINVAL);
    ASSERT_ERR(samples_add(&s, (double)NAN), EINVAL);
    ASSERT_EQ(s.count, 0);
    for (unsigned i = 0; i < SAMPLES_MAX; i++)
        ASSERT_OK(samples_add(&s, 0.0));
    ASSERT_ERR(samples_add(&s, 0.0), ENOBUFS);
    samples_done(&s);
}

TEST(steps_of_an_axis_are_round)
{
    static const struct {
        double range;
        unsigned parts;
        double step;
    } cases[] = {{8.0, 8, 1.0},     {9.0, 8, 2.0}, {0.043, 8, 0.01}, {1200.0, 8, 200.0},
                 {100.0, 10, 10.0}, {3.0, 1, 5.0}, {0.0, 8, 1.0}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        double step = svg_step(cases[i].range, cases[i].parts);

        ASSERT_TRUE(fabs(step - cases[i].step) < cases[i].step * 1e-9);
    }
}

TEST(numbers_have_the_digits_that_tell_something)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.0431, "0.043"}, {1.234, "1.23"}, {12.34, "12.3"}, {1234.4, "1234"}};
    char text[24];

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        svg_number(cases[i].value, text, sizeof(text));
        ASSERT_STREQ(text, cases[i].text);
    }
}

/* Elements are closed in order, and nothing but them has an angle bracket. */
static void check_nesting(const char *xml)
{
    char open[16][32];
    size_t depth = 0, elements = 0;

    for (const char *at = strchr(xml, '<'); at; at = strchr(at + 1, '<')) {
        const char *end = strchr(at, '>');
        size_t length;

        ASSERT_TRUE(end);
        if (at[1] == '/') {
            length = (size_t)(end - at) - 2;
            ASSERT_TRUE(depth > 0);
            depth--;
            ASSERT_EQ(strlen(open[depth]), length);
            ASSERT_MEMEQ(open[depth], at + 2, length);
            continue;
        }
        length = strcspn(at + 1, " />\n");
        ASSERT_TRUE(length > 0 && length < sizeof(open[0]));
        elements++;
        if (end[-1] == '/')
            continue;
        ASSERT_TRUE(depth < ARRAY_SIZE(open));
        (void)snprintf(open[depth++], sizeof(open[0]), "%.*s", (int)length, at + 1);
    }
    ASSERT_EQ(depth, 0);
    ASSERT_TRUE(elements > 10);
}

static unsigned count_text(const char *text, const char *part)
{
    unsigned n = 0;

    for (const char *at = strstr(text, part); at; at = strstr(at + 1, part))
        n++;
    return n;
}

TEST(picture_is_well_formed_and_labelled)
{
    struct samples fast = {0}, slow = {0}, none = {0};
    struct buf b = {0};

    for (unsigned i = 0; i < 200; i++) {
        ASSERT_OK(samples_add(&fast, 0.020 + i * 0.0001));
        ASSERT_OK(samples_add(&slow, 0.040 + i * 0.0002));
    }
    ASSERT_OK(samples_add(&slow, 50.0)); /* must not squeeze the others into one bar */
    const struct svg_chart chart = {
        .title = "Claim <from> \"A & B\"\x01",
        .unit = "ms",
        .panels = {{"empty", &fast}, {"nothing", &none}, {"claim", &slow}},
        .n_panels = 3,
    };
    buf_init(&b, SVG_MAX);
    ASSERT_OK(svg_write(&b, &chart));
    const char *text = buf_string(&b);
    ASSERT_EQ(strlen(text), b.size);
    check_nesting(text);
    ASSERT_TRUE(strstr(text, "Claim &lt;from&gt; &quot;A &amp; B&quot;?"));
    ASSERT_TRUE(strstr(text, "prefers-color-scheme: dark"));
    ASSERT_TRUE(strstr(text, ">ms ("));
    ASSERT_TRUE(strstr(text, ">how often<"));
    ASSERT_TRUE(strstr(text, ">empty<") && strstr(text, ">claim<"));
    ASSERT_FALSE(strstr(text, ">nothing<"));
    ASSERT_EQ(count_text(text, "class=\"more\""), 1);
    ASSERT_TRUE(count_text(text, "class=\"bar\"") > 20);
    ASSERT_EQ(count_text(text, "class=\"middle\""), 2);
    buf_done(&b);
    samples_done(&fast);
    samples_done(&slow);
}

TEST(picture_of_equal_or_zero_values_is_drawn)
{
    static const double values[] = {0.0, 7.0};

    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        struct samples s = {0};
        struct buf b = {0};

        fill(&s, (const double[]){values[i], values[i], values[i]}, 3);
        const struct svg_chart chart = {"t", "ms", {{"row", &s}}, 1};
        buf_init(&b, SVG_MAX);
        ASSERT_OK(svg_write(&b, &chart));
        check_nesting(buf_string(&b));
        ASSERT_FALSE(strstr(buf_string(&b), "nan"));
        ASSERT_FALSE(strstr(buf_string(&b), "inf"));
        buf_done(&b);
        samples_done(&s);
    }
}

TEST(picture_has_a_limit)
{
    struct samples s = {0};
    struct buf b = {0};

    ASSERT_OK(samples_add(&s, 1.0));
    const struct svg_chart chart = {"t", "ms", {{"row", &s}}, 1};
    buf_init(&b, 500);
    ASSERT_ERR(svg_write(&b, &chart), ENOBUFS);
    buf_done(&b);
    samples_done(&s);
}
