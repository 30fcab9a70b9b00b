#include "harness/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/strv.h"
#include "dockerfile/copy.h"
#include "dockerfile/steps.h"
#include "image-fixture.h"

/* ---- patterns ---- */

TEST(patterns_match_as_those_of_docker)
{
    static const struct {
        const char *pattern, *path;
        bool match, below;
    } cases[] = {
        {"a", "a", true, true},
        {"a", "a/b", false, true},
        {"a", "ab", false, false},
        {"*.c", "x.c", true, true},
        {"*.c", "d/x.c", false, false},
        {"**/*.c", "x.c", true, true},
        {"**/*.c", "d/e/x.c", true, true},
        {"**/x", "yx", false, false},
        {"a/**", "a/b/c", true, true},
        {"a/**/z", "a/z", true, true},
        {"a/**/z", "a/b/c/z", true, true},
        {"a/**/z", "a/bz", false, false},
        {"?x", "ax", true, true},
        {"?x", "/x", false, false},
        {"[a-c]1", "b1", true, true},
        {"[^a-c]1", "b1", false, false},
        {"\\*", "*", true, true},
        {"\\*", "x", false, false},
        {"*/temp*", "d/temporary/x", false, true},
        {"**", "any/thing", true, true},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct glob *g = NULL;

        ASSERT_OK(glob_new(cases[i].pattern, &g));
        if (glob_match(g, cases[i].path, false) != cases[i].match ||
            glob_match(g, cases[i].path, true) != cases[i].below)
            test_fail(__FILE__, __LINE__, "'%s' and '%s'", cases[i].pattern, cases[i].path);
        (void)glob_free(g);
    }
    ASSERT_ERR(glob_new("[a", &(struct glob *){NULL}), EINVAL);
}

TEST(a_pattern_made_to_take_long_does_not)
{
    char pattern[512] = "", path[4096];
    struct glob *g = NULL;

    for (int i = 0; i < 100; i++)
        memcpy(pattern + 4 * i, "**a*", 5);
    memset(path, 'a', sizeof(path) - 2);
    path[sizeof(path) - 2] = 'b';
    path[sizeof(path) - 1] = '\0';
    ASSERT_OK(glob_new(pattern, &g));
    ASSERT_TRUE(glob_match(g, path, true));
    (void)glob_free(g);
}

TEST(the_last_rule_that_fits_decides)
{
    static const char text[] = "# no rule\n*.log\n!keep.log\n/build/\ndocs/**\n!docs/a.md\n"
                               "  \r\n./x/../y\nkeep.log.old\n";
    _cleanup_ignore_ struct ignore ignore = {0};
    struct error err = {0};

    ASSERT_OK(ignore_parse(text, sizeof(text) - 1, &ignore, &err));
    ASSERT_TRUE(ignore_match(&ignore, "a.log"));
    ASSERT_FALSE(ignore_match(&ignore, "keep.log"));
    ASSERT_TRUE(ignore_match(&ignore, "build/x/y"));
    ASSERT_TRUE(ignore_match(&ignore, "docs/b.md"));
    ASSERT_FALSE(ignore_match(&ignore, "docs/a.md"));
    ASSERT_TRUE(ignore_match(&ignore, "y"));
    ASSERT_FALSE(ignore_match(&ignore, "sub/a.log"));
    ASSERT_TRUE(ignore_parse("[\n", 2, &ignore, &err) < 0);
    ASSERT_STREQ(err.text, ".dockerignore:1: '[' is no pattern");
}

/* ---- copies ---- */

static struct stack context, stage;

static void open_stacks(const struct item *in_context, size_t n_context,
                        const struct item *in_stage, size_t n_stage)
{
    _cleanup_strv_ char **layers = NULL;
    struct error err = {0};
    char diff_id[DIGEST_SIZE];

    fresh();
    make_tar(in_stage, n_stage);
    ASSERT_OK(step_add_layer(scratch, tar_path, "stage", NULL, diff_id, &err));
    ASSERT_OK(strv_append(&layers, diff_id));
    ASSERT_OK(stack_open(layers, &stage, &err));
    make_tar(in_context, n_context);
    ASSERT_OK(step_open_context(scratch, tar_path, NULL, &context, &err));
}

static void close_stacks(void)
{
    stack_done(&context);
    stack_done(&stage);
    context = stage = (struct stack){0};
}

