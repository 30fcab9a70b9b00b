#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/native/handlers.h"
#include "api/native/native.h"
#include "api/native/page.h"
#include "api/native/ticket.h"
#include "base/clock.h"
#include "base/strv.h"
#include "base/worker.h"
#include "erofs/image.h"
#include "oci/export.h"
#include "oci/pull.h"

/* The cache is files: everything that reads or writes it runs on a worker with a copy of the
 * question. */
enum image_verb {
    IMAGE_LIST,
    IMAGE_FIND,
    IMAGE_REMOVE,
    IMAGE_IMPORT,
    IMAGE_PULL,
    IMAGE_EXPORT,
};

/* Their answer is progress, then the end. */
static bool is_long(enum image_verb verb)
{
    return verb == IMAGE_IMPORT || verb == IMAGE_PULL || verb == IMAGE_EXPORT;
}

struct image_job {
    enum image_verb verb;
    struct core *core;        /* weak; the worker only removes by it */
    struct loop *loop;        /* weak */
    struct ticket *ticket;    /* of the request, loop only */
    const _Atomic bool *stop; /* weak: of the core */
    char name[ROUTE_PARAM_SIZE];
    char *path;           /* owned: import, export */
    char *platform;       /* owned: pull; NULL: of this host */
    char **in_use;        /* owned strv: remove */
    struct image *images; /* owned: list */
    size_t count;
    struct image image;
    struct image_config config; /* owned: find */
    int r;
    struct error err;
};

/* Progress on its way from the worker to the loop. */
struct image_step {
    struct ticket *ticket;
    int percent;
    char what[128];
};

static void image_job_free(struct image_job *job)
{
    free(job->path);
    free(job->platform);
    (void)strv_free(job->in_use);
    free(job->images);
    image_config_done(&job->config);
    free(job);
}

static json_t *image_to_json(const struct image *image)
{
    char created[32];
    json_t *json;

    clock_format_wall(image->created_wall_usec, created, sizeof(created));
    json =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:s, s:b, s:I}", "name", image->name, "sha256",
                  image->sha256, "path", image->path, "size_bytes", (json_int_t)image->size_bytes,
                  "own_bytes", (json_int_t)image->own_bytes, "created", created, "ready",
                  image->ready, "layers", (json_int_t)image->n_layers);
    if (json && image->digest[0])
        (void)json_object_set_new(json, "digest", json_string(image->digest));
    if (json && image->architecture[0])
        (void)json_object_set_new(json, "architecture", json_string(image->architecture));
    return json;
}

/* Posted in order before the job's end, so the ticket is still there. */
static void step_post(void *userdata)
{
    struct image_step *step = userdata;
    struct request *req = ticket_peek(step->ticket);

    if (req && request_stream_room(req) > NDJSON_MAX / 2) {
        json_t *o = json_pack("{s:s}", "step", step->what);
        if (o && step->percent >= 0)
            (void)json_object_set_new(o, "percent", json_integer(step->percent));
        (void)request_stream_line(req, json_pack("{s:o}", "progress", o));
    }
    free(step);
}

static void on_progress(int percent, const char *what, void *userdata)
{
    struct image_job *job = userdata;
    struct image_step *step = calloc(1, sizeof(*step));

    if (!step)
        return;
    step->ticket = job->ticket;
    step->percent = percent;
    (void)snprintf(step->what, sizeof(step->what), "%s", what);
    if (loop_post(job->loop, step_post, step) < 0)
        free(step);
}

static void image_run(void *data)
{
    struct image_job *job = data;

    switch (job->verb) {
    case IMAGE_LIST:
        job->r = image_list(&job->images, &job->count, &job->err);
        break;
    case IMAGE_FIND:
        job->r = image_find(job->name, &job->image, &job->err);
        if (job->r >= 0)
            job->r = image_get_config(job->name, &job->config, &job->err);
        break;
    case IMAGE_REMOVE:
        job->r = core_image_remove(job->core, job->name, &job->in_use, &job->err);
        break;
    case IMAGE_IMPORT:
        job->r = image_import(job->name, job->path, on_progress, job, &job->image, &job->err);
        break;
    case IMAGE_PULL:
        job->r = image_pull(&(struct pull_options){.reference = job->name,
                                                   .platform = job->platform,
                                                   .cancel = job->stop,
                                                   .progress = on_progress,
                                                   .userdata = job},
                            &job->image, &job->err);
        break;
    case IMAGE_EXPORT:
        job->r = image_export(job->name, job->path, job->stop, &job->err);
        if (job->r >= 0)
            job->r = image_find(job->name, &job->image, &job->err);
        break;
    }
}

