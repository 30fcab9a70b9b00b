#include "core/build.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/build-private.h"
#include "core/core-private.h"

/*
 * Theory of operation. The builder (dockerfile/builder.h) and the guest take turns: a worker
 * advances the builder until a command has to run; the guest runs it and gives its layer as a file
 * without a name; the next job on a worker takes that layer and advances again. The end is told
 * when the sandbox is gone.
 *
 * The builder belongs to the job while one runs, and only a job of its own frees it: files go with
 * it. A build that is freed meanwhile tells the builder to stop and leaves it to the job's end.
 */
struct build_job;

/* The worker's side of a build. */
struct build_side {
    struct builder *builder; /* owned */
    struct build_job *job;   /* weak: that runs; its events go there */
    struct loop *loop;       /* weak */
};

struct build_job {
    struct build *build;     /* weak; NULL: nobody waits any more */
    struct core *core;       /* weak */
    struct build_side *side; /* owned */
    int tar_fd;              /* owned: context, layer or image */
    enum { JOB_OPEN, JOB_RAN, JOB_READ, JOB_FREE } what;
    char state[65]; /* after a command; "" otherwise */
    struct builder_next next;
    struct error err;
};

struct build {
    struct core *core; /* weak */
    struct build_callbacks cb;
    void *userdata;
    struct sandbox_spec machine; /* owned */
    char *name;                  /* owned, may be NULL */
    uint32_t run_timeout_msec;
    struct build_side *side; /* owned, while no job has it */
    struct build_job *job;   /* weak: owned by the worker */
    struct build_guest guest;
    int context_fd; /* owned */
    uint64_t context_bytes;
    struct builder_next next;
    struct image image;
    struct error err; /* of the end */
};

int build_temporary(struct core *core, struct error *err)
{
    int fd = file_open_unnamed(core->state_dir);

    return fd < 0 ? error_set(err, -fd, "make a file in '%s': %s", core->state_dir, errno_text(-fd))
                  : fd;
}

const struct builder_next *build_next(const struct build *b)
{
    return &b->next;
}

const struct sandbox_spec *build_machine(const struct build *b)
{
    return &b->machine;
}

const char *build_name(const struct build *b)
{
    return b->name;
}

uint32_t build_run_timeout_msec(const struct build *b)
{
    return b->run_timeout_msec;
}

/* ---- what the worker tells meanwhile ---- */

struct told {
    struct build_job *job; /* weak: posted before its end */
    enum { TOLD_STEP, TOLD_DONE, TOLD_WARNING, TOLD_PROGRESS } what;
    size_t index, total;
    unsigned line;
    bool cached;
    uint64_t duration_usec;
    int percent;
    char text[256];
};

static void on_told(void *userdata)
{
    struct told *t = userdata;
    struct build *b = t->job->build;

    if (b && t->what == TOLD_STEP)
        b->cb.on_step(t->index, t->total, t->line, t->text, b->userdata);
    else if (b && t->what == TOLD_DONE)
        b->cb.on_step_done(t->index, t->cached, t->duration_usec, b->userdata);
    else if (b && t->what == TOLD_WARNING)
        b->cb.on_warning(t->text, b->userdata);
    else if (b)
        b->cb.on_progress(t->text, t->percent, b->userdata);
    free(t);
}

static void post(void *userdata, const struct told *told, const char *text)
{
    struct build_side *side = userdata;
    struct told *t = malloc(sizeof(*t));

    if (!t)
        return;
    *t = *told;
    t->job = side->job;
    (void)snprintf(t->text, sizeof(t->text), "%s", text ? text : "");
    if (loop_post(side->loop, on_told, t) < 0)
        free(t);
}

static void on_step(size_t index, size_t total, unsigned line, const char *text, void *userdata)
{
    post(userdata, &(struct told){.what = TOLD_STEP, .index = index, .total = total, .line = line},
         text);
}

static void on_step_done(size_t index, bool cached, uint64_t duration_usec, void *userdata)
{
    post(userdata,
         &(struct told){
             .what = TOLD_DONE, .index = index, .cached = cached, .duration_usec = duration_usec},
         NULL);
}

