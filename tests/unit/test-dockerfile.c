#include "harness/test.h"

#include <stdlib.h>

#include "base/strv.h"
#include "dockerfile/expand.h"
#include "dockerfile/state.h"

static int parse(const char *text, struct dockerfile *ret, struct error *err)
{
    return dockerfile_parse(text, strlen(text), "Dockerfile", ret, err);
}

static void assert_refused(const char *text, const char *message)
{
    struct build_plan plan = {0};
    struct error err = {0};

    ASSERT_TRUE(plan_make(text, strlen(text), "Dockerfile", NULL, NULL, &plan, &err) < 0);
    ASSERT_STREQ(err.text, message);
}

TEST(instructions_have_their_lines_and_joined_text)
{
    _cleanup_dockerfile_ struct dockerfile d = {0};
    struct error err = {0};

    ASSERT_OK(parse("# a comment\n\nfrom base AS x\nRUN a \\\n  # in between\n\n  b \\ \t\n c\r\n"
                    "COPY --from=x --chown=1:2 a b\nENV a=\\\\\n  CMD last",
                    &d, &err));
    ASSERT_EQ(d.n, 5);
    ASSERT_EQ(d.instructions[0].line, 3);
    ASSERT_EQ(d.instructions[1].line, 4);
    ASSERT_STREQ(d.instructions[1].text, "a   b  c");
    ASSERT_EQ(d.instructions[2].line, 9);
    ASSERT_STREQ(instruction_flag(&d.instructions[2], "from"), "x");
    ASSERT_STREQ(instruction_flag(&d.instructions[2], "chown"), "1:2");
    ASSERT_TRUE(!instruction_flag(&d.instructions[2], "chmod"));
    ASSERT_STREQ(d.instructions[2].text, "a b");
    ASSERT_STREQ(d.instructions[3].text, "a=\\\\"); /* two of them do not go on */
    ASSERT_EQ(d.instructions[4].type, INSTRUCTION_CMD);
}

TEST(the_escape_directive_works_at_the_top_only)
{
    _cleanup_dockerfile_ struct dockerfile a = {0}, b = {0};
    struct error err = {0};

    ASSERT_OK(parse("# syntax=x/y\n# escape=`\nFROM x\nRUN a `\n b\\\nRUN c\n", &a, &err));
    ASSERT_EQ(a.n, 3);
    ASSERT_STREQ(a.instructions[1].text, "a  b\\");
    ASSERT_OK(parse("# just words\n# escape=`\nFROM x\nRUN a `\n", &b, &err));
    ASSERT_EQ(b.escape, '\\');
    ASSERT_TRUE(parse("#escape=x\nFROM x\n", &b, &err) < 0);
    ASSERT_STREQ(err.text, "Dockerfile:1: the escape character can be \\ or `");
}

TEST(here_documents_are_taken_with_their_instruction)
{
    _cleanup_dockerfile_ struct dockerfile d = {0};
    struct error err = {0};

    ASSERT_OK(parse("FROM x\nRUN <<EOF\na\n# no comment \\\nEOF\n"
                    "COPY <<-'one' <<two /etc/\n\tx $y\n\tone\nz\ntwo\nRUN echo \"<<EOF\" a<<b\n",
                    &d, &err));
    ASSERT_EQ(d.n, 4);
    ASSERT_EQ(d.instructions[1].n_heredocs, 1);
    ASSERT_STREQ(d.instructions[1].heredocs[0].content, "a\n# no comment \\\n");
    ASSERT_TRUE(d.instructions[1].heredocs[0].expand);
    ASSERT_EQ(d.instructions[2].n_heredocs, 2);
    ASSERT_STREQ(d.instructions[2].heredocs[0].content, "x $y\n");
    ASSERT_FALSE(d.instructions[2].heredocs[0].expand);
    ASSERT_STREQ(d.instructions[2].heredocs[1].content, "z\n");
    ASSERT_EQ(d.instructions[3].line, 11);
    ASSERT_EQ(d.instructions[3].n_heredocs, 0);
    assert_refused("FROM x\nRUN <<EOF\na\n",
                   "Dockerfile:2: there is no end to the here-document EOF");
}

