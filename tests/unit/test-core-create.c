#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/strv.h"
#include "core-fixture.h"

TEST(creates_from_a_template_that_is_made_once)
{
    struct fixture f;
    struct sandbox *first, *second;
    json_t *json;

    fixture_begin(&f);
    first = fixture_sandbox(&f, NULL, NULL);
    ASSERT_EQ(sandbox_get_state(first), SANDBOX_RUNNING);
    ASSERT_EQ(fake_knobs.n_boots, 1);
    ASSERT_EQ(fake_knobs.n_saves, 1);
    ASSERT_EQ(fake_knobs.n_restores, 1);
    fixture_ping(&f, first);
    second = fixture_sandbox(&f, NULL, NULL);
    ASSERT_EQ(fake_knobs.n_boots, 1);
    ASSERT_EQ(fake_knobs.n_restores, 2);
    ASSERT_TRUE(sandbox_pid(first) != sandbox_pid(second));
    json = sandbox_to_json(second);
    ASSERT_STREQ(json_string_value(json_object_get(json, "state")), "running");
    ASSERT_STREQ(json_string_value(json_object_get(json, "backend")), "fake");
    ASSERT_EQ(json_integer_value(json_object_get(json, "disk_mib")), 16);
    ASSERT_TRUE(json_is_true(json_object_get(json_object_get(json, "timings"), "cold")) == 0);
    json_decref(json);
    ASSERT_EQ(fixture_count(&f, "templates"), 1);
    fixture_end(&f);
}

TEST(creations_at_once_wait_for_one_template)
{
    struct fixture f;
    struct created created[8];

    fixture_begin(&f);
    for (size_t i = 0; i < ARRAY_SIZE(created); i++)
        ASSERT_OK(fixture_create(&f, NULL, &created[i], NULL));
    for (size_t i = 0; i < ARRAY_SIZE(created); i++) {
        fixture_wait(&f, &created[i].done);
        ASSERT_TRUE(created[i].sandbox);
        ASSERT_TRUE(created[i].n_progress > 0);
    }
    ASSERT_EQ(fake_knobs.n_boots, 1);
    ASSERT_EQ(fake_knobs.n_restores, ARRAY_SIZE(created));
    fixture_end(&f);
}

TEST(more_creations_than_may_be_in_flight_are_queued)
{
    struct fixture f;
    struct created created[24];

    fixture_begin(&f);
    for (size_t i = 0; i < ARRAY_SIZE(created); i++)
        ASSERT_OK(fixture_create(&f, NULL, &created[i], NULL));
    for (size_t i = 0; i < ARRAY_SIZE(created); i++) {
        fixture_wait(&f, &created[i].done);
        ASSERT_TRUE(created[i].sandbox);
    }
    fixture_end(&f);
}

TEST(failed_boot_is_reported_and_leaves_nothing)
{
    struct fixture f;
    struct created c;

    fixture_begin(&f);
    fake_knobs.fail_boot = true;
    ASSERT_TRUE(!fixture_sandbox(&f, NULL, &c));
    ASSERT_EQ(c.err.code, ERR_BACKEND_FAILED);
    ASSERT_EQ(fixture_count(&f, "sandboxes"), 0);
    fake_knobs.fail_boot = false;
    (void)fixture_sandbox(&f, NULL, NULL);
    fixture_end(&f);
}

TEST(failed_restore_discards_the_template_and_boots_cold)
{
    struct fixture f;
    struct sandbox *sb;
    json_t *json;

    fixture_begin(&f);
    fake_knobs.fail_restore = true;
    sb = fixture_sandbox(&f, NULL, NULL);
    ASSERT_EQ(fake_knobs.n_boots, 2); /* the template's and its own */
    json = sandbox_to_json(sb);
    ASSERT_TRUE(json_is_true(json_object_get(json_object_get(json, "timings"), "cold")));
    json_decref(json);
    fixture_ping(&f, sb);
    fake_knobs.fail_restore = false;
    (void)fixture_sandbox(&f, NULL, NULL); /* makes a new template */
    ASSERT_EQ(fake_knobs.n_boots, 3);
    fixture_end(&f);
}