static void on_warning(const char *text, void *userdata)
{
    post(userdata, &(struct told){.what = TOLD_WARNING}, text);
}

static void on_progress(int percent, const char *what, void *userdata)
{
    post(userdata, &(struct told){.what = TOLD_PROGRESS, .percent = percent}, what);
}

/* ---- jobs ---- */

static struct build_side *side_free(struct build_side *side)
{
    if (!side)
        return NULL;
    (void)builder_free(side->builder);
    free(side);
    return NULL;
}

static void job_run(void *userdata)
{
    struct build_job *job = userdata;
    struct builder *builder = job->side->builder;
    const char *state = "";
    char path[64];
    int r = 0;

    job->side->job = job;
    if (job->what != JOB_FREE && fault_check("build-take", &job->err) < 0)
        return;
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", job->tar_fd);
    switch (job->what) {
    case JOB_OPEN:
        r = builder_open(builder, path, &job->err);
        break;
    case JOB_RAN:
        r = builder_ran(builder, path, &state, &job->err);
        break;
    case JOB_READ:
        r = builder_read(builder, path, &job->err);
        break;
    case JOB_FREE:
        job->side = side_free(job->side);
        return;
    }
    job->tar_fd = fd_close(job->tar_fd);
    if (r < 0)
        return;
    (void)snprintf(job->state, sizeof(job->state), "%s", state);
    (void)builder_advance(builder, &job->next, &job->err);
}

static void job_done(void *userdata, int cancelled);

/* Takes the side, unless it fails, and the descriptor. */
static int submit(struct build *b, int what, int tar_fd_consume)
{
    struct build_job *job = calloc(1, sizeof(*job));
    int r = job ? 0 : -ENOMEM;

    if (r == 0) {
        job->build = b;
        job->core = b->core;
        job->side = b->side;
        job->tar_fd = tar_fd_consume;
        job->what = what;
        r = workers_submit(b->core->image_workers, job_run, job_done, job);
    }
    if (r < 0) {
        (void)fd_close(tar_fd_consume);
        free(job);
        return r;
    }
    b->side = NULL;
    b->job = job;
    return 0;
}

/* Files are removed on a worker; without one, here. */
static void drop_side(struct build *b)
{
    if (b->job) {
        builder_cancel(b->job->side->builder);
        b->job->build = NULL;
        b->job = NULL;
    } else if (b->side) {
        if (submit(b, JOB_FREE, -EBADF) < 0) {
            b->side = side_free(b->side);
            return;
        }
        b->job->build = NULL;
        b->job = NULL;
    }
}

/* ---- the end ---- */

static void tell_end(struct build *b)
{
    b->cb.on_done(b->err.errnum ? NULL : &b->image, b->err.errnum ? &b->err : NULL, b->userdata);
}

static void on_guest_gone(const struct error *err, void *userdata)
{
    (void)err; /* the core has told of it, and goes on trying */
    tell_end(userdata);
}

static void finish(struct build *b, const struct error *err)
{
    if (err)
        error_copy(&b->err, err);
    (void)fault_at("build-end");
    drop_side(b);
    build_guest_end(&b->guest, on_guest_gone, b);
}

static void finish_errno(struct build *b, int r, const char *what)
{
    struct error err = {0};

    (void)error_set(&err, -r, "build: %s: %s", what, errno_text(-r));
    finish(b, &err);
}

/* ---- turns ---- */

static void job_done(void *userdata, int cancelled)
{
    struct build_job *job = userdata;
    struct build *b = job->build;

    (void)fd_close(job->tar_fd);
    if (!b) {
        /* Freed in the middle: its files go too. */
        struct build gone = {.core = job->core, .side = TAKE_PTR(job->side)};

        if (cancelled || job->core->closing)
            (void)side_free(gone.side);
        else
            drop_side(&gone);
        free(job);
        return;
    }
    b->job = NULL;
    b->side = TAKE_PTR(job->side);
    b->next = job->next;
    if (job->state[0])
        build_guest_set_state(&b->guest, job->state);
    if (cancelled)
        finish_errno(b, -ECANCELED, "the daemon ends");
    else if (job->err.errnum)
        finish(b, &job->err);
    else if (b->next.need != BUILDER_DONE)
        build_guest_start(&b->guest, &b->next);
    else {
        b->image = b->next.result;
        core_images_trim(b->core);
        finish(b, NULL);
    }
    free(job);
}