TEST(what_is_wrong_is_told_with_its_line)
{
    struct error err = {0};
    struct dockerfile d = {0};

    assert_refused("", "Dockerfile: there is no instruction in it");
    assert_refused("\n\nFRON x\n", "Dockerfile:3: unknown instruction 'FRON'");
    assert_refused("FROM x\nRUN\n", "Dockerfile:2: RUN: there is nothing behind it");
    assert_refused("RUN a\n", "Dockerfile:1: RUN: comes before the first FROM");
    assert_refused("ARG a=1\n", "Dockerfile: there is no FROM in it");
    assert_refused("FROM a b\n", "Dockerfile:1: FROM: expected IMAGE or IMAGE AS NAME, not 'a b'");
    assert_refused("FROM a AS x\nFROM b AS X\n",
                   "Dockerfile:2: FROM: there is a stage 'X' already");
    assert_refused("FROM $nothing\n", "Dockerfile:1: FROM: '$nothing' is empty");
    assert_refused("FROM --pull x\n", "Dockerfile:1: FROM: unknown option '--pull'");
    ASSERT_TRUE(dockerfile_parse("FROM x\nRUN a\0b\n", 15, "F", &d, &err) < 0);
    ASSERT_STREQ(err.text, "F:2: there is a NUL byte");
}

/* ---- words ---- */

static const char *lookup(const char *name, void *userdata)
{
    (void)userdata;
    return strcmp(name, "a") == 0 ? "A" : strcmp(name, "empty") == 0 ? "" : NULL;
}

TEST(variables_are_replaced_and_quotes_removed)
{
    static const struct {
        const char *word, *result;
    } good[] = {
        {"x$a.y", "xA.y"},        {"${a}b", "Ab"},
        {"$none|", "|"},          {"${none:-d}", "d"},
        {"${empty:-d}", "d"},     {"${empty-d}", ""},
        {"${a:-d}", "A"},         {"${a:+d}", "d"},
        {"${empty:+d}", ""},      {"${empty+d}", "d"},
        {"${none:+d}", ""},       {"${none:-${a:+x$a}}y", "xAy"},
        {"'$a'\"$a\"", "$aA"},    {"\\$a", "$a"},
        {"\"\\\"\\a\"", "\"\\a"}, {"$", "$"},
        {"a$/", "a$/"},
    };
    static const char *const bad[] = {"${a", "${}", "${a:", "${a#x}", "'x", "\"x", "${none:?no}"};
    struct error err = {0};
    char *result = NULL;

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        ASSERT_OK(expand_word(good[i].word, '\\', false, lookup, NULL, &result, &err));
        ASSERT_STREQ(result, good[i].result);
        free(result);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ASSERT_TRUE(expand_word(bad[i], '\\', false, lookup, NULL, &result, &err) < 0);
    ASSERT_OK(expand_word("'$a' \"\\n\\$a\n", '\\', true, lookup, NULL, &result, &err));
    ASSERT_STREQ(result, "'A' \"\\n$a\n");
    free(result);
}

TEST(nested_and_growing_substitutions_have_an_end)
{
    struct error err = {0};
    char deep[512] = "", *result = NULL;

    for (int i = 0; i < 40; i++)
        memcpy(deep + strlen(deep), "${x:-", 6);
    ASSERT_TRUE(expand_word(deep, '\\', false, lookup, NULL, &result, &err) < 0);
    ASSERT_STREQ(err.text, "substitutions are nested too deep");
}

/* ---- stages ---- */

TEST(only_stages_that_are_needed_are_built)
{
    static const char text[] =
        "ARG v=1\nFROM base:$v AS one\nRUN a\nFROM scratch AS two\n"
        "COPY --from=one x y\nFROM two\nFROM ${w:-one}\nCOPY --from=img a b\n";
    static char arg[] = "v=2";
    char *args[] = {arg, NULL};
    _cleanup_plan_ struct build_plan p = {0}, q = {0};
    struct error err = {0};

    ASSERT_OK(plan_make(text, sizeof(text) - 1, "D", args, NULL, &p, &err));
    ASSERT_EQ(p.n_stages, 4);
    ASSERT_STREQ(p.stages[0].base, "base:2");
    ASSERT_EQ(p.stages[1].parent, STAGE_NONE);
    ASSERT_TRUE(!p.stages[1].base);
    ASSERT_EQ(p.stages[2].parent, 1);
    ASSERT_EQ(p.stages[3].parent, 0);
    ASSERT_TRUE(p.stages[0].needed && !p.stages[1].needed && !p.stages[2].needed);
    ASSERT_EQ(p.n_steps, 4);
    ASSERT_OK(plan_make(text, sizeof(text) - 1, "D", NULL, "two", &q, &err));
    ASSERT_TRUE(q.stages[0].needed && q.stages[1].needed && !q.stages[2].needed);
    ASSERT_STREQ(q.stages[0].base, "base:1");
    ASSERT_TRUE(plan_make(text, sizeof(text) - 1, "D", NULL, "nine", &p, &err) < 0);
    ASSERT_STREQ(err.text, "D: there is no stage 'nine'");
}

