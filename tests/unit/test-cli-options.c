#include "cli/options.h"

#include <stdarg.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/strv.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "harness/test.h"

static char **words(const char *first, ...)
{
    static char *v[16];
    va_list args;
    unsigned n = 0;

    va_start(args, first);
    for (const char *s = first; s && n < 15; s = va_arg(args, const char *))
        v[n++] = (char *)(uintptr_t)s;
    va_end(args);
    v[n] = NULL;
    return v;
}

static int parse(struct options *o, uint64_t allowed, uint32_t end_after, char **argv,
                 uint32_t *count, struct error *err)
{
    *o = (struct options){0};
    *err = (struct error){0};
    return options_parse(o, allowed, end_after, (int)strv_length(argv), argv, count, err);
}

TEST(options_may_stand_before_and_behind_arguments)
{
    struct options o;
    struct error err;
    uint32_t n;
    char **v = words("a", "--json", "b", "-q", NULL);

    ASSERT_OK(parse(&o, OPT_GLOBAL, OPTIONS_NEVER_END, v, &n, &err));
    ASSERT_EQ(n, 2);
    ASSERT_STREQ(v[0], "a");
    ASSERT_STREQ(v[1], "b");
    ASSERT_TRUE(o.json && o.quiet);
}

TEST(a_guest_command_keeps_its_own_options)
{
    struct options o;
    struct error err;
    uint32_t n;
    char **v = words("-t", "ls", "-t", "--json", NULL);

    ASSERT_OK(parse(&o, OPT_GLOBAL | OPT_STDIO, 0, v, &n, &err));
    ASSERT_EQ(n, 3);
    ASSERT_STREQ(v[1], "-t");
    ASSERT_TRUE(o.tty && !o.json);

    v = words("id", "-t", "--", "-x", "--", NULL);
    ASSERT_OK(parse(&o, OPT_GLOBAL | OPT_STDIO, 1, v, &n, &err));
    ASSERT_EQ(n, 3);
    ASSERT_STREQ(v[0], "id");
    ASSERT_STREQ(v[1], "-x");
    ASSERT_STREQ(v[2], "--");
}

TEST(letters_combine_and_take_values_in_both_forms)
{
    struct options o;
    struct error err;
    uint32_t n;
    char **v = words("-it", "-uroot", "-w", "/tmp", "-eA=1", "--env=B=2=3", NULL);

    ASSERT_OK(parse(&o, OPT_SPEC | OPT_STDIO, OPTIONS_NEVER_END, v, &n, &err));
    ASSERT_TRUE(o.interactive && o.tty);
    ASSERT_STREQ(o.user, "root");
    ASSERT_STREQ(o.workdir, "/tmp");
    ASSERT_STREQ(o.env[0], "A=1");
    ASSERT_STREQ(o.env[1], "B=2=3");
    options_done(&o);
}

TEST(env_without_value_passes_ours_on_and_nothing_when_unset)
{
    struct options o;
    struct error err;
    uint32_t n;
    char **v = words("--env", "HEARTH_TEST_SET", "--env", "HEARTH_TEST_UNSET", NULL);

    ASSERT_OK(setenv("HEARTH_TEST_SET", "here", 1));
    ASSERT_OK(parse(&o, OPT_SPEC, OPTIONS_NEVER_END, v, &n, &err));
    ASSERT_EQ(strv_length(o.env), 1);
    ASSERT_STREQ(o.env[0], "HEARTH_TEST_SET=here");
    options_done(&o);
}

TEST(sizes_and_times_have_units)
{
    struct options o;
    struct error err;
    uint32_t n;
    char **v = words("--memory", "512", "--disk=2G", "--cpus", "3", "--timeout", "1500ms", NULL);

    ASSERT_OK(parse(&o, OPT_SPEC | OPT(TIMEOUT), OPTIONS_NEVER_END, v, &n, &err));
    ASSERT_EQ(o.memory_mib, 512);
    ASSERT_EQ(o.disk_mib, 2048);
    ASSERT_EQ(o.cpus, 3);
    ASSERT_EQ(o.timeout_usec, 1500 * USEC_PER_MSEC);
    ASSERT_EQ(o.lifetime_usec, 0);
}