static void answer_long(struct request *req, const struct image_job *job)
{
    json_t *last = job->r < 0 ? json_pack("{s:o}", "error", error_to_json(&job->err))
                              : json_pack("{s:o}", "image", image_to_json(&job->image));

    request_stream_end(req, request_stream_line(req, last) >= 0);
}

static void image_answer(struct request *req, const struct image_job *job)
{
    static const char *const order[] = {"name", NULL};
    json_t *list, *json;

    if (is_long(job->verb)) {
        answer_long(req, job);
        return;
    }
    if (job->r < 0) {
        request_answer_error(req, &job->err);
        return;
    }
    switch (job->verb) {
    case IMAGE_LIST:
        list = json_array();
        for (size_t i = 0; i < job->count; i++)
            if (!image_name_is_hidden(job->images[i].name) &&
                access_sees_image(req, job->images[i].name))
                (void)json_array_append_new(list, image_to_json(&job->images[i]));
        native_answer_list(req, "images", list, order);
        break;
    case IMAGE_FIND:
        json = image_to_json(&job->image);
        if (json)
            (void)json_object_set_new(json, "config", image_config_to_json(&job->config));
        request_answer(req, 200, json);
        break;
    case IMAGE_REMOVE:
        request_answer_empty(req, 204);
        break;
    case IMAGE_IMPORT:
    case IMAGE_PULL:
    case IMAGE_EXPORT:
        break;
    }
}

static void image_done(void *data, int cancelled)
{
    struct image_job *job = data;
    struct request *req = ticket_take(job->ticket);

    if (cancelled)
        job->r = error_set(&job->err, ECANCELED, "image '%s': the daemon ends", job->name);
    if (req) {
        if (job->r < 0)
            error_fill(&job->err, job->r, "image '%s'", job->name);
        image_answer(req, job);
    }
    if (!cancelled && job->r >= 0 && is_long(job->verb))
        core_images_trim(job->core);
    image_job_free(job);
}

/* Takes the job; the answer comes when it is done. */
static void image_submit(struct request *req, struct image_job *job)
{
    struct api_native *api = native_of(req);
    enum image_verb verb = job->verb;
    struct workers *workers = core_image_workers(api->core, &job->stop);
    struct error err = {0};
    int r;

    if (!is_long(verb))
        workers = core_workers(api->core);
    job->core = api->core;
    job->loop = api->loop;
    job->ticket = ticket_new(req, NULL);
    if (!job->ticket) {
        image_job_free(job);
        return;
    }
    r = workers_submit(workers, image_run, image_done, job);
    if (r < 0) {
        (void)ticket_take(job->ticket);
        error_fill(&err, r, "image '%s'", job->name);
        image_job_free(job);
        request_answer_error(req, &err);
        return;
    }
    if (is_long(verb))
        request_stream_begin(req, "application/x-ndjson", NDJSON_MAX, NULL);
}

/* NULL: the error is already the answer. */
static struct image_job *image_job_new(struct request *req, enum image_verb verb, const char *name)
{
    struct image_job *job = calloc(1, sizeof(*job));
    struct error err = {0};

    if (!job) {
        (void)error_set(&err, ENOMEM, "image '%s': out of memory", name);
        request_answer_error(req, &err);
        return NULL;
    }
    job->verb = verb;
    (void)snprintf(job->name, sizeof(job->name), "%s", name);
    return job;
}

static void image_start(struct request *req, enum image_verb verb, const char *name)
{
    struct image_job *job = image_job_new(req, verb, name);

    if (!job)
        return;
    if (verb == IMAGE_REMOVE)
        job->in_use = core_images_in_use(native_of(req)->core);
    image_submit(req, job);
}

/*
 * The name of an image has slashes, so it is the whole rest of the path. False: the error is
 * already the answer.
 */
static bool name_of(struct request *req, char name[ROUTE_PARAM_SIZE])
{
    const char *s = request_target(req) + strlen("/v1/images/");
    struct error err = {0};
    size_t n = 0;

    while (*s && *s != '?' && n + 1 < ROUTE_PARAM_SIZE) {
        unsigned value;

        if (s[0] == '%' && sscanf(s + 1, "%2x", &value) == 1 && s[1] != ' ' && s[2] && value > 0) {
            name[n++] = (char)value;
            s += 3;
        } else {
            name[n++] = *s++;
        }
    }
    name[n] = '\0';
    if (n > 0 && (*s == '\0' || *s == '?'))
        return true;
    (void)error_set(&err, EINVAL, "the name of an image has 1 to %u bytes", ROUTE_PARAM_SIZE - 1);
    request_answer_error(req, &err);
    return false;
}