/* ---- what instructions do ---- */

static unsigned n_warned;

static void warn(const char *text, void *userdata)
{
    (void)text;
    (void)userdata;
    n_warned++;
}

/* Applies everything behind FROM. */
static int apply(const char *text, char *const *args, struct build_plan *plan,
                 struct stage_state *s, struct error *err)
{
    int r = plan_make(text, strlen(text), "Dockerfile", args, NULL, plan, err);

    for (size_t i = plan->stages ? plan->stages[0].first : 0; r == 0 && i < plan->dockerfile.n;
         i++) {
        const struct instruction *in = &plan->dockerfile.instructions[i];

        r = state_apply(s, plan, in, warn, NULL, err);
        if (r < 0)
            plan_wrap(plan, in, err);
    }
    return r;
}

TEST(instructions_become_the_configuration)
{
    static const char text[] =
        "ARG g=global\nFROM x\nARG g\nARG a=1 b\nENV k=$a other=\"two words\" g2=$g\n"
        "ENV old form  of it\nLABEL l='x y' m=$a\nEXPOSE 80 53/udp 9000-9002\nUSER u:$a\n"
        "WORKDIR /w\nWORKDIR sub/../s\nCMD [\"c\", \"d\"]\nENTRYPOINT run $a\nVOLUME /data\n"
        "STOPSIGNAL 9\n";
    static char given[] = "b=2";
    char *args[] = {given, NULL};
    _cleanup_plan_ struct build_plan plan = {0};
    _cleanup_state_ struct stage_state s = {0};
    _cleanup_strv_ char **env = NULL;
    struct error err = {0};

    n_warned = 0;
    ASSERT_OK(apply(text, args, &plan, &s, &err));
    ASSERT_STREQ(pairs_get(s.config.env, "k"), "1");
    ASSERT_STREQ(pairs_get(s.config.env, "other"), "two words");
    ASSERT_STREQ(pairs_get(s.config.env, "g2"), "global");
    ASSERT_STREQ(pairs_get(s.config.env, "old"), "form  of it");
    ASSERT_STREQ(pairs_get(s.config.labels, "l"), "x y");
    ASSERT_EQ(strv_length(s.config.ports), 5);
    ASSERT_STREQ(s.config.ports[1], "53/udp");
    ASSERT_STREQ(s.config.ports[4], "9002/tcp");
    ASSERT_STREQ(s.config.user, "u:1");
    ASSERT_STREQ(s.config.workdir, "/w/s");
    ASSERT_STREQ(s.config.cmd[1], "d");
    ASSERT_STREQ(s.config.entrypoint[0], "/bin/sh");
    ASSERT_STREQ(s.config.entrypoint[2], "run $a"); /* the shell's to replace */
    ASSERT_EQ(n_warned, 2);
    ASSERT_OK(state_run_env(&s, &env));
    ASSERT_STREQ(pairs_get(env, "b"), "2");
    ASSERT_STREQ(pairs_get(env, "a"), "1");
}

TEST(an_entrypoint_drops_the_command_of_the_image_below)
{
    _cleanup_plan_ struct build_plan plan = {0};
    _cleanup_state_ struct stage_state s = {0};
    struct error err = {0};

    ASSERT_OK(strv_append(&s.config.cmd, "inherited"));
    ASSERT_OK(apply("FROM x\nENTRYPOINT [\"e\"]\n", NULL, &plan, &s, &err));
    ASSERT_TRUE(!s.config.cmd);
}