void build_guest_done(struct build *b, const struct error *err)
{
    int r;

    if (err) {
        struct error why = *err;

        builder_wrap(b->side->builder, &why);
        finish(b, &why);
        return;
    }
    r = submit(b, b->next.need == BUILDER_RUN ? JOB_RAN : JOB_READ, TAKE_FD(b->guest.tar_fd));
    if (r < 0)
        finish_errno(b, r, "take a layer");
}

void build_guest_output(struct build *b, int stream, const uint8_t *data, size_t size)
{
    b->cb.on_output(stream, data, size, b->userdata);
}

void build_guest_progress(struct build *b, const char *step, int percent)
{
    b->cb.on_progress(step, percent, b->userdata);
}

void build_output_consumed(struct build *b, int stream, size_t size)
{
    if (b->guest.exec)
        exec_consumed(b->guest.exec, (uint8_t)stream, size);
}

/* ---- life ---- */

static int side_new(struct build *b, const struct build_options *o)
{
    struct builder_options options = {.name = o->name,
                                      .dockerfile = o->dockerfile,
                                      .target = o->target,
                                      .platform = o->platform,
                                      .args = o->args,
                                      .no_cache = o->no_cache,
                                      .events = {.step = on_step,
                                                 .step_done = on_step_done,
                                                 .warn = on_warning,
                                                 .progress = on_progress}};

    b->side = calloc(1, sizeof(*b->side));
    if (!b->side)
        return -ENOMEM;
    b->side->loop = b->core->loop;
    options.events.userdata = b->side;
    return builder_new(&options, &b->side->builder);
}

int core_build(struct core *core, const struct build_options *options,
               const struct build_callbacks *cb, void *userdata, struct build **ret,
               struct error *err)
{
    struct build *b = calloc(1, sizeof(*b));
    int r = 0;

    if (!b)
        return error_set(err, ENOMEM, "build: out of memory");
    b->core = core;
    b->cb = *cb;
    b->userdata = userdata;
    b->run_timeout_msec =
        options->run_timeout_msec ? options->run_timeout_msec : BUILD_RUN_MSEC_DEFAULT;
    b->context_fd = b->guest.tar_fd = -EBADF;
    b->guest.build = b;
    b->guest.core = core;
    if (sandbox_spec_copy(options->machine, &b->machine) < 0 ||
        string_set(&b->name, options->name) < 0 || side_new(b, options) < 0)
        r = error_set(err, ENOMEM, "build: out of memory");
    if (r == 0) {
        b->context_fd = build_temporary(core, err);
        r = MIN(b->context_fd, 0);
    }
    if (r < 0)
        (void)build_free(b);
    else
        *ret = b;
    return r;
}

int build_context_write(struct build *b, const void *data, size_t size, struct error *err)
{
    int r;

    b->context_bytes += size;
    if (b->context_bytes > BUILD_CONTEXT_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "the context is larger than %llu GiB",
                              (unsigned long long)(BUILD_CONTEXT_MAX >> 30));
    r = fd_write_full(b->context_fd, data, size);
    return r < 0 ? error_set(err, -r, "keep the context: %s", errno_text(-r)) : 0;
}

int build_context_take(struct build *b, int fd_consume, struct error *err)
{
    (void)fd_close(b->context_fd);
    b->context_fd = fd_consume;
    return build_context_end(b, err);
}

int build_context_end(struct build *b, struct error *err)
{
    int r = submit(b, JOB_OPEN, TAKE_FD(b->context_fd));

    return r < 0 ? error_set(err, -r, "build: %s", errno_text(-r)) : 0;
}

struct build *build_free(struct build *b)
{
    if (!b)
        return NULL;
    build_guest_free(&b->guest);
    drop_side(b);
    (void)fd_close(b->context_fd);
    sandbox_spec_done(&b->machine);
    free(b->name);
    free(b);
    return NULL;
}
