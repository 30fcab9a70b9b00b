#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/strv.h"
#include "core/recipe.h"
#include "core/sandbox-private.h"
#include "sleep-fixture.h"

struct made {
    bool done;
    json_t *template; /* owned */
    struct error err;
    char output[4096];
    unsigned n_progress;
};

static void on_progress(const char *step, int percent, void *userdata)
{
    struct made *made = userdata;

    ASSERT_TRUE(step[0] && percent <= 100);
    made->n_progress++;
}

static void on_output(const char *text, size_t size, void *userdata)
{
    struct made *made = userdata;

    (void)size;
    (void)snprintf(made->output, sizeof(made->output), "%s", text);
}

static void on_done(const json_t *template, const struct error *err, void *userdata)
{
    struct made *made = userdata;

    ASSERT_FALSE(made->done);
    ASSERT_TRUE(!template == !!err);
    made->done = true;
    made->template = json_deep_copy(template);
    if (err)
        made->err = *err;
}

/* Builds one; the template's id, or "" and made->err. */
static const char *build(struct fixture *f, const char *name, const char *text, struct made *made)
{
    static const struct template_make_callbacks callbacks = {on_progress, on_output, on_done};
    json_t *json = json_loads(text, 0, NULL);
    struct template_make *make = NULL;
    struct sandbox_spec machine;
    struct recipe recipe;
    struct error err = {0};

    ASSERT_TRUE(json);
    json_decref(made->template);
    *made = (struct made){0};
    ASSERT_OK(recipe_from_json(json, &recipe, NULL));
    sandbox_spec_init(&machine);
    machine.disk_mib = 16;
    if (core_template_make(f->core, name, &machine, &recipe, &callbacks, made, &make, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    sandbox_spec_done(&machine);
    recipe_done(&recipe);
    json_decref(json);
    fixture_wait(f, &made->done);
    (void)template_make_free(make);
    return made->template ? json_string_value(json_object_get(made->template, "id")) : "";
}

static const char *wanted_template;
static void ask_template(struct sandbox_spec *spec)
{
    (void)string_set(&spec->image, NULL);
    (void)string_set(&spec->template, wanted_template);
}

TEST(build_runs_steps_once_and_clones_know_its_name)
{
    struct fixture f;
    struct made made = {0};
    struct sandbox *sb;
    char id[64], path[300], text[1024];

    fixture_begin(&f);
    (void)snprintf(path, sizeof(path), "%s/ran", test_tmpdir());
    (void)snprintf(text, sizeof(text),
                   "{\"steps\": [{\"run\": \"echo x >> %s\"}, {\"run\": \"echo y >> %s\"}],"
                   " \"ready\": \"test -s %s\", \"warm\": [\":\"]}",
                   path, path, path);
    (void)snprintf(id, sizeof(id), "%s", build(&f, "mine", text, &made));
    if (!id[0])
        test_fail(__FILE__, __LINE__, "%s", made.err.text);
    ASSERT_TRUE(made.n_progress >= 4);
    ASSERT_EQ(fake_knobs.n_boots, 1);
    ASSERT_STREQ(json_string_value(json_array_get(json_object_get(made.template, "names"), 0)),
                 "mine");
    wanted_template = "mine";
    sb = fixture_sandbox(&f, ask_template, NULL);
    ASSERT_STREQ(sb->template_id, id);
    ASSERT_EQ(fake_knobs.n_boots, 1);
    fixture_ping(&f, sb);
    wanted_template = id;
    fixture_ping(&f, fixture_sandbox(&f, ask_template, NULL));

    ASSERT_STREQ(build(&f, "mine", text, &made), id); /* and again: it is there */
    ASSERT_EQ(fake_knobs.n_boots, 1);
    fixture_restart(&f);
    ASSERT_STREQ(build(&f, "mine", text, &made), id);
    ASSERT_EQ(fake_knobs.n_boots, 1);
    wanted_template = "mine";
    fixture_ping(&f, fixture_sandbox(&f, ask_template, NULL));

    _cleanup_free_ char *ran = NULL;
    size_t size;
    ASSERT_OK(file_read(path, 100, &ran, &size, NULL));
    ASSERT_STREQ(ran, "x\ny\n");
    json_decref(made.template);
    fixture_end(&f);
}

TEST(changed_steps_make_another_one_and_the_old_goes)
{
    struct fixture f;
    struct made made = {0};
    char first[64];

    fixture_begin(&f);
    (void)snprintf(first, sizeof(first), "%s", build(&f, "mine", "{\"ready\": \":\"}", &made));
    ASSERT_TRUE(first[0]);
    ASSERT_TRUE(strcmp(build(&f, "mine", "{\"ready\": \"true\"}", &made), first) != 0);
    ASSERT_EQ(fake_knobs.n_boots, 2);
    for (uint64_t end = clock_now_usec() + 5 * USEC_PER_SEC; fixture_count(&f, "templates") > 1;) {
        ASSERT_TRUE(clock_now_usec() < end);
        ASSERT_OK(loop_run_once(f.loop, 10 * USEC_PER_MSEC));
    }
    json_decref(made.template);
    fixture_end(&f);
}

TEST(failing_step_is_told_with_its_status_and_last_words)
{
    struct fixture f;
    struct made made = {0};

    fixture_begin(&f);
    ASSERT_STREQ(
        build(&f, "mine",
              "{\"steps\": [{\"run\": \":\"}, {\"run\": \"echo out; echo err >&2; exit 3\"}]}",
              &made),
        "");
    ASSERT_EQ(made.err.code, ERR_BUILD_FAILED);
    ASSERT_TRUE(strstr(made.err.text, "step 2 of 2"));
    ASSERT_TRUE(strstr(made.err.text, "exit status 3"));
    ASSERT_TRUE(strstr(made.err.text, "err") && strstr(made.output, "out\n"));
    ASSERT_EQ(fixture_count(&f, "fake"), 0);
    for (uint64_t end = clock_now_usec() + 5 * USEC_PER_SEC; fixture_count(&f, "templates") > 0;) {
        ASSERT_TRUE(clock_now_usec() < end);
        ASSERT_OK(loop_run_once(f.loop, 10 * USEC_PER_MSEC));
    }
    ASSERT_STREQ(build(&f, "mine", "{\"ready\": \"false\", \"ready_timeout_sec\": 1}", &made), "");
    ASSERT_TRUE(strstr(made.err.text, "ready 'false'"));
    ASSERT_STREQ(build(&f, "mine",
                       "{\"steps\": [{\"copy\": {\"from\": \"/nowhere\", \"to\": \"/x\"}}]}",
                       &made),
                 "");
    ASSERT_EQ(made.err.errnum, ENOENT);
    fixture_end(&f);
}

TEST(files_are_copied_as_they_are)
{
    struct fixture f;
    struct made made = {0};
    char from[300], to[300], text[1024], path[400];
    _cleanup_free_ char *data = NULL;
    struct stat st;
    size_t size;

    fixture_begin(&f);
    (void)snprintf(from, sizeof(from), "%s/from/sub", test_tmpdir());
    ASSERT_OK(dir_create(from, 0755, NULL));
    (void)snprintf(path, sizeof(path), "%s/big", from);
    data = calloc(1, 700001);
    memset(data, 'z', 700000);
    ASSERT_OK(file_write_atomic(path, data, 700000, 0640, NULL));
    ASSERT_EQ(chmod(path, 0640), 0);
    (void)snprintf(path, sizeof(path), "%s/link", from);
    ASSERT_EQ(symlink("big", path), 0);
    (void)snprintf(from, sizeof(from), "%s/from", test_tmpdir());
    (void)snprintf(to, sizeof(to), "%s/to", test_tmpdir());
    (void)snprintf(text, sizeof(text),
                   "{\"steps\": [{\"copy\": {\"from\": \"%s\", \"to\": \"%s\"}}]}", from, to);
    if (!build(&f, "mine", text, &made)[0])
        test_fail(__FILE__, __LINE__, "%s", made.err.text);
    free(TAKE_PTR(data));
    (void)snprintf(path, sizeof(path), "%s/sub/big", to);
    ASSERT_OK(file_read(path, 1000000, &data, &size, NULL));
    ASSERT_EQ(size, 700000);
    ASSERT_EQ(strspn(data, "z"), 700000);
    ASSERT_EQ(stat(path, &st), 0);
    ASSERT_EQ(st.st_mode & 07777, 0640);
    (void)snprintf(path, sizeof(path), "%s/sub/link", to);
    ASSERT_EQ(lstat(path, &st), 0);
    ASSERT_TRUE(S_ISLNK(st.st_mode));
    json_decref(made.template);
    fixture_end(&f);
}

static void flip(const struct fixture *f, const char *id, const char *file)
{
    char path[400], byte;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/templates/%s/%s", f->state, id, file);
    ASSERT_EQ(chmod(path, 0600), 0);
    fd = open(path, O_RDWR | O_CLOEXEC);
    ASSERT_TRUE(fd >= 0);
    ASSERT_EQ(pread(fd, &byte, 1, 0), 1);
    byte = (char)~byte;
    ASSERT_EQ(pwrite(fd, &byte, 1, 0), 1);
    (void)close(fd);
}

TEST(flipped_bit_in_a_built_template_is_refused)
{
    static const char *const files[] = {"state", "memory", "disk", "recipe.json"};
    struct fixture f;
    struct made made = {0};
    struct created c;
    char id[64];

    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        unsigned restores;

        fixture_begin(&f);
        (void)snprintf(id, sizeof(id), "%s", build(&f, "mine", "{\"ready\": \":\"}", &made));
        ASSERT_TRUE(id[0]);
        json_decref(TAKE_PTR(made.template));
        wanted_template = "mine";
        fixture_remove(&f, fixture_sandbox(&f, ask_template, NULL));
        if (i != 3) { /* while the daemon runs: stat tells */
            flip(&f, id, files[i]);
            restores = fake_knobs.n_restores;
            ASSERT_TRUE(!fixture_sandbox(&f, ask_template, &c));
            ASSERT_EQ(c.err.code, ERR_TEMPLATE_INVALID);
            ASSERT_EQ(fake_knobs.n_restores, restores);
            flip(&f, id, files[i]);
        }
        fixture_drop(&f);
        flip(&f, id, files[i]); /* while none did: the digest tells */
        fixture_restart(&f);
        ASSERT_TRUE(!fixture_sandbox(&f, ask_template, &c));
        ASSERT_EQ(c.err.code, ERR_TEMPLATE_INVALID);
        ASSERT_TRUE(strstr(c.err.text, "build it again"));
        ASSERT_TRUE(build(&f, "mine", "{\"ready\": \":\"}", &made)[0]); /* makes it again */
        fixture_ping(&f, fixture_sandbox(&f, ask_template, NULL));
        json_decref(TAKE_PTR(made.template));
        fixture_end(&f);
    }
}

TEST(built_template_is_never_booted_instead)
{
    struct fixture f;
    struct made made = {0};
    struct created c;

    fixture_begin(&f);
    ASSERT_TRUE(build(&f, "mine", "{\"ready\": \":\"}", &made)[0]);
    fake_knobs.fail_restore = true;
    wanted_template = "mine";
    ASSERT_TRUE(!fixture_sandbox(&f, ask_template, &c));
    ASSERT_EQ(fake_knobs.n_boots, 1);
    fake_knobs.fail_restore = false;
    fixture_ping(&f, fixture_sandbox(&f, ask_template, NULL)); /* and it stays */
    json_decref(made.template);
    fixture_end(&f);
}

TEST(names_can_be_removed)
{
    struct fixture f;
    struct made made = {0};
    struct created c;
    struct error err = {0};

    fixture_begin(&f);
    ASSERT_TRUE(build(&f, "one", "{\"ready\": \":\"}", &made)[0]);
    ASSERT_TRUE(build(&f, "two", "{\"ready\": \":\"}", &made)[0]);
    ASSERT_EQ(fake_knobs.n_boots, 1);
    ASSERT_OK(core_template_remove(f.core, "one", NULL));
    wanted_template = "two";
    (void)fixture_sandbox(&f, ask_template, NULL);
    wanted_template = "one";
    ASSERT_TRUE(!fixture_sandbox(&f, ask_template, &c));
    ASSERT_EQ(c.err.code, ERR_TEMPLATE_NOT_FOUND);
    ASSERT_OK(core_template_remove(f.core, "two", NULL));
    ASSERT_TRUE(!core_template_to_json(f.core, "two", &err));
    ASSERT_EQ(err.code, ERR_TEMPLATE_NOT_FOUND);
    json_decref(made.template);
    fixture_end(&f);
}

static bool is_listed(struct fixture *f, const char *id_or_name)
{
    json_t *json = core_template_to_json(f->core, id_or_name, NULL);

    json_decref(json);
    return json != NULL;
}

TEST(sandboxes_keep_what_they_stand_on)
{
    struct fixture f;
    struct made made = {0};
    struct sandbox *sb;
    char first[64];

    fixture_begin(&f);
    (void)snprintf(first, sizeof(first), "%s", build(&f, "mine", "{\"ready\": \":\"}", &made));
    wanted_template = "mine";
    sb = fixture_sandbox(&f, ask_template, NULL);
    ASSERT_TRUE(build(&f, "mine", "{\"ready\": \"true\"}", &made)[0]); /* takes the name */
    ASSERT_TRUE(is_listed(&f, first));
    fixture_sleep(&f, sb);
    fixture_wake(&f, sb);

    wanted_template = "mine";
    sb = fixture_sandbox(&f, ask_template, NULL);
    ASSERT_OK(core_template_remove(f.core, "mine", NULL));
    ASSERT_FALSE(is_listed(&f, "mine"));
    ASSERT_TRUE(is_listed(&f, sb->template_id));
    fixture_sleep(&f, sb);
    fixture_wake(&f, sb);
    json_decref(made.template);
    fixture_end(&f);
}

static uint64_t wanted_mib;
static void ask_disk(struct sandbox_spec *spec)
{
    spec->disk_mib = wanted_mib;
}

TEST(least_recently_used_that_nobody_needs_goes)
{
    struct fixture f;
    struct made made = {0};
    struct sandbox *first = NULL, *others[40];
    char id[64], second[64];

    fixture_begin(&f);
    wanted_mib = 16;
    first = fixture_sandbox(&f, ask_disk, NULL);
    ASSERT_TRUE(build(&f, "named", "{\"ready\": \":\"}", &made)[0]);
    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        wanted_mib = 17 + i;
        others[i] = fixture_sandbox(&f, ask_disk, NULL);
    }
    ASSERT_EQ(f.core->n_templates, ARRAY_SIZE(others) + 2); /* all are needed */
    (void)snprintf(second, sizeof(second), "%s", others[0]->template_id);
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        fixture_remove(&f, others[i]);
    for (size_t i = 0; i < 20; i++) {
        wanted_mib = 100 + i;
        fixture_remove(&f, fixture_sandbox(&f, ask_disk, NULL));
    }
    ASSERT_FALSE(is_listed(&f, second));
    (void)snprintf(id, sizeof(id), "%s", first->template_id);
    ASSERT_TRUE(is_listed(&f, id) && is_listed(&f, "named"));
    ASSERT_EQ(f.core->n_templates, CORE_TEMPLATES_SPARE_MAX + 2);
    fixture_sleep(&f, first);
    fixture_wake(&f, first);
    fixture_restart(&f);
    ASSERT_EQ(f.core->n_templates, CORE_TEMPLATES_SPARE_MAX + 2);
    json_decref(made.template);
    fixture_end(&f);
}

