#include "api/e2b/template-build.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/strv.h"
#include "base/worker.h"
#include "erofs/image.h"
#include "model/text.h"

#define READY_SEC 300u

static void sweep_forget(struct api_e2b *e2b);

/* ---- records ---- */

static bool is_over(const struct e2b_build *b)
{
    return b->state == E2B_BUILD_READY || b->state == E2B_BUILD_FAILED;
}

static void build_record_free(struct e2b_build *b)
{
    if (b->job)
        context_job_cancel(b->job);
    b->build = build_free(b->build);
    b->make = template_make_free(b->make);
    (void)strv_free(b->tags);
    sandbox_spec_done(&b->machine);
    json_decref(b->steps);
    free(b->start);
    free(b->ready);
    template_script_done(&b->script);
    json_decref(b->log);
    for (size_t i = 0; i < ARRAY_SIZE(b->line); i++)
        buf_done(&b->line[i]);
    free(b);
}

void e2b_builds_free(struct api_e2b *e2b)
{
    sweep_forget(e2b);
    while (e2b->builds) {
        struct e2b_build *b = e2b->builds;

        e2b->builds = b->next;
        build_record_free(b);
    }
}

/* Room for one more: the oldest that is over goes, else the oldest that never began. */
static bool make_room(struct api_e2b *e2b)
{
    struct e2b_build **over = NULL, **waiting = NULL;
    size_t n = 0;

    for (struct e2b_build **at = &e2b->builds; *at; at = &(*at)->next, n++) {
        if (is_over(*at))
            over = at;
        else if ((*at)->state == E2B_BUILD_WAITING)
            waiting = at;
    }
    if (n < BUILDS_MAX)
        return true;
    over = over ? over : waiting;
    if (!over)
        return false;
    struct e2b_build *gone = *over;
    *over = gone->next;
    build_record_free(gone);
    return true;
}

struct e2b_build *e2b_build_new(struct api_e2b *e2b, const char *name)
{
    struct e2b_build *b = make_room(e2b) ? calloc(1, sizeof(*b)) : NULL;
    uint8_t random[(E2B_BUILD_ID_SIZE - 1) / 2];

    if (!b)
        return NULL;
    b->e2b = e2b;
    sandbox_spec_init(&b->machine);
    for (size_t i = 0; i < ARRAY_SIZE(b->line); i++)
        buf_init(&b->line[i], BUILD_LOG_LINE_MAX);
    b->log = json_array();
    (void)snprintf(b->name, sizeof(b->name), "%s", name);
    if (!b->log || getrandom(random, sizeof(random), 0) != sizeof(random)) {
        build_record_free(b);
        return NULL;
    }
    hex_encode(random, sizeof(random), b->id);
    b->next = e2b->builds;
    e2b->builds = b;
    return b;
}

struct e2b_build *e2b_build_find(struct api_e2b *e2b, const char *name, const char *id)
{
    for (struct e2b_build *b = e2b->builds; b; b = b->next) {
        if (strcmp(b->name, name) == 0 && (!id || strcmp(b->id, id) == 0))
            return b;
    }
    return NULL;
}

/* ---- log ---- */

void e2b_build_step(const struct e2b_build *b, char ret[static 16])
{
    if (b->finalizing)
        (void)snprintf(ret, 16, "finalize");
    else if (b->step == 0)
        (void)snprintf(ret, 16, "base");
    else
        (void)snprintf(ret, 16, "%u", b->step);
}

void e2b_build_log(struct e2b_build *b, const char *level, const char *text)
{
    char when[32], step[16];

    clock_format_wall(clock_wall_usec(), when, sizeof(when));
    e2b_build_step(b, step);
    (void)json_array_append_new(b->log,
                                json_pack("{s:s, s:s, s:o, s:s}", "timestamp", when, "level", level,
                                          "message", json_text(text), "step", step));
    if (json_array_size(b->log) > BUILD_LOG_ENTRIES_MAX) {
        (void)json_array_remove(b->log, 0);
        b->log_dropped++;
    }
}

static void log_line(struct e2b_build *b, int stream)
{
    struct buf *line = &b->line[stream];

    e2b_build_log(b, stream == 2 ? "warn" : "info", buf_string(line));
    buf_clear(line);
}

/* Output of a command, line by line; a line that is too long is cut into several. */
static void log_output(struct e2b_build *b, int stream, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        char c = data[i] == '\0' ? ' ' : (char)data[i];

        if (c == '\n' || b->line[stream].size >= BUILD_LOG_LINE_MAX - 1)
            log_line(b, stream);
        if (c != '\n' && c != '\r')
            (void)buf_append(&b->line[stream], &c, 1);
    }
}

static void log_rest(struct e2b_build *b)
{
    for (int i = 1; i <= 2; i++) {
        if (b->line[i].size > 0)
            log_line(b, i);
    }
}

/* ---- the end ---- */

static void build_fail(struct e2b_build *b, const struct error *err)
{
    log_rest(b);
    (void)snprintf(b->reason, sizeof(b->reason), "%s", err->text);
    e2b_build_log(b, "error", err->text);
    b->state = E2B_BUILD_FAILED;
    e2b_images_sweep(b->e2b);
}