TEST(mistakes_in_instructions_name_their_place)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"FROM x\nENV a\n", "Dockerfile:2: ENV: 'a' has no value"},
        {"FROM x\nENV a=1 b\n", "Dockerfile:2: ENV: 'b' is not KEY=VALUE"},
        {"FROM x\n\nEXPOSE 0\n", "Dockerfile:3: EXPOSE: '0' is no port"},
        {"FROM x\nEXPOSE 1-60000\n", "Dockerfile:2: EXPOSE: a range of more than 1000 ports"},
        {"FROM x\nSHELL bash\n",
         "Dockerfile:2: SHELL: expected a JSON array, as [\"/bin/bash\", \"-c\"]"},
        {"FROM x\nONBUILD RUN x\n", "Dockerfile:2: ONBUILD: is not supported"},
        {"FROM x\nUSER $none\n", "Dockerfile:2: USER: '$none' is empty"},
        {"FROM x\nWORKDIR '/a\n", "Dockerfile:2: WORKDIR: a single quote is not closed"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        _cleanup_plan_ struct build_plan plan = {0};
        _cleanup_state_ struct stage_state s = {0};
        struct error err = {0};

        ASSERT_TRUE(apply(bad[i].text, NULL, &plan, &s, &err) < 0);
        ASSERT_STREQ(err.text, bad[i].message);
    }
}

TEST(run_takes_the_shell_the_array_or_the_here_document)
{
    static const char text[] = "FROM x\nRUN a && b\nRUN [\"p\", \"q r\"]\nRUN [not json\n"
                               "RUN <<E\none\ntwo\nE\nRUN cat <<E > f\nx\nE\n";
    static const char *const last[] = {"a && b", "q r", "[not json", "one\ntwo\n",
                                       "cat <<E > f\nx\nE\n"};
    _cleanup_plan_ struct build_plan plan = {0};
    struct stage_state s = {0};
    struct error err = {0};

    ASSERT_OK(plan_make(text, strlen(text), "D", NULL, NULL, &plan, &err));
    for (size_t i = 0; i < 5; i++) {
        _cleanup_strv_ char **argv = NULL;

        ASSERT_OK(state_run_argv(&s, &plan.dockerfile.instructions[i + 1], &argv, &err));
        ASSERT_STREQ(argv[strv_length(argv) - 1], last[i]);
        ASSERT_STREQ(argv[0], i == 1 ? "p" : "/bin/sh");
    }
}

TEST(keys_change_with_all_that_decides_and_with_nothing_else)
{
    static char x[] = "x", y[] = "y", e[] = "e=1";
    char *one[] = {x, y, NULL}, *other[] = {x, NULL}, *env[] = {e, NULL};
    _cleanup_state_ struct stage_state s = {0};
    char first[65], again[65];

    ASSERT_OK(strv_append(&s.layers, "sha256:1"));
    state_run_key(&s, one, env, first);
    state_run_key(&s, one, env, again);
    ASSERT_STREQ(first, again);
    ASSERT_OK(pairs_set(&s.config.labels, "l", "v")); /* nothing that a command sees */
    state_run_key(&s, one, env, again);
    ASSERT_STREQ(first, again);
    state_run_key(&s, other, env, again);
    ASSERT_TRUE(strcmp(first, again) != 0);
    state_run_key(&s, one, NULL, again);
    ASSERT_TRUE(strcmp(first, again) != 0);
    ASSERT_OK(string_set(&s.config.user, "u"));
    state_run_key(&s, one, env, again);
    ASSERT_TRUE(strcmp(first, again) != 0);
    ASSERT_OK(string_set(&s.config.user, NULL));
    ASSERT_OK(string_set(&s.config.workdir, "/w"));
    state_run_key(&s, one, env, again);
    ASSERT_TRUE(strcmp(first, again) != 0);
    ASSERT_OK(string_set(&s.config.workdir, NULL));
    ASSERT_OK(strv_append(&s.layers, "sha256:2"));
    state_run_key(&s, one, env, again);
    ASSERT_TRUE(strcmp(first, again) != 0);
    state_files_key(&s, "copy", "a", first);
    state_files_key(&s, "copy", "b", again);
    ASSERT_TRUE(strcmp(first, again) != 0);
}
