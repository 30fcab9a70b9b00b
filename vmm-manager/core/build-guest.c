#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/build-private.h"
#include "core/core-private.h"
#include "core/timeouts.h"

/*
 * Theory of operation. A sandbox is booted from the image that the builder names; a fresh layer is
 * put over it, the command runs in that, another layer is put over the result (which ends whatever
 * the command left running), and the one below is read as a tar. The next command runs in the layer
 * that is there already when the builder says that it wants to go on from these files; else it gets
 * a sandbox of its own.
 *
 *   create -> layer -> run -> layer -> read -> (run -> layer -> read)…
 */
#define LAYER_USEC (60 * USEC_PER_SEC)
#define LAYERS_MAX 60u /* what one guest can put over each other */
#define TAR_MAX (UINT64_C(64) * 1024 * 1024 * 1024)

static void done(struct build_guest *g, const struct error *err)
{
    g->busy = false;
    build_guest_done(g->build, err);
}

static void fail(struct build_guest *g, const struct error *err)
{
    /* Its console may tell of the same thing more than once. */
    if (g->busy)
        done(g, err);
}

static void fail_errno(struct build_guest *g, int r, const char *what)
{
    struct error err = {0};

    (void)error_set(&err, -r, "%s: %s", what, errno_text(-r));
    fail(g, &err);
}

/* Nothing of the guest calls back any more. */
static void hang_up(struct build_guest *g)
{
    g->exec = exec_free(g->exec);
    g->transfer = transfer_free(g->transfer);
    g->watch = sandbox_watch_free(g->watch);
    g->tar_fd = fd_close(g->tar_fd);
}

/* Somebody waits for a sandbox to be gone; outlives him. */
struct build_farewell {
    struct build_guest *guest; /* weak; NULL: nobody waits any more */
    backend_done_fn fn;
    void *userdata;
};

static void on_removed(const struct error *err, void *userdata)
{
    struct build_farewell *f = userdata;

    if (f->guest) {
        f->guest->farewell = NULL;
        f->fn(err, f->userdata);
    }
    free(f);
}

void build_guest_end(struct build_guest *g, backend_done_fn fn, void *userdata)
{
    struct sandbox *sb = TAKE_PTR(g->sb);
    struct build_farewell *f = fn && sb ? calloc(1, sizeof(*f)) : NULL;

    hang_up(g);
    g->state[0] = '\0';
    if (sb && g->creating)
        sandbox_create_forget(sb, g);
    g->creating = false;
    if (f) {
        *f = (struct build_farewell){g, fn, userdata};
        g->farewell = f;
    }
    if (sb && sandbox_remove(sb, f ? on_removed : NULL, f) >= 0 && f)
        return;
    free(f);
    g->farewell = NULL;
    if (fn)
        fn(NULL, userdata);
}

void build_guest_free(struct build_guest *g)
{
    if (g->farewell)
        g->farewell->guest = NULL;
    g->farewell = NULL;
    build_guest_end(g, NULL, NULL);
}

void build_guest_set_state(struct build_guest *g, const char *state)
{
    if (g->sb)
        (void)snprintf(g->state, sizeof(g->state), "%s", state);
}

/* ---- read ---- */

static void on_data(struct transfer *t, const uint8_t *data, size_t size, void *userdata)
{
    struct build_guest *g = userdata;
    struct error err = {0};
    int r;

    g->tar_bytes += size;
    if (g->tar_bytes > TAR_MAX) {
        (void)error_set_code(&err, ERR_LIMIT_EXCEEDED, "its files are more than %llu GiB",
                             (unsigned long long)(TAR_MAX >> 30));
        fail(g, &err);
        return;
    }
    r = fault_at("build-data");
    if (r == 0)
        r = fd_write_full(g->tar_fd, data, size);
    if (r < 0)
        fail_errno(g, r, "keep its files");
    else
        transfer_consumed(t, size);
}

static void on_read(struct transfer *t, const struct error *err, void *userdata)
{
    struct build_guest *g = userdata;

    (void)t;
    g->transfer = transfer_free(g->transfer);
    if (err) {
        fail(g, err);
        return;
    }
    done(g, NULL);
}

static void read_layer(struct build_guest *g, struct console *c)
{
    static const struct transfer_callbacks callbacks = {.on_data = on_data, .on_done = on_read};
    struct error err = {0};

    g->tar_bytes = 0;
    g->tar_fd = fault_check("build-read", &err) < 0 ? -EIO : build_temporary(g->core, &err);
    if (g->tar_fd < 0 || layer_read_start(c, g->read_layer, &callbacks, g, &g->transfer, &err) < 0)
        fail(g, &err);
}

/* ---- run ---- */

static void on_started(struct exec *e, uint64_t process_id, uint32_t pid,
                       const struct exec_range ranges[EXEC_STREAMS_MAX], void *userdata)
{
    (void)e;
    (void)process_id;
    (void)pid;
    (void)ranges;
    (void)userdata;
}

static void on_output(struct exec *e, uint8_t stream, uint64_t offset, const uint8_t *data,
                      size_t size, void *userdata)
{
    struct build_guest *g = userdata;

    (void)e;
    (void)offset;
    build_guest_output(g->build, stream, data, size);
}

static void start_layer(struct build_guest *g, struct console *c, console_done_fn fn);

static void on_sealed(struct console *c, const struct error *err, void *userdata)
{
    struct build_guest *g = userdata;

    if (err) {
        fail(g, err);
        return;
    }
    g->read_layer = g->layers++;
    read_layer(g, c);
}

