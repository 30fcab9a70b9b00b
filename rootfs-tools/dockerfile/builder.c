#include "dockerfile/builder.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/strv.h"
#include "dockerfile/builder-private.h"
#include "oci/pull.h"

/*
 * Theory of operation. Stages that are needed are built in the order of the file, instruction by
 * instruction. A state is a list of layers and a configuration; an instruction either changes the
 * configuration, or adds a layer that is looked for in the cache first. Where a command has to run,
 * or an image has no layers, builder_advance() returns and is called again with the result there.
 */
#define DOCKERFILE_ASIDE ".hearth.dockerfile" /* sent along by clients, never copied */
#define STEP_TEXT_MAX 200u

int builder_new(const struct builder_options *options, struct builder **ret)
{
    struct builder *b = calloc(1, sizeof(*b));

    if (!b)
        return -ENOMEM;
    b->work.lock_fd = b->hold_fd = -EBADF;
    b->no_cache = options->no_cache;
    b->events = options->events;
    if (string_set(&b->name, options->name) < 0 ||
        string_set(&b->dockerfile, options->dockerfile ? options->dockerfile : "Dockerfile") < 0 ||
        string_set(&b->target, options->target) < 0 ||
        string_set(&b->platform, options->platform) < 0 ||
        (options->args && strv_copy(options->args, &b->args) < 0)) {
        (void)builder_free(b);
        return -ENOMEM;
    }
    *ret = b;
    return 0;
}

static void next_clear(struct builder *b)
{
    b->argv = strv_free(b->argv);
    b->env = strv_free(b->env);
}

struct builder *builder_free(struct builder *b)
{
    if (!b)
        return NULL;
    next_clear(b);
    for (size_t i = 0; b->states && i < b->plan.n_stages; i++)
        state_done(&b->states[i]);
    free(b->states);
    plan_done(&b->plan);
    ignore_done(&b->ignore);
    stack_done(&b->context);
    store_work_done(&b->work);
    (void)fd_close(b->hold_fd);
    (void)strv_free(b->args);
    free(b->name);
    free(b->dockerfile);
    free(b->target);
    free(b->platform);
    free(b);
    return NULL;
}

void builder_cancel(struct builder *b)
{
    atomic_store(&b->cancel, true);
}

/* ---- the context ---- */

static int read_ignore(struct builder *b, struct error *err)
{
    _cleanup_free_ char *own = string_printf("%s.dockerignore", b->dockerfile), *data = NULL;
    _cleanup_free_ char *text = NULL;
    size_t size = 0;
    int r;

    if (!own)
        return error_set(err, ENOMEM, "out of memory");
    r = copy_read_file(&b->context, own, DOCKERFILE_BYTES_MAX, &data, &size);
    if (r == -ENOENT)
        r = copy_read_file(&b->context, ".dockerignore", DOCKERFILE_BYTES_MAX, &data, &size);
    if (r < 0 && r != -ENOENT)
        return error_set(err, -r, ".dockerignore: %s", errno_text(-r));
    text = string_printf("%.*s\n" DOCKERFILE_ASIDE "\n", (int)size, data ? data : "");
    return text ? ignore_parse(text, strlen(text), &b->ignore, err)
                : error_set(err, ENOMEM, "out of memory");
}

int builder_open(struct builder *b, const char *tar_path, struct error *err)
{
    _cleanup_free_ char *data = NULL;
    const char *shown = strcmp(b->dockerfile, DOCKERFILE_ASIDE) == 0 ? "Dockerfile" : b->dockerfile;
    size_t size;
    int r = fault_check("build-open", err);

    if (r == 0)
        r = store_work_init(&b->work, err);
    if (r == 0)
        r = store_hold(&b->hold_fd, err);
    if (r == 0)
        r = step_open_context(b->work.dir, tar_path, &b->cancel, &b->context, err);
    if (r < 0)
        return r;
    r = copy_read_file(&b->context, b->dockerfile, DOCKERFILE_BYTES_MAX, &data, &size);
    if (r < 0)
        return error_set_code(
            err, r == -ENOENT ? ERR_PATH_NOT_FOUND : ERR_INVALID_ARGUMENT, "'%.200s': %s",
            b->dockerfile, r == -ENOENT ? "there is no such file in the context" : errno_text(-r));
    r = plan_make(data, size, shown, b->args, b->target, &b->plan, err);
    if (r == 0)
        r = read_ignore(b, err);
    if (r < 0)
        return r;
    b->states = calloc(b->plan.n_stages, sizeof(b->states[0]));
    return b->states ? 0 : error_set(err, ENOMEM, "out of memory");
}

/* ---- steps ---- */

const struct instruction *builder_instruction(const struct builder *b)
{
    const struct build_stage *stage = &b->plan.stages[b->stage];

    return &b->plan.dockerfile.instructions[stage->first + b->at - 1];
}