static void on_made(const json_t *template, const struct error *err, void *userdata)
{
    struct e2b_build *b = userdata;
    const char *id = json_string_value(json_object_get(template, "id"));
    struct error failed = {0};
    char full[E2B_NAME_SIZE];

    if (err) {
        build_fail(b, err);
        return;
    }
    for (size_t i = 0; b->tags[i]; i++) {
        if (e2b_name_full(b->name, b->tags[i], full, &failed) < 0 ||
            core_template_name(b->e2b->core, id, full, &failed) < 0) {
            build_fail(b, &failed);
            return;
        }
    }
    e2b_build_log(b, "info", "The template is ready");
    b->state = E2B_BUILD_READY;
    e2b_images_sweep(b->e2b);
}

static void on_make_progress(const char *step, int percent, void *userdata)
{
    (void)percent;
    e2b_build_log(userdata, "info", step);
}

static void on_make_output(const char *text, size_t size, void *userdata)
{
    struct e2b_build *b = userdata;

    log_output(b, 1, (const uint8_t *)text, size);
    log_rest(b);
}

/* The start command stays behind; what it prints is nobody's. */
static int make_recipe(struct e2b_build *b, const struct image_config *config,
                       struct recipe *recipe, struct error *err)
{
    _cleanup_free_ char *start = b->start ? script_shell(b->start) : NULL;

    recipe->ready_sec = READY_SEC;
    recipe->steps = calloc(1, sizeof(*recipe->steps));
    if (!recipe->steps || (b->start && !start))
        return error_set(err, ENOMEM, "out of memory");
    if (start) {
        recipe->steps[0].run = string_printf("%s </dev/null >/dev/null 2>&1 &", start);
        recipe->n_steps = 1;
    }
    recipe->ready = b->ready ? script_shell(b->ready) : NULL;
    if ((start && !recipe->steps[0].run) || (b->ready && !recipe->ready) ||
        string_set(&recipe->user, config->user ? config->user : "root") < 0 ||
        string_set(&recipe->workdir, config->workdir) < 0 ||
        (config->env && config->env[0] && strv_copy(config->env, &recipe->env) < 0))
        return error_set(err, ENOMEM, "out of memory");
    return 0;
}

static void make_template(struct e2b_build *b, const char *image)
{
    static const struct template_make_callbacks callbacks = {on_make_progress, on_make_output,
                                                             on_made};
    _cleanup_image_config_ struct image_config config = {0};
    struct recipe recipe = {0};
    struct error err = {0};
    char full[E2B_NAME_SIZE];
    int r;

    b->finalizing = true;
    r = image_get_config(image, &config, &err);
    if (r >= 0)
        r = e2b_name_full(b->name, b->tags[0], full, &err);
    if (r >= 0)
        r = make_recipe(b, &config, &recipe, &err);
    if (r >= 0 && string_set(&b->machine.image, image) < 0)
        r = error_set(&err, ENOMEM, "out of memory");
    if (r >= 0)
        r = core_template_make(b->e2b->core, full, &b->machine, &recipe, &callbacks, b, &b->make,
                               &err);
    recipe_done(&recipe);
    if (r < 0)
        build_fail(b, &err);
}

/* ---- the image ---- */

static void on_step(size_t index, size_t total, unsigned line, const char *text, void *userdata)
{
    struct e2b_build *b = userdata;
    unsigned step = line >= 1 && line <= b->script.n_lines ? b->script.steps[line - 1] : 0;
    _cleanup_free_ char *shown = NULL;

    (void)index;
    (void)total;
    (void)text;
    if (step == b->step)
        return;
    log_rest(b);
    b->step = step;
    shown = script_step_text(json_array_get(b->steps, step - 1));
    e2b_build_log(b, "info", shown ? shown : "");
}

static void on_step_done(size_t index, bool cached, uint64_t duration_usec, void *userdata)
{
    (void)index;
    (void)cached;
    (void)duration_usec;
    log_rest(userdata);
}

static void on_progress(const char *what, int percent, void *userdata)
{
    (void)percent;
    e2b_build_log(userdata, "debug", what);
}

static void on_warning(const char *text, void *userdata)
{
    e2b_build_log(userdata, "warn", text);
}

static void on_output(int stream, const uint8_t *data, size_t size, void *userdata)
{
    struct e2b_build *b = userdata;

    log_output(b, stream, data, size);
    build_output_consumed(b->build, stream, size);
}

static void on_done(const struct image *image, const struct error *err, void *userdata)
{
    struct e2b_build *b = userdata;

    log_rest(b);
    if (err)
        build_fail(b, err);
    else
        make_template(b, image->name);
}