TEST(failed_save_boots_cold)
{
    struct fixture f;

    fixture_begin(&f);
    fake_knobs.fail_save = true;
    fixture_ping(&f, fixture_sandbox(&f, NULL, NULL));
    fixture_ping(&f, fixture_sandbox(&f, NULL, NULL));
    ASSERT_EQ(fake_knobs.n_saves, 1); /* not tried again and again */
    ASSERT_EQ(fake_knobs.n_boots, 3);
    ASSERT_EQ(fake_knobs.n_restores, 0);
    fixture_end(&f);
}

TEST(backend_without_snapshots_boots_cold)
{
    struct fixture f;

    fixture_begin(&f);
    fake_knobs.no_snapshots = true;
    fixture_ping(&f, fixture_sandbox(&f, NULL, NULL));
    ASSERT_EQ(fake_knobs.n_boots, 1);
    ASSERT_EQ(fixture_count(&f, "templates"), 0);
    fixture_end(&f);
}

TEST(guest_that_never_answers_fails_with_its_last_line)
{
    struct fixture f;
    struct created c;

    fixture_begin(&f);
    f.core = core_free(f.core);
    f.options.answer_timeout_usec = 600 * USEC_PER_MSEC;
    fixture_restart(&f);
    fake_knobs.boot_mode = "mute";
    ASSERT_TRUE(!fixture_sandbox(&f, NULL, &c));
    ASSERT_EQ(c.err.code, ERR_GUEST_UNRESPONSIVE);
    ASSERT_TRUE(strstr(c.err.text, "fake guest, mode mute"));
    ASSERT_EQ(fixture_count(&f, "fake"), 0);
    fixture_end(&f);
}

TEST(clone_that_never_answers_falls_back_then_fails)
{
    struct fixture f;
    struct created c;

    fixture_begin(&f);
    f.core = core_free(f.core);
    f.options.answer_timeout_usec = 600 * USEC_PER_MSEC;
    fixture_restart(&f);
    fake_knobs.restore_mode = "mute";
    fixture_ping(&f, fixture_sandbox(&f, NULL, NULL)); /* unproven template: booted cold */
    fake_knobs.restore_mode = NULL;
    fixture_ping(&f, fixture_sandbox(&f, NULL, NULL)); /* proves a new one */
    fake_knobs.restore_mode = "mute";
    ASSERT_TRUE(!fixture_sandbox(&f, NULL, &c));
    ASSERT_EQ(c.err.code, ERR_GUEST_UNRESPONSIVE);
    ASSERT_EQ(fixture_count(&f, "sandboxes"), 2);
    fixture_end(&f);
}

TEST(panic_of_the_guest_is_told_as_such)
{
    struct fixture f;
    struct created c;

    fixture_begin(&f);
    fake_knobs.boot_mode = "panic";
    ASSERT_TRUE(!fixture_sandbox(&f, NULL, &c));
    ASSERT_EQ(c.err.code, ERR_GUEST_PANIC);
    ASSERT_TRUE(strstr(c.err.text, "Kernel panic"));
    fixture_end(&f);
}

static void ask_unknown_image(struct sandbox_spec *spec)
{
    (void)string_set(&spec->image, "nowhere");
}

TEST(unknown_image_is_named)
{
    struct fixture f;
    struct created c;

    fixture_begin(&f);
    ASSERT_TRUE(!fixture_sandbox(&f, ask_unknown_image, &c));
    ASSERT_EQ(c.err.code, ERR_IMAGE_NOT_FOUND);
    ASSERT_TRUE(strstr(c.err.text, "nowhere"));
    ASSERT_EQ(fixture_count(&f, "sandboxes"), 0);
    fixture_end(&f);
}

static void ask_unknown_backend(struct sandbox_spec *spec)
{
    (void)string_set(&spec->backend, "teleport");
}