void handle_images(struct request *req)
{
    image_start(req, IMAGE_LIST, "");
}

void handle_image(struct request *req)
{
    char name[ROUTE_PARAM_SIZE];
    struct error err = {0};

    if (!name_of(req, name))
        return;
    if (!access_sees_image(req, name)) {
        error_set_code(&err, ERR_IMAGE_NOT_FOUND, "image '%.128s': no such image", name);
        request_answer_error(req, &err);
        return;
    }
    image_start(req, IMAGE_FIND, name);
}

void handle_image_remove(struct request *req)
{
    char name[ROUTE_PARAM_SIZE];
    struct image image;
    struct error err = {0};

    if (!name_of(req, name))
        return;
    /* One small file; the loop must not go on between this question and the removal's start. */
    if (image_find(name, &image, &err) < 0 && err.code != ERR_INTERNAL) {
        request_answer_error(req, &err);
        return;
    }
    if (err.errnum == 0 && core_image_in_use(native_of(req)->core, image.sha256) &&
        !image_has_other_name(&image)) {
        error_set_code(&err, ERR_IMAGE_IN_USE, "image '%s': a sandbox stands on it", name);
        request_answer_error(req, &err);
        return;
    }
    image_start(req, IMAGE_REMOVE, name);
}

struct work_body {
    char *name, *path, *platform;
};

static void work_start(struct request *req, enum image_verb verb, struct work_body *body)
{
    struct image_job *job = image_job_new(req, verb, body->name);

    if (job) {
        job->path = TAKE_PTR(body->path);
        job->platform = TAKE_PTR(body->platform);
        image_submit(req, job);
    }
}

static void work_handle(struct request *req, enum image_verb verb, const struct field *fields,
                        size_t count)
{
    struct work_body body = {0};

    if (native_decode(req, fields, count, &body))
        work_start(req, verb, &body);
    free(body.name);
    free(body.path);
    free(body.platform);
}

#define BODY(key, type, max, required)                                                             \
    {                                                                                              \
#key, type, offsetof(struct work_body, key), 1, max, required                              \
    }

void handle_image_import(struct request *req)
{
    static const struct field fields[] = {
        BODY(name, FIELD_NAME, 63, true),
        BODY(path, FIELD_PATH, 4095, true),
    };

    work_handle(req, IMAGE_IMPORT, fields, ARRAY_SIZE(fields));
}

void handle_image_pull(struct request *req)
{
    static const struct field fields[] = {
        BODY(name, FIELD_STRING, ROUTE_PARAM_SIZE - 1, true),
        BODY(platform, FIELD_STRING, 63, false),
    };

    work_handle(req, IMAGE_PULL, fields, ARRAY_SIZE(fields));
}

void handle_image_export(struct request *req)
{
    static const struct field fields[] = {
        BODY(name, FIELD_STRING, ROUTE_PARAM_SIZE - 1, true),
        BODY(path, FIELD_PATH, 4095, true),
    };

    work_handle(req, IMAGE_EXPORT, fields, ARRAY_SIZE(fields));
}

static void on_pruned(const struct prune_result *result, const struct error *err, void *userdata)
{
    struct request *req = ticket_take(userdata);

    if (!req)
        return;
    if (err)
        request_answer_error(req, err);
    else
        request_answer(req, 200,
                       json_pack("{s:I, s:I}", "removed", (json_int_t)result->removed,
                                 "freed_bytes", (json_int_t)result->freed_bytes));
}

void handle_image_prune(struct request *req)
{
    struct body {
        bool all;
    } body = {0};
    static const struct field fields[] = {
        {"all", FIELD_BOOL, offsetof(struct body, all), 0, 0, false},
    };
    struct ticket *ticket;
    struct error err = {0};
    int r;

    if (!native_decode(req, fields, ARRAY_SIZE(fields), &body))
        return;
    ticket = ticket_new(req, NULL);
    if (!ticket)
        return;
    r = core_images_prune(native_of(req)->core, body.all, /* trim= */ false, on_pruned, ticket);
    if (r >= 0)
        return;
    (void)ticket_take(ticket);
    error_fill(&err, r, "prune");
    request_answer_error(req, &err);
}
