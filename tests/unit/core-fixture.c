#include "core-fixture.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"
#include "erofs/image.h"

#define WAIT_USEC (20 * USEC_PER_SEC)

static const struct core_backend_factory factories[] = {{"fake", backend_fake_new}};

static void write_file(const char *path, const char *text)
{
    ASSERT_OK(file_write_atomic(path, text, strlen(text), 0755, NULL));
}

/* Once for the program: the places are remembered by base/paths. */
static void make_cache(void)
{
    static bool made;
    char cache[128], path[256];
    struct image image;
    struct error err = {0};

    if (made)
        return;
    made = true;
    log_set_level(getenv("HEARTH_TEST_LOG") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
    (void)snprintf(cache, sizeof(cache), "%s/cache", test_tmpdir());
    (void)setenv("HEARTH_CACHE", cache, 1);
    (void)snprintf(path, sizeof(path), "%s/kernels/minimal", cache);
    ASSERT_OK(dir_create(path, 0755, NULL));
    (void)snprintf(path, sizeof(path), "%s/kernels/minimal/kernel", cache);
    write_file(path, "kernel");
    (void)snprintf(path, sizeof(path), "%s/kernels/minimal/info.json", cache);
    write_file(path,
               "{\"name\": \"minimal\", \"version\": \"6.1\", \"source\": \"test\", \"sha256\": "
               "\"0123456789012345678901234567890123456789012345678901234567890123\"}");
    (void)snprintf(path, sizeof(path), "%s/init", cache);
    write_file(path, "init");
    (void)snprintf(path, sizeof(path), "%s/root/bin", test_tmpdir());
    ASSERT_OK(dir_create(path, 0755, NULL));
    (void)snprintf(path, sizeof(path), "%s/root", test_tmpdir());
    if (image_import("base", path, NULL, NULL, &image, &err) < 0)
        test_fail(__FILE__, __LINE__, "image: %s", err.text);
}

static void make_core(struct fixture *f)
{
    struct error err = {0};

    if (core_new(f->loop, &f->options, &f->core, &err) < 0)
        test_fail(__FILE__, __LINE__, "core: %s", err.text);
}

static void on_recovered(const struct error *err, void *userdata)
{
    bool *done = userdata;

    ASSERT_TRUE(!err);
    *done = true;
}

void fixture_recover(struct fixture *f)
{
    bool done = false;

    ASSERT_OK(core_recover(f->core, on_recovered, &done));
    fixture_wait(f, &done);
}

void fixture_begin(struct fixture *f)
{
    static unsigned number;
    static char init_path[256];

    make_cache();
    *f = (struct fixture){0};
    fake_knobs = (struct fake_knobs){0};
    (void)snprintf(f->state, sizeof(f->state), "%s/s%u", test_tmpdir(), number++);
    (void)snprintf(init_path, sizeof(init_path), "%s/cache/init", test_tmpdir());
    f->options = (struct core_options){
        .state_dir = f->state,
        .backends = factories,
        .n_backends = ARRAY_SIZE(factories),
        .init_path = init_path,
        .min_free_mib = 1,
        .answer_timeout_usec = 10 * USEC_PER_SEC,
    };
    ASSERT_OK(loop_new(&f->loop));
    make_core(f);
    fixture_recover(f);
}

static void on_removed(const struct error *err, void *userdata)
{
    bool *done = userdata;

    if (err)
        test_fail(__FILE__, __LINE__, "remove: %s", err->text);
    *done = true;
}

void fixture_remove(struct fixture *f, struct sandbox *sb)
{
    bool done = false;

    ASSERT_OK(sandbox_remove(sb, on_removed, &done));
    fixture_wait(f, &done);
}

static void first_sandbox(struct sandbox *sb, void *userdata)
{
    struct sandbox **first = userdata;

    if (!*first)
        *first = sb;
}

/* Nothing may be left: no sandbox, no directory, no process of the fake backend. */
void fixture_end(struct fixture *f)
{
    for (;;) {
        struct sandbox *first = NULL;

        sandbox_each(f->core, first_sandbox, &first);
        if (!first)
            break;
        fixture_remove(f, first);
    }
    ASSERT_EQ(fixture_count(f, "sandboxes"), 0);
    ASSERT_EQ(fixture_count(f, "fake"), 0);
    f->core = core_free(f->core);
    f->loop = loop_free(f->loop);
}

void fixture_drop(struct fixture *f)
{
    f->core = core_free(f->core);
}

void fixture_restart(struct fixture *f)
{
    if (f->core)
        fixture_drop(f);
    make_core(f);
    fixture_recover(f);
}

void fixture_wait(struct fixture *f, const bool *flag)
{
    uint64_t deadline = clock_now_usec() + WAIT_USEC;

    while (!*flag) {
        if (clock_now_usec() >= deadline)
            test_fail(__FILE__, __LINE__, "nothing happened for 20 s");
        ASSERT_OK(loop_run_once(f->loop, 100 * USEC_PER_MSEC));
    }
}

void fixture_wait_state(struct fixture *f, const char *id, int state)
{
    uint64_t deadline = clock_now_usec() + WAIT_USEC;

    for (;;) {
        struct sandbox *sb = sandbox_find(f->core, id, NULL);

        if (sb ? (int)sandbox_get_state(sb) == state : state < 0)
            return;
        if (clock_now_usec() >= deadline)
            test_fail(__FILE__, __LINE__, "sandbox is %s, waited for %d",
                      sb ? sandbox_state_name(sandbox_get_state(sb)) : "gone", state);
        ASSERT_OK(loop_run_once(f->loop, 100 * USEC_PER_MSEC));
    }
}

static void on_progress(const char *step, int percent, void *userdata)
{
    struct created *c = userdata;

    (void)step;
    (void)percent;
    c->n_progress++;
}

static void on_done(struct sandbox *sb, const struct error *err, void *userdata)
{
    struct created *c = userdata;

    ASSERT_FALSE(c->done);
    ASSERT_TRUE(!sb == !!err);
    c->done = true;
    c->sandbox = sb;
    if (err)
        c->err = *err;
}

int fixture_create(struct fixture *f, void (*change)(struct sandbox_spec *spec),
                   struct created *ret, struct error *err)
{
    static const struct sandbox_create_callbacks callbacks = {on_progress, on_done};
    struct sandbox_spec spec;
    int r;

    *ret = (struct created){0};
    sandbox_spec_init(&spec);
    spec.disk_mib = 16;
    if (change)
        change(&spec);
    r = sandbox_create(f->core, &spec, &callbacks, ret, &ret->sandbox, err);
    sandbox_spec_done(&spec);
    return r;
}

struct sandbox *fixture_sandbox(struct fixture *f, void (*change)(struct sandbox_spec *spec),
                                struct created *ret)
{
    struct created mine, *c = ret ? ret : &mine;
    struct error err = {0};

    if (fixture_create(f, change, c, &err) < 0)
        test_fail(__FILE__, __LINE__, "create: %s", err.text);
    fixture_wait(f, &c->done);
    if (!ret && !c->sandbox)
        test_fail(__FILE__, __LINE__, "create: %s", c->err.text);
    return c->sandbox;
}

size_t fixture_count(struct fixture *f, const char *sub)
{
    _cleanup_free_ char *path = string_printf("%s/%s", f->state, sub);
    DIR *dir = opendir(path);
    struct dirent *entry;
    size_t n = 0;

    ASSERT_TRUE(dir);
    while ((entry = readdir(dir)))
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void on_pong(struct console *c, const struct error *err, void *userdata)
{
    bool *done = userdata;

    (void)c;
    if (err)
        test_fail(__FILE__, __LINE__, "ping: %s", err->text);
    *done = true;
}

void fixture_ping(struct fixture *f, struct sandbox *sb)
{
    struct error err = {0};
    struct console *console = sandbox_console(sb, &err);
    bool done = false;

    if (!console)
        test_fail(__FILE__, __LINE__, "console: %s", err.text);
    ASSERT_OK(console_ping(console, clock_now_usec() + 5 * USEC_PER_SEC, on_pong, &done));
    fixture_wait(f, &done);
}