TEST(unknown_and_unavailable_backends_are_refused)
{
    struct fixture f;
    struct created c;
    struct error err = {0};

    fixture_begin(&f);
    ASSERT_ERR(fixture_create(&f, ask_unknown_backend, &c, &err), ENODEV);
    ASSERT_EQ(err.code, ERR_BACKEND_UNAVAILABLE);
    fake_knobs.unavailable = true;
    ASSERT_TRUE(!fixture_sandbox(&f, NULL, &c));
    ASSERT_EQ(c.err.code, ERR_BACKEND_UNAVAILABLE);
    ASSERT_TRUE(strstr(c.err.text, "switched off"));
    fixture_end(&f);
}

static void ask_name(struct sandbox_spec *spec)
{
    (void)string_set(&spec->name, "kettle");
}

TEST(names_are_unique_and_found)
{
    struct fixture f;
    struct created c;
    struct sandbox *sb;
    struct error err = {0};

    fixture_begin(&f);
    sb = fixture_sandbox(&f, ask_name, NULL);
    ASSERT_TRUE(sandbox_find(f.core, "kettle", NULL) == sb);
    ASSERT_TRUE(sandbox_find(f.core, sandbox_id(sb), NULL) == sb);
    ASSERT_ERR(fixture_create(&f, ask_name, &c, &err), EEXIST);
    ASSERT_EQ(err.code, ERR_ALREADY_EXISTS);
    ASSERT_TRUE(!sandbox_find(f.core, "pot", &err));
    ASSERT_EQ(err.code, ERR_SANDBOX_NOT_FOUND);
    fixture_end(&f);
}

TEST(number_of_sandboxes_is_limited)
{
    struct fixture f;
    struct created a, b, c;
    struct error err = {0};

    fixture_begin(&f);
    f.core = core_free(f.core);
    f.options.max_sandboxes = 2;
    fixture_restart(&f);
    ASSERT_TRUE(fixture_sandbox(&f, NULL, &a));
    ASSERT_TRUE(fixture_sandbox(&f, NULL, &b));
    ASSERT_ERR(fixture_create(&f, NULL, &c, &err), EAGAIN);
    ASSERT_EQ(err.code, ERR_TOO_MANY);
    fixture_end(&f);
}

TEST(full_disk_is_refused_before_anything_is_made)
{
    struct fixture f;
    struct created c;

    fixture_begin(&f);
    f.core = core_free(f.core);
    f.options.min_free_mib = UINT32_MAX;
    fixture_restart(&f);
    ASSERT_TRUE(!fixture_sandbox(&f, NULL, &c));
    ASSERT_EQ(c.err.code, ERR_NO_SPACE);
    ASSERT_EQ(fake_knobs.n_boots, 0);
    fixture_end(&f);
}

TEST(removal_in_the_middle_of_a_creation_cancels_it)
{
    struct fixture f;
    struct created c;

    fixture_begin(&f);
    /* After 0, 1, 2, … turns of the loop: every step gets its removal once. */
    for (unsigned turns = 0; turns < 60; turns++) {
        struct sandbox *sb;
        bool ended = false;

        ASSERT_OK(fixture_create(&f, NULL, &c, NULL));
        sb = c.sandbox;
        for (unsigned i = 0; i < turns && !c.done; i++)
            ASSERT_OK(loop_run_once(f.loop, 100 * USEC_PER_MSEC));
        ended = c.done;
        fixture_remove(&f, ended ? c.sandbox : sb);
        ASSERT_TRUE(c.done);
        if (!ended)
            ASSERT_EQ(c.err.code, ERR_CANCELLED);
        ASSERT_EQ(fixture_count(&f, "sandboxes"), 0);
    }
    fixture_end(&f);
}

TEST(forgotten_creation_goes_on_without_callbacks)
{
    struct fixture f;
    struct created c;
    char id[32];

    fixture_begin(&f);
    ASSERT_OK(fixture_create(&f, NULL, &c, NULL));
    (void)snprintf(id, sizeof(id), "%s", sandbox_id(c.sandbox));
    sandbox_create_forget(c.sandbox, &c);
    fixture_wait_state(&f, id, SANDBOX_RUNNING);
    ASSERT_FALSE(c.done);
    fixture_end(&f);
}