void e2b_build_context(struct e2b_build *b, int fd_consume, const struct error *err)
{
    static const struct build_callbacks callbacks = {.on_step = on_step,
                                                     .on_step_done = on_step_done,
                                                     .on_progress = on_progress,
                                                     .on_warning = on_warning,
                                                     .on_output = on_output,
                                                     .on_done = on_done};
    char image[E2B_BUILD_ID_SIZE + sizeof(E2B_TEMPLATE_PREFIX)];
    const struct build_options options = {
        .name = image, .no_cache = b->force, .machine = &b->machine};
    struct error failed = {0};
    int r;

    b->job = NULL;
    (void)snprintf(image, sizeof(image), E2B_TEMPLATE_PREFIX "%s", b->id);
    if (err) {
        (void)fd_close(fd_consume);
        build_fail(b, err);
        return;
    }
    r = core_build(b->e2b->core, &options, &callbacks, b, &b->build, &failed);
    if (r < 0)
        (void)fd_close(fd_consume);
    else
        r = build_context_take(b->build, fd_consume, &failed);
    if (r < 0)
        build_fail(b, &failed);
}

int e2b_build_start(struct e2b_build *b, struct error *err)
{
    unsigned running = 0;
    int r;

    for (const struct e2b_build *other = b->e2b->builds; other; other = other->next)
        running += other->state == E2B_BUILD_RUNNING;
    if (running >= BUILDS_RUNNING_MAX)
        return error_set_code(err, ERR_TOO_MANY, "%u builds are under way, wait for one to end",
                              running);
    r = context_job_start(b, err);
    if (r < 0)
        return r;
    b->state = E2B_BUILD_RUNNING;
    e2b_build_log(b, "info", "The build begins");
    return 0;
}

/* ---- images that are left ---- */

struct e2b_sweep {
    struct api_e2b *e2b; /* weak; NULL: it is gone */
    struct core *core;   /* weak */
    struct image *images;
    size_t n_images;
    char **remove, **in_use; /* owned */
    bool again;              /* asked for meanwhile */
};

static void sweep_free(struct e2b_sweep *s)
{
    if (s->e2b)
        s->e2b->image_sweep = NULL;
    (void)strv_free(s->remove);
    (void)strv_free(s->in_use);
    free(s->images);
    free(s);
}

static void sweep_list(void *userdata)
{
    struct e2b_sweep *s = userdata;

    (void)image_list(&s->images, &s->n_images, NULL);
}

static void sweep_remove(void *userdata)
{
    struct e2b_sweep *s = userdata;
    struct error err = {0};

    for (size_t i = 0; s->remove[i]; i++) {
        if (core_image_remove(s->core, s->remove[i], &s->in_use, &err) < 0)
            log_warning("Image '%s': %s, ignoring", s->remove[i], err.text);
    }
}

static void sweep_removed(void *userdata, int cancelled)
{
    struct e2b_sweep *s = userdata;
    struct api_e2b *e2b = s->again && !cancelled ? s->e2b : NULL;

    sweep_free(s);
    if (e2b)
        e2b_images_sweep(e2b);
}

static bool is_ours(const char *image)
{
    size_t prefix = strlen(E2B_TEMPLATE_PREFIX);

    return string_starts_with(image, E2B_TEMPLATE_PREFIX) &&
           strlen(image) == prefix + E2B_BUILD_ID_SIZE - 1 &&
           strspn(image + prefix, "0123456789abcdef") == E2B_BUILD_ID_SIZE - 1;
}

static bool is_needed(const struct api_e2b *e2b, const json_t *templates, const char *image)
{
    const char *id = image + strlen(E2B_TEMPLATE_PREFIX);
    const json_t *template;
    size_t i;

    for (const struct e2b_build *b = e2b->builds; b; b = b->next) {
        if (b->state == E2B_BUILD_RUNNING && strcmp(b->id, id) == 0)
            return true;
    }
    json_array_foreach(templates, i, template)
    {
        const char *of = json_string_value(json_object_get(template, "image"));

        if (of && strcmp(of, image) == 0)
            return true;
    }
    return false;
}

static void sweep_listed(void *userdata, int cancelled)
{
    struct e2b_sweep *s = userdata;
    json_t *templates = s->e2b && !cancelled ? core_templates_to_json(s->core) : NULL;
    const _Atomic bool *stop;

    for (size_t i = 0; templates && i < s->n_images; i++) {
        const char *name = s->images[i].name;

        if (is_ours(name) && !is_needed(s->e2b, templates, name))
            (void)strv_append(&s->remove, name);
    }
    json_decref(templates);
    if (s->remove)
        s->in_use = core_images_in_use(s->core);
    if (!s->remove ||
        workers_submit(core_image_workers(s->core, &stop), sweep_remove, sweep_removed, s) < 0)
        sweep_removed(s, cancelled);
}

void e2b_images_sweep(struct api_e2b *e2b)
{
    struct e2b_sweep *s = e2b->image_sweep;
    const _Atomic bool *stop;

    if (s) {
        s->again = true;
        return;
    }
    s = calloc(1, sizeof(*s));
    if (!s)
        return;
    s->e2b = e2b;
    s->core = e2b->core;
    e2b->image_sweep = s;
    if (workers_submit(core_image_workers(e2b->core, &stop), sweep_list, sweep_listed, s) < 0)
        sweep_free(s);
}

/* What is under way goes on, for nobody. */
static void sweep_forget(struct api_e2b *e2b)
{
    if (e2b->image_sweep)
        e2b->image_sweep->e2b = NULL;
    e2b->image_sweep = NULL;
}
