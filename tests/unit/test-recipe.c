#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/strv.h"
#include "core/recipe.h"
#include "core/tree.h"
#include "harness/test.h"

static struct recipe parse(const char *text)
{
    json_t *json = json_loads(text, 0, NULL);
    struct recipe recipe = {0};
    struct error err = {0};

    ASSERT_TRUE(json);
    if (recipe_from_json(json, &recipe, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    json_decref(json);
    return recipe;
}

static void refuse(const char *text, const char *why)
{
    json_t *json = json_loads(text, 0, NULL);
    struct recipe recipe = {0};
    struct error err = {0};

    ASSERT_TRUE(json);
    ASSERT_ERR(recipe_from_json(json, &recipe, &err), EINVAL);
    if (!strstr(err.text, why))
        test_fail(__FILE__, __LINE__, "'%s' does not say '%s'", err.text, why);
    json_decref(json);
}

TEST(reads_what_it_writes)
{
    struct recipe recipe = parse("{\"name\": \"of the caller\", \"steps\": [{\"run\": \"a\"},"
                                 " {\"copy\": {\"from\": \"/x\", \"to\": \"/y\"}}],"
                                 " \"ready\": \"r\", \"ready_timeout_sec\": 5, \"warm\": [\"w\"],"
                                 " \"user\": \"u\", \"workdir\": \"/d\", \"env\": {\"K\": "
                                 "\"v=w\"}}");
    struct recipe copy, back;
    json_t *json, *again;

    ASSERT_EQ(recipe.n_steps, 2);
    ASSERT_STREQ(recipe.steps[0].run, "a");
    ASSERT_STREQ(recipe.steps[1].from, "/x");
    ASSERT_STREQ(recipe.warm[0], "w");
    ASSERT_STREQ(recipe.env[0], "K=v=w");
    ASSERT_OK(recipe_copy(&recipe, &copy));
    json = recipe_to_json(&copy);
    ASSERT_OK(recipe_from_json(json, &back, NULL));
    again = recipe_to_json(&back);
    ASSERT_TRUE(json_equal(json, again));
    json_decref(json);
    json_decref(again);
    recipe_done(&recipe);
    recipe_done(&copy);
    recipe_done(&back);
}

TEST(empty_recipe_is_known_as_such)
{
    struct recipe recipe = parse("{\"steps\": [], \"warm\": []}");

    ASSERT_TRUE(recipe_is_empty(&recipe));
    ASSERT_EQ(recipe.ready_sec, RECIPE_READY_SEC);
    recipe_done(&recipe);
    recipe = parse("{\"warm\": [\"x\"]}");
    ASSERT_FALSE(recipe_is_empty(&recipe));
    recipe_done(&recipe);
    recipe = parse("{\"user\": \"x\"}");
    ASSERT_FALSE(recipe_is_empty(&recipe));
    recipe_done(&recipe);
}

TEST(bad_recipes_are_refused_by_key)
{
    refuse("{\"steps\": {}}", "steps");
    refuse("{\"steps\": [{}]}", "steps");
    refuse("{\"steps\": [{\"run\": \"a\", \"copy\": {\"from\": \"/a\", \"to\": \"/b\"}}]}",
           "steps");
    refuse("{\"steps\": [{\"walk\": \"a\"}]}", "walk");
    refuse("{\"steps\": [{\"run\": 3}]}", "run");
    refuse("{\"steps\": [{\"copy\": {\"from\": \"a\", \"to\": \"/b\"}}]}", "from");
    refuse("{\"steps\": [{\"copy\": {\"from\": \"/a\"}}]}", "to");
    refuse("{\"ready\": 1}", "ready");
    refuse("{\"ready_timeout_sec\": 0}", "ready_timeout_sec");
    refuse("{\"warm\": \"x\"}", "warm");
}

TEST(more_steps_than_allowed_are_refused)
{
    json_t *steps = json_array(), *json;
    struct recipe recipe = {0};

    for (unsigned i = 0; i <= RECIPE_STEPS_MAX; i++)
        ASSERT_EQ(json_array_append_new(steps, json_pack("{s:s}", "run", "x")), 0);
    json = json_pack("{s:o}", "steps", steps);
    ASSERT_ERR(recipe_from_json(json, &recipe, NULL), EINVAL);
    json_decref(json);
}

static void write_below(const char *name, const char *text, mode_t mode)
{
    _cleanup_free_ char *path = string_printf("%s/tree/%s", test_tmpdir(), name);

    ASSERT_OK(file_write_atomic(path, text, strlen(text), mode, NULL));
    ASSERT_EQ(chmod(path, mode), 0);
}

static void digest_copy(char digest[RECIPE_DIGEST_SIZE])
{
    _cleanup_free_ char *text = string_printf(
        "{\"steps\": [{\"copy\": {\"from\": \"%s/tree\", \"to\": \"/y\"}}]}", test_tmpdir());
    struct recipe recipe = parse(text);
    struct error err = {0};

    if (recipe_digest(&recipe, digest, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    recipe_done(&recipe);
}

TEST(digest_is_of_the_content_that_is_copied)
{
    char before[RECIPE_DIGEST_SIZE], after[RECIPE_DIGEST_SIZE], path[256], link_path[300];

    (void)snprintf(path, sizeof(path), "%s/tree/sub", test_tmpdir());
    ASSERT_OK(dir_create(path, 0755, NULL));
    write_below("a", "one", 0644);
    write_below("sub/b", "two", 0644);
    (void)snprintf(link_path, sizeof(link_path), "%s/link", path);
    ASSERT_EQ(symlink("b", link_path), 0);
    digest_copy(before);
    digest_copy(after);
    ASSERT_STREQ(before, after);
    write_below("a", "one", 0644); /* another file with the same content */
    digest_copy(after);
    ASSERT_STREQ(before, after);

    write_below("sub/b", "twO", 0644);
    digest_copy(after);
    ASSERT_TRUE(strcmp(before, after) != 0);
    write_below("sub/b", "two", 0755);
    digest_copy(after);
    ASSERT_TRUE(strcmp(before, after) != 0);
    write_below("sub/b", "two", 0644);
    ASSERT_EQ(unlink(link_path), 0);
    ASSERT_EQ(symlink("c", link_path), 0);
    digest_copy(after);
    ASSERT_TRUE(strcmp(before, after) != 0);
    ASSERT_EQ(unlink(link_path), 0);
    digest_copy(after);
    ASSERT_TRUE(strcmp(before, after) != 0);
}

TEST(digest_tells_steps_apart)
{
    static const char *const texts[] = {
        "{\"steps\": [{\"run\": \"ab\"}]}",
        "{\"steps\": [{\"run\": \"a\"}, {\"run\": \"b\"}]}",
        "{\"steps\": [{\"run\": \"b\"}, {\"run\": \"a\"}]}",
        "{\"ready\": \"ab\"}",
        "{\"warm\": [\"ab\"]}",
        "{\"warm\": [\"a\", \"b\"]}",
        "{\"user\": \"ab\"}",
        "{\"workdir\": \"/ab\"}",
        "{\"env\": {\"a\": \"b\"}}",
    };
    char digests[ARRAY_SIZE(texts)][RECIPE_DIGEST_SIZE];

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        struct recipe recipe = parse(texts[i]);

        ASSERT_OK(recipe_digest(&recipe, digests[i], NULL));
        for (size_t k = 0; k < i; k++)
            ASSERT_TRUE(strcmp(digests[i], digests[k]) != 0);
        recipe_done(&recipe);
    }
}

TEST(what_cannot_be_copied_is_named)
{
    struct recipe recipe =
        parse("{\"steps\": [{\"run\": \"x\"}, {\"copy\": {\"from\": \"/nowhere/at/all\","
              " \"to\": \"/y\"}}]}");
    char digest[RECIPE_DIGEST_SIZE], path[256];
    struct error err = {0};
    struct tree tree;

    ASSERT_ERR(recipe_digest(&recipe, digest, &err), ENOENT);
    ASSERT_TRUE(strstr(err.text, "step 2") && strstr(err.text, "/nowhere/at/all"));
    recipe_done(&recipe);
    (void)snprintf(path, sizeof(path), "%s/pipe", test_tmpdir());
    ASSERT_EQ(mkfifo(path, 0600), 0);
    ASSERT_ERR(tree_scan(path, &tree, &err), EINVAL);
    ASSERT_TRUE(strstr(err.text, "pipe"));
}
