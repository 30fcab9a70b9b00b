#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/native/handlers.h"
#include "api/native/native.h"
#include "api/native/page.h"
#include "api/native/ticket.h"
#include "base/clock.h"
#include "base/worker.h"
#include "erofs/image.h"

/* The cache is files: everything that reads or writes it runs on a worker with a copy of the
 * question. */
enum image_verb {
    IMAGE_LIST,
    IMAGE_FIND,
    IMAGE_REMOVE,
    IMAGE_IMPORT,
};

struct image_job {
    enum image_verb verb;
    struct core *core;     /* weak, loop only */
    struct loop *loop;     /* weak */
    struct ticket *ticket; /* of the request, loop only */
    char name[ROUTE_PARAM_SIZE];
    char *path;           /* owned: import */
    struct image *images; /* owned: list */
    size_t count;
    struct image image;
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
    free(job->images);
    free(job);
}

static json_t *image_to_json(const struct image *image)
{
    char created[32];

    clock_format_wall(image->created_wall_usec, created, sizeof(created));
    return json_pack("{s:s, s:s, s:s, s:I, s:s}", "name", image->name, "sha256", image->sha256,
                     "path", image->path, "size_bytes", (json_int_t)image->size_bytes, "created",
                     created);
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
        break;
    case IMAGE_REMOVE:
        job->r = image_remove(job->name, &job->err);
        break;
    case IMAGE_IMPORT:
        job->r = image_import(job->name, job->path, on_progress, job, &job->image, &job->err);
        break;
    }
}

static void answer_import(struct request *req, const struct image_job *job)
{
    json_t *last = job->r < 0 ? json_pack("{s:o}", "error", error_to_json(&job->err))
                              : json_pack("{s:o}", "image", image_to_json(&job->image));

    request_stream_end(req, request_stream_line(req, last) >= 0);
}

static void image_answer(struct request *req, const struct image_job *job)
{
    static const char *const order[] = {"name", NULL};
    json_t *list;

    if (job->verb == IMAGE_IMPORT) {
        answer_import(req, job);
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
            (void)json_array_append_new(list, image_to_json(&job->images[i]));
        native_answer_list(req, "images", list, order);
        break;
    case IMAGE_FIND:
        request_answer(req, 200, image_to_json(&job->image));
        break;
    case IMAGE_REMOVE:
        request_answer_empty(req, 204);
        break;
    case IMAGE_IMPORT:
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
    image_job_free(job);
}

static void image_start(struct request *req, enum image_verb verb, const char *name,
                        const char *path)
{
    struct api_native *api = native_of(req);
    struct image_job *job = calloc(1, sizeof(*job));
    struct error err = {0};
    int r = job ? 0 : -ENOMEM;

    if (job) {
        job->verb = verb;
        job->core = api->core;
        job->loop = api->loop;
        (void)snprintf(job->name, sizeof(job->name), "%s", name);
        if (path && !(job->path = strdup(path)))
            r = -ENOMEM;
    }
    if (r >= 0) {
        job->ticket = ticket_new(req, NULL);
        if (!job->ticket) {
            image_job_free(job);
            return;
        }
        r = workers_submit(core_workers(api->core), image_run, image_done, job);
        if (r < 0)
            (void)ticket_take(job->ticket);
    }
    if (r < 0) {
        if (job)
            image_job_free(job);
        error_fill(&err, r, "image '%s'", name);
        request_answer_error(req, &err);
        return;
    }
    if (verb == IMAGE_IMPORT)
        request_stream_begin(req, "application/x-ndjson", NDJSON_MAX, NULL);
}

void handle_images(struct request *req)
{
    image_start(req, IMAGE_LIST, "", NULL);
}

void handle_image(struct request *req)
{
    image_start(req, IMAGE_FIND, request_param(req, 0), NULL);
}

void handle_image_remove(struct request *req)
{
    const char *name = request_param(req, 0);
    struct image image;
    struct error err = {0};

    /* One small file; the loop must not go on between this question and the removal's start. */
    if (image_find(name, &image, &err) < 0) {
        request_answer_error(req, &err);
        return;
    }
    if (core_image_in_use(native_of(req)->core, image.sha256)) {
        error_set_code(&err, ERR_IMAGE_IN_USE, "image '%s': a sandbox stands on it", name);
        request_answer_error(req, &err);
        return;
    }
    image_start(req, IMAGE_REMOVE, name, NULL);
}

void handle_image_import(struct request *req)
{
    struct body {
        char *name, *path;
    } body = {0};
    static const struct field fields[] = {
        {"name", FIELD_NAME, offsetof(struct body, name), 1, 63, true},
        {"path", FIELD_PATH, offsetof(struct body, path), 1, 4095, true},
    };

    if (native_decode(req, fields, ARRAY_SIZE(fields), &body))
        image_start(req, IMAGE_IMPORT, body.name, body.path);
    free(body.name);
    free(body.path);
}