static const struct item context_items[] = {
    DIR_ITEM("src"),
    FILE_ITEM("src/a.c", "A"),
    FILE_ITEM("src/b.h", "B"),
    DIR_ITEM("src/deep"),
    FILE_ITEM("src/deep/c.c", "C"),
    {.name = "src/link", .mode = S_IFLNK | 0777, .content = "/etc/shadow"},
    {.name = "alias", .mode = S_IFLNK | 0777, .content = "src/../top.txt"},
    {.name = "out", .mode = S_IFLNK | 0777, .content = "../../../etc"},
    FILE_ITEM("top.txt", "T"),
};
static const struct item stage_items[] = {
    DIR_ITEM("usr"),
    DIR_ITEM("usr/bin"),
    {.name = "bin", .mode = S_IFLNK | 0777, .content = "usr/bin"},
    DIR_ITEM("etc"),
    FILE_ITEM("etc/passwd", "root:x:0:0::/:/bin/sh\nann:x:7:8::/:/bin/sh\n"),
    FILE_ITEM("etc/group", "root:x:0:\nstaff:x:50:ann\n"),
};

/* Paths of the plan, joined by blanks; or the error. */
static const char *planned(const char *a, const char *b, const char *dest,
                           const struct ignore *ignore)
{
    static char text[1024];
    char *first = strdup(a), *second = b ? strdup(b) : NULL;
    char *sources[] = {first, second, NULL};
    const struct copy_spec spec = {.from = &context,
                                   .into = &stage,
                                   .ignore = ignore,
                                   .sources = sources,
                                   .dest = dest,
                                   .mode = -1};
    _cleanup_copy_list_ struct copy_list list = {0};
    struct error err = {0};
    size_t used = 0;

    text[0] = '\0';
    if (copy_plan(&spec, &list, &err) < 0) {
        (void)snprintf(text, sizeof(text), "%s", err.text);
    } else {
        for (size_t i = 0; i < list.n; i++)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", used ? " " : "",
                                     list.items[i].path);
    }
    free(first);
    free(second);
    return text;
}

TEST(copies_go_where_docker_puts_them)
{
    static const char rules[] = "src\n!src/deep/c.c\n";
    _cleanup_ignore_ struct ignore ignore = {0};
    struct error err = {0};

    open_stacks(context_items, ARRAY_SIZE(context_items), stage_items, ARRAY_SIZE(stage_items));
    ASSERT_STREQ(planned("top.txt", NULL, "/x", NULL), "x");
    ASSERT_STREQ(planned("top.txt", NULL, "/x/", NULL), "x x/top.txt");
    ASSERT_STREQ(planned("top.txt", NULL, "/bin", NULL), "usr/bin/top.txt");
    ASSERT_STREQ(planned("./top.txt", NULL, "/bin/new/t", NULL), "usr/bin/new usr/bin/new/t");
    ASSERT_STREQ(planned("src", NULL, "/app", NULL),
                 "app app/a.c app/b.h app/deep app/deep/c.c app/link");
    ASSERT_STREQ(planned("src/*.c", NULL, "/usr/", NULL), "usr/a.c");
    ASSERT_STREQ(planned("top.txt", "src/b.h", "/d/", NULL), "d d/top.txt d/b.h");
    ASSERT_STREQ(planned("top.txt", "src/b.h", "/d", NULL),
                 "with more than one source the destination must end with a slash");
    ASSERT_STREQ(planned("nothing", NULL, "/d", NULL), "'nothing': no such file");
    ASSERT_STREQ(planned("*.zip", NULL, "/d/", NULL), "'*.zip' matches nothing");
    ASSERT_STREQ(planned("../x", NULL, "/d", NULL), "'../x' leads out of the context");
    ASSERT_STREQ(planned("src/../../x", NULL, "/d", NULL),
                 "'src/../../x' leads out of the context");
    ASSERT_STREQ(planned("/src/a.c", NULL, "/d", NULL), "d");
    /* A link out of the context ends inside of it, where there is nothing. */
    ASSERT_STREQ(planned("out/passwd", NULL, "/d", NULL), "'out/passwd': no such file");
    ASSERT_OK(ignore_parse(rules, sizeof(rules) - 1, &ignore, &err));
    ASSERT_STREQ(planned(".", NULL, "/d/", &ignore),
                 "d d/alias d/out d/src d/src/deep d/src/deep/c.c d/top.txt");
    ASSERT_STREQ(planned("src/a.c", NULL, "/d", &ignore), "'src/a.c' is kept out by .dockerignore");
    close_stacks();
}

/* The tree that a plan's layer is. */
static void written(const struct copy_spec *spec, struct stack *ret)
{
    _cleanup_copy_list_ struct copy_list list = {0};
    _cleanup_free_ char *tar = in_scratch("layer.tar"), *dir = in_scratch("written");
    struct error err = {0};

    ASSERT_OK(copy_plan(spec, &list, &err));
    ASSERT_OK(copy_write(&list, tar, NULL, &err));
    ASSERT_OK(dir_remove(dir, &err));
    ASSERT_OK(dir_create(dir, 0700, &err));
    ASSERT_OK(step_open_context(dir, tar, NULL, ret, &err));
}