static void ask_short_life(struct sandbox_spec *spec)
{
    spec->timeout_sec = 2;
}

TEST(life_time_ends_a_sandbox)
{
    struct fixture f;
    struct sandbox *sb;
    char id[32];

    fixture_begin(&f);
    (void)fixture_sandbox(&f, NULL, NULL); /* makes the template */
    sb = fixture_sandbox(&f, ask_short_life, NULL);
    (void)snprintf(id, sizeof(id), "%s", sandbox_id(sb));
    fixture_wait_state(&f, id, -1);
    fixture_end(&f);
}

TEST(removing_twice_is_fine)
{
    struct fixture f;
    struct sandbox *sb;

    fixture_begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    ASSERT_OK(sandbox_remove(sb, NULL, NULL));
    fixture_remove(&f, sb);
    fixture_end(&f);
}

TEST(template_is_used_by_id_and_removed)
{
    struct fixture f;
    struct error err = {0};
    struct sandbox *sb;
    json_t *templates;
    const char *id;

    fixture_begin(&f);
    sb = fixture_sandbox(&f, NULL, NULL);
    templates = core_templates_to_json(f.core);
    ASSERT_EQ(json_array_size(templates), 1);
    id = json_string_value(json_object_get(json_array_get(templates, 0), "id"));
    ASSERT_TRUE(core_template_remove(f.core, id, &err) < 0);
    ASSERT_EQ(err.code, ERR_CONFLICT);
    ASSERT_TRUE(strstr(err.text, id) && strstr(err.text, "sandboxes stand on it"));
    fixture_remove(&f, sb);
    ASSERT_OK(core_template_remove(f.core, id, &err));
    ASSERT_ERR(core_template_remove(f.core, id, &err), ENOENT);
    ASSERT_EQ(err.code, ERR_TEMPLATE_NOT_FOUND);
    json_decref(templates);
    (void)fixture_sandbox(&f, NULL, NULL);
    ASSERT_EQ(fake_knobs.n_boots, 2);
    fixture_end(&f);
}

static char wanted_template[64];

static void ask_template(struct sandbox_spec *spec)
{
    (void)string_set(&spec->image, NULL);
    (void)string_set(&spec->template, wanted_template);
    spec->disk_mib = 4096; /* the template's own size counts */
}

TEST(template_named_by_id_gives_its_machine)
{
    struct fixture f;
    struct created c;
    json_t *templates;

    fixture_begin(&f);
    (void)fixture_sandbox(&f, NULL, NULL);
    templates = core_templates_to_json(f.core);
    (void)snprintf(wanted_template, sizeof(wanted_template), "%s",
                   json_string_value(json_object_get(json_array_get(templates, 0), "id")));
    json_decref(templates);
    ASSERT_TRUE(fixture_sandbox(&f, ask_template, &c));
    ASSERT_EQ(fake_knobs.n_boots, 1);
    (void)snprintf(wanted_template, sizeof(wanted_template), "nope");
    ASSERT_TRUE(!fixture_sandbox(&f, ask_template, &c));
    ASSERT_EQ(c.err.code, ERR_TEMPLATE_NOT_FOUND);
    fixture_end(&f);
}

TEST(damaged_template_is_made_again)
{
    struct fixture f;
    json_t *templates;
    char path[512];

    fixture_begin(&f);
    fixture_remove(&f, fixture_sandbox(&f, NULL, NULL));
    templates = core_templates_to_json(f.core);
    (void)snprintf(path, sizeof(path), "%s/templates/%s/state", f.state,
                   json_string_value(json_object_get(json_array_get(templates, 0), "id")));
    json_decref(templates);
    fixture_drop(&f);
    ASSERT_OK(file_write_atomic(path, "stat3", 5, 0444, NULL));
    fixture_restart(&f);
    (void)fixture_sandbox(&f, NULL, NULL);
    ASSERT_EQ(fake_knobs.n_boots, 2);
    ASSERT_EQ(fixture_count(&f, "templates"), 1);
    fixture_end(&f);
}