TEST(bad_usage_names_the_option)
{
    static const char *const cases[][3] = {
        {"--nope", NULL, "--nope"},    {"-z", NULL, "-z"},
        {"--cpus", NULL, "--cpus"},    {"--cpus", "0", "--cpus"},
        {"--cpus", "x", "'x'"},        {"--memory", "banana", "banana"},
        {"--memory", "0", "--memory"}, {"--timeout", "0", "--timeout"},
        {"--timeout", "5y", "'5y'"},   {"--json=1", NULL, "--json"},
        {"--user", "", "--user"},      {"--env", "=x", "--env"},
        {"--env", "", "--env"},        {"-u", NULL, "-u"},
        {"--cpus=-1", NULL, "'-1'"},   {"--memory", "99999999999999999999G", "--memory"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct options o;
        struct error err;
        uint32_t n;
        char **v = words(cases[i][0], cases[i][1], NULL);

        ASSERT_ERR(parse(&o, OPT_GLOBAL | OPT_SPEC | OPT(TIMEOUT), OPTIONS_NEVER_END, v, &n, &err),
                   EINVAL);
        ASSERT_TRUE(strstr(err.text, cases[i][2]) != NULL);
        options_done(&o);
    }
}

TEST(an_option_of_another_verb_is_unknown)
{
    struct options o;
    struct error err;
    uint32_t n;
    char **v = words("--image", "x", NULL);

    ASSERT_ERR(parse(&o, OPT_GLOBAL, OPTIONS_NEVER_END, v, &n, &err), EINVAL);
}

TEST(every_option_has_a_name_and_help_and_no_verb_has_two_of_one_name)
{
    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        ASSERT_TRUE(option_defs[i].name && option_defs[i].help);
        ASSERT_EQ(option_defs[i].type == OPTION_TYPE_FLAG, option_defs[i].value == NULL);
    }
    for (unsigned c = 0; c < command_count; c++) {
        uint64_t set = commands[c].options | OPT_GLOBAL;

        ASSERT_EQ(commands[c].options & OPT_GLOBAL, 0);
        for (unsigned i = 0; i < OPTION_COUNT; i++)
            for (unsigned k = i + 1; k < OPTION_COUNT; k++)
                if ((set >> i & 1) && (set >> k & 1)) {
                    ASSERT_TRUE(strcmp(option_defs[i].name, option_defs[k].name) != 0);
                    ASSERT_TRUE(!option_defs[i].letter ||
                                option_defs[i].letter != option_defs[k].letter);
                }
    }
}

TEST(verbs_are_found_by_one_word_two_words_and_alias)
{
    int used;

    ASSERT_STREQ(command_find(2, words("session", "run", NULL), &used)->name, "session run");
    ASSERT_EQ(used, 2);
    ASSERT_STREQ(command_find(2, words("run", "ls", NULL), &used)->name, "run");
    ASSERT_EQ(used, 1);
    ASSERT_STREQ(command_find(1, words("ps", NULL), &used)->name, "ls");
    ASSERT_TRUE(command_find(1, words("session", NULL), &used) == NULL);
    ASSERT_TRUE(command_find(0, words(NULL), &used) == NULL);
    ASSERT_TRUE(command_is_group("image") && !command_is_group("run") && !command_is_group("imag"));
}

TEST(sizes_and_ages_read_well)
{
    char text[32];
    uint64_t now = UINT64_C(1700000000) * USEC_PER_SEC; /* 2023-11-14T22:13:20Z */

    text_size(0, text, sizeof(text));
    ASSERT_STREQ(text, "0 B");
    text_size(1536, text, sizeof(text));
    ASSERT_STREQ(text, "1.5 KiB");
    text_size(UINT64_C(256) << 20, text, sizeof(text));
    ASSERT_STREQ(text, "256 MiB");
    text_age("2023-11-14T22:13:00.123Z", now, text, sizeof(text));
    ASSERT_STREQ(text, "20 s");
    text_age("2023-11-14T22:03:20Z", now, text, sizeof(text));
    ASSERT_STREQ(text, "10 min");
    text_age("2023-11-01T22:03:20Z", now, text, sizeof(text));
    ASSERT_STREQ(text, "13 d");
    text_age("2033-11-01T22:03:20Z", now, text, sizeof(text));
    ASSERT_STREQ(text, "0 s");
    text_age("yesterday", now, text, sizeof(text));
    ASSERT_STREQ(text, "-");
}

TEST(progress_line_holds_no_control_bytes)
{
    struct progress p = {.percent = -1};
    char text[192];

    progress_update(&p, "step \033[31m\n", 150);
    progress_format(&p, 3 * USEC_PER_SEC, text, sizeof(text));
    ASSERT_TRUE(strchr(text, '\033') == NULL && strchr(text, '\n') == NULL);
    ASSERT_TRUE(strstr(text, "100%") != NULL && strstr(text, "3 s") != NULL);
}