static void on_exit_status(struct exec *e, const struct exec_exit *exit, void *userdata)
{
    struct build_guest *g = userdata;
    struct console *c;
    struct error err = {0};

    (void)e;
    g->exec = exec_free(g->exec);
    if (exit->oom_killed)
        (void)error_set_code(&err, ERR_GUEST_OUT_OF_MEMORY,
                             "the sandbox ran out of memory (%u MiB)",
                             build_machine(g->build)->memory_mib);
    else if (exit->timed_out)
        (void)error_set_code(&err, ERR_BUILD_FAILED, "the command did not end within %u s",
                             build_run_timeout_msec(g->build) / 1000);
    else if (exec_exit_code(exit) != 0)
        (void)error_set_code(&err, ERR_BUILD_FAILED, "exit code %d", exec_exit_code(exit));
    if (err.errnum) {
        fail(g, &err);
        return;
    }
    c = sandbox_console(g->sb, &err);
    if (!c)
        fail(g, &err);
    else
        start_layer(g, c, on_sealed);
}

static void on_closed(struct exec *e, const struct error *reason, void *userdata)
{
    struct build_guest *g = userdata;
    struct error err = *reason;

    (void)e;
    g->exec = exec_free(g->exec);
    if (!err.errnum)
        (void)error_set_code(&err, ERR_INTERNAL, "the command ended without a status");
    fail(g, &err);
}

static void run_command(struct build_guest *g, struct console *c)
{
    static const struct exec_callbacks callbacks = {
        .on_started = on_started,
        .on_output = on_output,
        .on_exit = on_exit_status,
        .on_closed = on_closed,
    };
    const struct builder_next *next = build_next(g->build);
    const struct exec_spec spec = {
        .argv = next->argv,
        .env = next->env,
        .cwd = next->workdir ? next->workdir : "/",
        .user = next->user,
        .timeout_msec = build_run_timeout_msec(g->build),
        .close_stdin = true,
        .label = "build",
    };
    struct error err = {0};

    if (fault_check("build-run", &err) < 0 ||
        exec_start(c, &spec, &callbacks, g, &g->exec, &err) < 0)
        fail(g, &err);
}

/* ---- layers ---- */

static void start_layer(struct build_guest *g, struct console *c, console_done_fn fn)
{
    int r = fault_at("build-layer");

    if (r == 0)
        r = console_new_layer(c, clock_now_usec() + LAYER_USEC, fn, g);
    if (r < 0)
        fail_errno(g, r, "put a layer over the root");
}

static void on_first_layer(struct console *c, const struct error *err, void *userdata)
{
    struct build_guest *g = userdata;

    if (err) {
        fail(g, err);
        return;
    }
    g->layers = 1;
    run_command(g, c);
}

/* ---- sandbox ---- */

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct build_guest *g = userdata;
    struct error err = *reason;

    (void)sb;
    g->watch = sandbox_watch_free(g->watch);
    g->exec = exec_free(g->exec);
    g->transfer = transfer_free(g->transfer);
    if (!err.errnum)
        (void)error_set_code(&err, ERR_GUEST_GONE, "the sandbox is gone");
    if (g->busy)
        fail(g, &err);
    else
        build_guest_end(g, NULL, NULL); /* the next command gets another one */
}

static void on_progress(const char *step, int percent, void *userdata)
{
    struct build_guest *g = userdata;

    build_guest_progress(g->build, step, percent);
}

static void on_created(struct sandbox *sb, const struct error *err, void *userdata)
{
    struct build_guest *g = userdata;
    struct error why = {0};
    struct console *c;

    g->creating = false;
    if (err) {
        g->sb = NULL; /* nothing is left of it */
        fail(g, err);
        return;
    }
    c = sandbox_console(sb, &why);
    if (!c) {
        fail(g, &why);
    } else if (sandbox_watch_new(sb, on_gone, g, &g->watch) < 0) {
        fail_errno(g, -ENOMEM, "watch the sandbox");
    } else if (g->command) {
        start_layer(g, c, on_first_layer);
    } else {
        g->read_layer = 0;
        read_layer(g, c);
    }
}

static int spec_for(struct build_guest *g, const char *image, struct sandbox_spec *ret)
{
    const char *name = build_name(g->build);
    _cleanup_free_ char *mark = string_printf("build=%s", name ? name : "");
    int r = sandbox_spec_copy(build_machine(g->build), ret);

    if (r >= 0)
        r = string_set(&ret->image, image);
    if (r >= 0)
        r = mark ? strv_append(&ret->metadata, mark) : -ENOMEM;
    ret->build = true;
    return r;
}

static void create(struct build_guest *g, const char *image)
{
    static const struct sandbox_create_callbacks callbacks = {on_progress, on_created};
    struct sandbox_spec spec;
    struct error err = {0};
    int r;

    sandbox_spec_init(&spec);
    sandbox_spec_done(&spec);
    r = fault_check("build-create", &err);
    if (r == 0)
        r = spec_for(g, image, &spec);
    g->layers = 0;
    g->creating = true;
    if (r < 0 || sandbox_create(g->core, &spec, &callbacks, g, &g->sb, &err) < 0) {
        g->creating = false;
        g->sb = NULL;
        error_fill(&err, -ENOMEM, "make a sandbox");
        fail(g, &err);
    }
    sandbox_spec_done(&spec);
}

static void on_old_gone(const struct error *err, void *userdata)
{
    struct build_guest *g = userdata;

    (void)err;
    create(g, build_next(g->build)->image);
}

void build_guest_start(struct build_guest *g, const struct builder_next *next)
{
    struct error err = {0};
    struct console *c;

    g->command = next->need == BUILDER_RUN;
    g->busy = true;
    if (g->sb && g->command && strcmp(g->state, next->state) == 0 && g->layers < LAYERS_MAX) {
        c = sandbox_console(g->sb, &err);
        if (!c)
            fail(g, &err);
        else
            run_command(g, c);
        return;
    }
    build_guest_end(g, on_old_gone, g);
}