void builder_wrap(const struct builder *b, struct error *err)
{
    if (b->states && b->stage < b->plan.n_stages)
        plan_wrap(&b->plan, builder_instruction(b), err);
}

static void begin_step(struct builder *b)
{
    const struct instruction *in = builder_instruction(b);
    char text[STEP_TEXT_MAX + 1];
    size_t used;

    if (b->begun)
        return;
    b->begun = true;
    b->step++;
    b->step_usec = clock_now_usec();
    used = (size_t)snprintf(text, sizeof(text), "%s ", instruction_name(in->type));
    for (size_t i = 0; in->flags && in->flags[i] && used < STEP_TEXT_MAX; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "--%s ", in->flags[i]);
    if (used < STEP_TEXT_MAX)
        (void)snprintf(text + used, sizeof(text) - used, "%s", in->text);
    for (char *s = text; *s; s++)
        *s = (unsigned char)*s < ' ' ? ' ' : *s;
    b->events.step(b->step, b->plan.n_steps, in->line, text, b->events.userdata);
}

static void end_step(struct builder *b, bool cached)
{
    b->events.step_done(b->step, cached, clock_now_usec() - b->step_usec, b->events.userdata);
    b->begun = false;
    b->at++;
}

/* ---- images ---- */

static void on_pull(int percent, const char *what, void *userdata)
{
    struct builder *b = userdata;

    b->events.progress(percent, what, b->events.userdata);
}

static int find_image(struct builder *b, const char *name, const char *platform, struct record *ret,
                      struct error *err)
{
    const struct pull_options options = {.reference = name,
                                         .platform = platform ? platform : b->platform,
                                         .cancel = &b->cancel,
                                         .progress = on_pull,
                                         .userdata = b};
    struct image image;
    int r = record_find(name, ret, err);

    if (r != -ENOENT)
        return r;
    error_clear(err);
    r = image_pull(&options, &image, err);
    return r < 0 ? r : record_find(image.name, ret, err);
}

/* The name under which files that were read from an image without layers are remembered. */
static void read_key(const char *sha256, char key[65])
{
    struct stage_state none = {0};

    state_files_key(&none, "image", sha256, key);
}

int builder_image(struct builder *b, const char *name, const char *platform,
                  struct stage_state *ret, struct error *err)
{
    _cleanup_record_ struct record record = {0};
    char key[65];
    int r = find_image(b, name, platform, &record, err);

    if (r < 0)
        return r;
    if (!record.layers) {
        read_key(record.sha256, key);
        if (step_find(key, &record.layers) == 0) {
            memcpy(b->image, record.name, sizeof(b->image));
            memcpy(b->image_sha256, record.sha256, sizeof(b->image_sha256));
            return 1;
        }
    }
    image_note_use(record.sha256);
    ret->layers = TAKE_PTR(record.layers);
    ret->config = record.config;
    record.config = (struct image_config){0};
    return 0;
}

int builder_read(struct builder *b, const char *tar_path, struct error *err)
{
    _cleanup_state_ struct stage_state s = {0};
    char key[65], diff_id[DIGEST_SIZE], name[REFERENCE_SIZE];
    int r = step_add_layer(b->work.dir, tar_path, b->image, &b->cancel, diff_id, err);

    if (r == 0 && diff_id[0])
        r = strv_append(&s.layers, diff_id);
    read_key(b->image_sha256, key);
    if (r == 0)
        r = step_publish(key, &s, name, err);
    if (r < 0)
        builder_wrap(b, err);
    return r;
}

/* FROM: 1 when files of its image are needed. */
static int begin_stage(struct builder *b, struct error *err)
{
    const struct build_stage *stage = &b->plan.stages[b->stage];
    struct stage_state *s = &b->states[b->stage];
    int r;

    if (stage->parent != STAGE_NONE) {
        r = state_copy(&b->states[stage->parent], s) < 0 ? error_set(err, ENOMEM, "out of memory")
                                                         : 0;
        s->args = strv_free(s->args);
        s->cmd_set = false;
        return r;
    }
    return stage->base ? builder_image(b, stage->base, stage->platform, s, err) : 0;
}

/* ---- RUN ---- */

static int check_run_flags(struct builder *b, const struct instruction *in, struct error *err)
{
    for (size_t i = 0; in->flags && in->flags[i]; i++) {
        const char *flag = in->flags[i];

        if (strncmp(flag, "mount=type=cache", 16) == 0)
            b->events.warn("RUN --mount=type=cache: nothing is kept between builds, ignoring it",
                           b->events.userdata);
        else if (strcmp(flag, "network=default") != 0)
            return error_set_code(err, ERR_UNSUPPORTED, "'--%.60s' is not supported", flag);
    }
    return 0;
}

