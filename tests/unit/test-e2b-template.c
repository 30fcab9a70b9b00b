#include <stdlib.h>
#include <string.h>

#include "api/e2b/template-build.h"
#include "base/strv.h"
#include "harness/test.h"

#define HASH "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static const struct script_base built = {.image = "e2b.x", .user = "app", .workdir = "/srv"};

static void makes(const char *steps, const char *wanted)
{
    json_t *json = json_loads(steps, 0, NULL);
    struct template_script script = {0};
    struct error err = {0};

    ASSERT_TRUE(json);
    ASSERT_OK(template_script_make(json, &built, &script, &err));
    ASSERT_STREQ(buf_string(&script.dockerfile), wanted);
    template_script_done(&script);
    json_decref(json);
}

static void refuses(const char *steps, const char *why)
{
    json_t *json = json_loads(steps, 0, NULL);
    struct template_script script = {0};
    struct error err = {0};

    ASSERT_TRUE(json);
    ASSERT_TRUE(template_script_make(json, &built, &script, &err) < 0);
    if (!strstr(err.text, why))
        test_fail(__FILE__, __LINE__, "'%s' says nothing of '%s'", err.text, why);
    json_decref(json);
}

TEST(steps_become_instructions)
{
    makes("[]", "FROM e2b.x\n");
    makes("[{\"type\": \"COPY\", \"args\": [\"a\", \"/b\", \"\", \"\"], \"filesHash\": \"" HASH
          "\"}, {\"type\": \"USER\", \"args\": [\"root\"]}, {\"type\": \"COPY\", \"args\": [\"c\", "
          "\"d/\", \"x:y\", \"0600\"], \"filesHash\": \"" HASH "\"}]",
          "FROM e2b.x\nCOPY --chown=app [\"s1/a\",\"/b\"]\nUSER root\n"
          "COPY --chown=x:y --chmod=0600 [\"s3/c\",\"d/\"]\n");
    makes("[{\"type\": \"ENV\", \"args\": [\"A\", \"b \\\"c\\\" \\\\ $D\", \"E\", \"\"]}]",
          "FROM e2b.x\nENV A=\"b \\\"c\\\" \\\\ $D\"\nENV E=\"\"\n");
    makes("[{\"type\": \"WORKDIR\", \"args\": [\"/\"]}]", "FROM e2b.x\nWORKDIR /\n");
}

TEST(a_command_is_one_line_whatever_it_holds)
{
    json_t *json = json_loads("[{\"type\": \"RUN\", \"args\": [\"cat <<END\\n$x \\\"\\nEND\", "
                              "\"root\"]}]",
                              0, NULL);
    struct template_script script = {0};
    struct error err = {0};
    const char *text;

    ASSERT_OK(template_script_make(json, &built, &script, &err));
    text = buf_string(&script.dockerfile);
    ASSERT_EQ(script.n_lines, 4u);
    ASSERT_EQ(script.steps[0], 0u);
    ASSERT_EQ(script.steps[3], 1u);
    ASSERT_TRUE(strstr(text, "\nUSER root\nRUN [\"/bin/sh\","));
    ASSERT_TRUE(strstr(text, "\"cat \\u003c\\u003cEND\\n$x \\\"\\nEND\"]\nUSER app\n"));
    template_script_done(&script);
    json_decref(json);
}

TEST(an_image_gets_its_user_first)
{
    const struct script_base base = {.image = "python:3"};
    struct template_script script = {0};
    struct error err = {0};
    const char *text;

    ASSERT_OK(template_script_make(NULL, &base, &script, &err));
    text = buf_string(&script.dockerfile);
    ASSERT_TRUE(string_starts_with(text, "FROM python:3\nUSER root\nRUN ["));
    ASSERT_TRUE(strstr(text, "]\nUSER user\nWORKDIR /home/user\n"));
    template_script_done(&script);
}

TEST(steps_that_cannot_be_done_are_refused)
{
    refuses("[{\"type\": \"RUN\"}]", "step 1: RUN without a command");
    refuses("[{\"type\": \"RUN\", \"args\": [\"x\", \"a b\"]}]", "not the name of a user");
    refuses("[{\"type\": \"USER\", \"args\": [\"x\\nRUN y\"]}]", "not the name of a user");
    refuses("[{\"type\": \"WORKDIR\", \"args\": [\"/a\\nRUN y\"]}]", "WORKDIR");
    refuses("[{\"type\": \"WORKDIR\", \"args\": [\"a\"]}]", "not an absolute path");
    refuses("[{\"type\": \"ENV\", \"args\": [\"A\", \"x\\ny\"]}]", "more than a line");
    refuses("[{\"type\": \"ENV\", \"args\": [\"A=B\", \"x\"]}]", "a name that is none");
    refuses("[{\"type\": \"ENV\", \"args\": [\"A\"]}]", "pairs");
    refuses("[{\"type\": \"COPY\", \"args\": [\"a\", \"b\"]}]", "hash");
    refuses("[{\"type\": \"COPY\", \"args\": [\"$a\", \"b\"], \"filesHash\": \"" HASH "\"}]",
            "path");
    refuses("[{\"type\": \"COPY\", \"args\": [\"a\", \"b\", \"\", \"9\"], \"filesHash\": \"" HASH
            "\"}]",
            "octal");
    refuses("[{\"type\": \"VOLUME\", \"args\": [\"a\"]}]", "'VOLUME' is not supported");
    refuses("[5]", "no type");
    refuses("{}", "not a list");
}

TEST(commands_are_quoted_for_the_shell)
{
    _cleanup_free_ char *text = script_shell("echo 'a'; b");

    ASSERT_TRUE(text);
    ASSERT_TRUE(strstr(text, "' 'echo '\\''a'\\''; b'"));
}

TEST(names_and_tags)
{
    char name[E2B_NAME_SIZE], tag[E2B_NAME_SIZE], full[E2B_NAME_SIZE], shown[E2B_NAME_SIZE];
    struct error err = {0};
    static const char *const bad[] = {"",
                                      "A",
                                      "a.b",
                                      "a/b",
                                      "-a",
                                      "a:",
                                      ":a",
                                      "a:B",
                                      "a:b:c",
                                      "a b",
                                      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};

    ASSERT_OK(e2b_name_parse("my_first-1", name, tag, &err));
    ASSERT_STREQ(name, "my_first-1");
    ASSERT_STREQ(tag, "");
    ASSERT_OK(e2b_name_parse("a:v1", name, tag, &err));
    ASSERT_STREQ(tag, "v1");
    ASSERT_OK(e2b_name_full(name, tag, full, &err));
    ASSERT_STREQ(full, "e2b.a.v1");
    ASSERT_STREQ(e2b_name_shown(full, shown), "a:v1");
    ASSERT_STREQ(e2b_name_shown("e2b.a.default", shown), "a");
    ASSERT_TRUE(!e2b_name_shown("base", shown) && !e2b_name_shown("e2b.a", shown));
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        ASSERT_ERR(e2b_name_parse(bad[i], name, tag, &err), EINVAL);
}