TEST(owners_modes_and_links_arrive)
{
    static char source[] = "src", alias[] = "alias", text_name[] = "note", text[] = "hello\n";
    char *sources[] = {source, alias, NULL};
    const struct heredoc doc = {text_name, text, true};
    struct copy_spec spec = {.from = &context,
                             .into = &stage,
                             .sources = sources,
                             .texts = &doc,
                             .n_texts = 1,
                             .dest = "/new/place/",
                             .own = true,
                             .mode = 0640};
    _cleanup_stack_ struct stack made = {0};
    _cleanup_free_ char *data = NULL;
    struct error err = {0};
    struct tree_node *node;
    size_t size;

    open_stacks(context_items, ARRAY_SIZE(context_items), stage_items, ARRAY_SIZE(stage_items));
    ASSERT_OK(copy_owner(&stage, "ann:staff", &spec.uid, &spec.gid, &err));
    ASSERT_EQ(spec.uid, 7);
    ASSERT_EQ(spec.gid, 50);
    ASSERT_OK(copy_owner(&stage, "ann", &spec.uid, &spec.gid, &err));
    ASSERT_EQ(spec.gid, 8);
    ASSERT_TRUE(copy_owner(&stage, "bob", &spec.uid, &spec.gid, &err) < 0);
    ASSERT_STREQ(err.text, "the image has no user 'bob'");
    written(&spec, &made);
    node = tree_lookup(made.tree, "new/place/a.c");
    ASSERT_TRUE(node != NULL);
    ASSERT_EQ(node->inode->mode, S_IFREG | 0640);
    ASSERT_EQ(node->inode->uid, 7);
    ASSERT_EQ(node->inode->mtime, 2000);
    node = tree_lookup(made.tree, "new");
    ASSERT_EQ(node->inode->mode, S_IFDIR | 0755);
    node = tree_lookup(made.tree, "new/place/link");
    ASSERT_TRUE(S_ISLNK(node->inode->mode));
    ASSERT_STREQ(node->inode->target, "/etc/shadow");
    node = tree_lookup(made.tree, "new/place/alias"); /* a link that is named is followed */
    ASSERT_TRUE(S_ISREG(node->inode->mode));
    ASSERT_OK(copy_read_file(&made, "new/place/note", 100, &data, &size));
    ASSERT_STREQ(data, "hello\n");
    close_stacks();
}

TEST(the_digest_of_a_copy_is_of_its_content_not_its_times)
{
    static const struct item one[] = {FILE_ITEM("f", "same")};
    static const struct item later[] = {
        {.name = "f", .mode = S_IFREG | 0644, .content = "same", .mtime = 9999}};
    static const struct item other[] = {FILE_ITEM("f", "else")};
    static const struct item *const all[] = {one, later, other};
    static char source[] = "f";
    char *sources[] = {source, NULL}, digests[4][65];
    struct error err = {0};

    for (size_t i = 0; i < 4; i++) {
        struct copy_spec spec = {.from = &context,
                                 .into = &stage,
                                 .sources = sources,
                                 .dest = "/f",
                                 .mode = i == 3 ? 0600 : -1};
        _cleanup_copy_list_ struct copy_list list = {0};

        open_stacks(all[MIN(i, (size_t)2)], 1, stage_items, ARRAY_SIZE(stage_items));
        ASSERT_OK(copy_plan(&spec, &list, &err));
        ASSERT_OK(copy_digest(&list, digests[i], &err));
        close_stacks();
    }
    ASSERT_STREQ(digests[0], digests[1]);
    ASSERT_TRUE(strcmp(digests[0], digests[2]) != 0);
    ASSERT_TRUE(strcmp(digests[2], digests[3]) != 0);
}

TEST(steps_are_found_again_by_their_key_and_stay_hidden)
{
    _cleanup_state_ struct stage_state s = {0};
    _cleanup_strv_ char **layers = NULL;
    char key[65], name[REFERENCE_SIZE], diff_id[DIGEST_SIZE];
    struct error err = {0};
    struct image image;

    fresh();
    make_tar(stage_items, ARRAY_SIZE(stage_items));
    ASSERT_OK(step_add_layer(scratch, tar_path, "layer", NULL, diff_id, &err));
    ASSERT_OK(strv_append(&s.layers, diff_id));
    state_files_key(&s, "copy", "x", key);
    ASSERT_EQ(step_find(key, &layers), 0);
    ASSERT_OK(step_publish(key, &s, name, &err));
    ASSERT_TRUE(image_name_is_hidden(name));
    ASSERT_EQ(step_find(key, &layers), 1);
    ASSERT_STREQ(layers[0], diff_id);
    ASSERT_OK(image_find(name, &image, &err));
    ASSERT_OK(step_publish_image("app:1", &s, &image, &err));
    ASSERT_STREQ(image.name, "app:1");
    ASSERT_OK(image_remove(name, NULL, &err));
    layers = strv_free(layers);
    ASSERT_EQ(step_find(key, &layers), 0);
}