/* 1: it has to run. */
static int begin_run(struct builder *b, struct error *err)
{
    struct stage_state *s = &b->states[b->stage];
    const struct instruction *in = builder_instruction(b);
    char **layers = NULL, key[65];
    int r = check_run_flags(b, in, err);

    next_clear(b);
    if (r == 0)
        r = state_run_argv(s, in, &b->argv, err);
    if (r == 0 && state_run_env(s, &b->env) < 0)
        r = error_set(err, ENOMEM, "out of memory");
    if (r < 0)
        return r;
    state_run_key(s, b->argv, b->env, b->key);
    if (!b->no_cache && step_find(b->key, &layers) == 1) {
        (void)strv_free(s->layers);
        s->layers = layers;
        end_step(b, true);
        return 0;
    }
    step_state_key(s, key);
    memcpy(b->state_key, key, sizeof(key));
    r = step_publish(key, s, b->image, err);
    return r < 0 ? r : 1;
}

int builder_ran(struct builder *b, const char *tar_path, const char **ret_state, struct error *err)
{
    struct stage_state *s = &b->states[b->stage];
    char diff_id[DIGEST_SIZE], name[REFERENCE_SIZE];
    int r = step_add_layer(b->work.dir, tar_path, "the changes", &b->cancel, diff_id, err);

    if (r == 0 && diff_id[0])
        r = strv_append(&s->layers, diff_id);
    if (r == 0)
        r = step_publish(b->key, s, name, err);
    if (r < 0) {
        builder_wrap(b, err);
        return r;
    }
    step_state_key(s, b->state_key);
    *ret_state = b->state_key;
    end_step(b, false);
    return 0;
}

/* ---- one after the other ---- */

static void on_warning(const char *text, void *userdata)
{
    struct builder *b = userdata;

    b->events.warn(text, b->events.userdata);
}

/* 1: a guest is needed, b->need says for what. */
static int do_step(struct builder *b, struct error *err)
{
    const struct instruction *in = builder_instruction(b);
    bool cached = false;
    int r;

    begin_step(b);
    switch (in->type) {
    case INSTRUCTION_FROM:
        b->need = BUILDER_IMAGE;
        r = begin_stage(b, err);
        break;
    case INSTRUCTION_RUN:
        b->need = BUILDER_RUN;
        return begin_run(b, err);
    case INSTRUCTION_COPY:
    case INSTRUCTION_ADD:
        b->need = BUILDER_IMAGE;
        r = builder_copy(b, &cached, err);
        break;
    default:
        r = state_apply(&b->states[b->stage], &b->plan, in, on_warning, b, err);
        if (r == 0 && in->type == INSTRUCTION_WORKDIR)
            r = builder_workdir(b, err);
        break;
    }
    if (r == 0)
        end_step(b, cached);
    return r;
}

static int do_stage(struct builder *b, struct error *err)
{
    const struct build_stage *stage = &b->plan.stages[b->stage];
    int r = 0;

    while (r == 0 && b->at <= stage->end - stage->first) {
        r = atomic_load(&b->cancel) ? error_set(err, ECANCELED, "cancelled") : do_step(b, err);
        if (r < 0)
            builder_wrap(b, err);
    }
    return r;
}

static int finish(struct builder *b, struct image *ret, struct error *err)
{
    struct stage_state *s = &b->states[b->plan.target];
    char key[65], name[REFERENCE_SIZE];
    int r;

    if (!s->config.os[0])
        (void)snprintf(s->config.os, sizeof(s->config.os), "linux");
    if (!s->config.architecture[0])
        (void)snprintf(s->config.architecture, sizeof(s->config.architecture), "%s",
                       pairs_get(b->plan.globals, "TARGETARCH"));
    r = fault_check("build-name", err);
    if (r < 0)
        return r;
    if (b->name)
        return step_publish_image(b->name, s, ret, err);
    step_state_key(s, key);
    r = step_publish(key, s, name, err);
    return r < 0 ? r : image_find(name, ret, err);
}

int builder_advance(struct builder *b, struct builder_next *ret, struct error *err)
{
    int r = 0;

    *ret = (struct builder_next){0};
    for (; b->stage <= b->plan.target; b->stage++, b->at = 0) {
        if (!b->plan.stages[b->stage].needed)
            continue;
        r = do_stage(b, err);
        if (r < 0)
            return r;
        if (r > 0)
            break;
    }
    ret->need = r > 0 ? b->need : BUILDER_DONE;
    if (ret->need == BUILDER_DONE)
        return finish(b, &ret->result, err);
    ret->image = b->image;
    ret->state = b->need == BUILDER_RUN ? b->state_key : "";
    ret->argv = b->argv;
    ret->env = b->env;
    ret->user = b->states[b->stage].config.user;
    ret->workdir = b->states[b->stage].config.workdir;
    return 0;
}