TEST(build_cut_off_leaves_nothing)
{
    static const struct template_make_callbacks callbacks = {on_progress, on_output, on_done};
    struct fixture f;
    bool done = false;

    fixture_begin(&f);
    for (unsigned turns = 0; turns < 60 && !done; turns++) {
        struct made made = {0};
        struct template_make *make = NULL;
        struct sandbox_spec machine;
        struct recipe recipe = {0};
        json_t *json = json_loads("{\"steps\": [{\"run\": \":\"}], \"ready\": \":\"}", 0, NULL);

        ASSERT_OK(recipe_from_json(json, &recipe, NULL));
        json_decref(json);
        sandbox_spec_init(&machine);
        machine.disk_mib = 16;
        ASSERT_OK(
            core_template_make(f.core, "mine", &machine, &recipe, &callbacks, &made, &make, NULL));
        sandbox_spec_done(&machine);
        recipe_done(&recipe);
        for (unsigned i = 0; i < turns && !made.done; i++)
            ASSERT_OK(loop_run_once(f.loop, 100 * USEC_PER_MSEC));
        done = made.done;
        (void)template_make_free(make);
        json_decref(made.template);
        fixture_restart(&f);
        ASSERT_EQ(fixture_count(&f, "fake"), 0);
        for (uint64_t end = clock_now_usec() + 5 * USEC_PER_SEC;
             fixture_count(&f, "templates") > 1;) {
            ASSERT_TRUE(clock_now_usec() < end);
            ASSERT_OK(loop_run_once(f.loop, 10 * USEC_PER_MSEC));
        }
    }
    ASSERT_TRUE(done);
    fixture_end(&f);
}
