#include "api/native/session-job.h"

#include <stdlib.h>
#include <string.h>

#include "api/native/capture.h"
#include "api/native/pipe.h"
#include "base/clock.h"
#include "model/text.h"

/*
 * Theory of operation. The job belongs to its client: to the request until it is answered or
 * upgraded, then to the pipe, and is freed with it. The view and the watch end earlier when the
 * command or the sandbox does.
 */
#define OUTPUT_MAX (4u * EXEC_WINDOW)

struct session_job {
    struct request *req;         /* weak; NULL after the upgrade */
    struct pipe *pipe;           /* owned; NULL: captured */
    struct session *session;     /* weak, valid while watch is there */
    struct session_view *view;   /* owned; NULL: over */
    struct sandbox_watch *watch; /* owned; NULL: the sandbox is gone */
    struct capture capture;
    char *name;       /* owned, of the session */
    uint64_t from[3]; /* offsets that the client has seen */
};

static void session_job_free(struct session_job *job)
{
    job->view = session_view_free(job->view);
    job->watch = sandbox_watch_free(job->watch);
    job->pipe = pipe_free(job->pipe);
    capture_done(&job->capture);
    free(job->name);
    free(job);
}

static void on_over(void *state, enum request_end why)
{
    (void)why;
    session_job_free(state);
}

static void session_job_fail(struct session_job *job, const struct error *err)
{
    job->view = session_view_free(job->view);
    if (job->pipe)
        pipe_finish(job->pipe, STREAM_ERROR, error_to_json(err));
    else if (job->req)
        request_answer_error(job->req, err);
}

/* ---- what the session says ---- */

static void on_started(struct session_view *v, uint64_t command, const uint64_t start[3],
                       void *userdata)
{
    struct session_job *job = userdata;

    (void)v;
    if (!job->pipe)
        return;
    pipe_event(job->pipe, STREAM_STARTED,
               json_pack("{s:I, s:s, s:I, s:I}", "command", (json_int_t)command, "session",
                         job->name, "stdout", (json_int_t)MAX(start[1], job->from[1]), "stderr",
                         (json_int_t)MAX(start[2], job->from[2])));
    pipe_pump_input(job->pipe);
}

static void on_output(struct session_view *v, int stream, uint64_t offset, const uint8_t *data,
                      size_t size, void *userdata)
{
    struct session_job *job = userdata;

    (void)offset;
    if (!job->pipe) {
        capture_add(&job->capture, stream, data, size);
        session_view_consumed(v, stream, size);
        return;
    }
    /*
     * A session that ends a command by force reads on without waiting for its views, to see the end
     * behind the output. A client that does not read then misses the rest of it, and is told.
     */
    if (size > pipe_room(job->pipe, stream))
        job->capture.truncated[stream] = true;
    if (job->capture.truncated[stream])
        session_view_consumed(v, stream, size);
    else
        pipe_output(job->pipe, stream, data, size); /* acknowledged when the client took it */
}

static void on_writable(struct session_view *v, void *userdata)
{
    struct session_job *job = userdata;

    (void)v;
    if (job->pipe)
        pipe_pump_input(job->pipe);
}

static json_t *result_to_json(const struct session_result *result)
{
    json_t *o = json_pack("{s:i, s:I, s:b, s:b, s:b, s:b, s:I}", "exit_code", result->exit_code,
                          "duration_ms", (json_int_t)(result->duration_usec / USEC_PER_MSEC),
                          "timed_out", result->timed_out, "shell_exited", result->shell_exited,
                          "state_lost", result->state_lost, "oom_killed", result->oom_killed,
                          "command", (json_int_t)result->command);

    if (o && result->cwd)
        (void)json_object_set_bytes(o, "cwd", result->cwd, strlen(result->cwd));
    return o;
}

static void on_result(struct session_view *v, const struct session_result *result,
                      const struct error *err, void *userdata)
{
    struct session_job *job = userdata;

    (void)v;
    if (err) {
        /* The console knows only that it was closed; the watch follows and tells why. */
        if (err->code != ERR_GUEST_GONE || !job->watch)
            session_job_fail(job, err);
        return;
    }
    json_t *json = result_to_json(result);
    job->view = session_view_free(job->view);
    if (job->pipe) {
        capture_truncated_to_json(&job->capture, json);
        pipe_finish(job->pipe, STREAM_EXIT, json);
    } else if (job->req) {
        capture_to_json(&job->capture, json);
        request_answer(job->req, 200, json);
    } else {
        json_decref(json);
    }
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct session_job *job = userdata;

    (void)sb;
    job->watch = sandbox_watch_free(job->watch);
    if (job->view)
        session_job_fail(job, reason);
}

static const struct session_view_callbacks view_callbacks = {
    .on_started = on_started,
    .on_output = on_output,
    .on_writable = on_writable,
    .on_result = on_result,
};

/* ---- what the client says ---- */

static void on_consumed(void *owner, int stream, size_t size)
{
    struct session_job *job = owner;

    if (job->view)
        session_view_consumed(job->view, stream, size);
}

static size_t on_input_room(void *owner)
{
    struct session_job *job = owner;

    return job->view ? session_view_writable(job->view) : 0;
}

static int on_input(void *owner, const void *data, size_t size)
{
    struct session_job *job = owner;

    return job->view ? session_view_write(job->view, data, size) : -EPIPE;
}

static void on_close_input(void *owner)
{
    struct session_job *job = owner;

    if (job->view)
        (void)session_view_close_stdin(job->view);
}

static void on_resize(void *owner, uint16_t rows, uint16_t cols)
{
    struct session_job *job = owner;

    if (job->view)
        (void)session_resize(job->session, rows, cols);
}

static void on_signal(void *owner, int signo)
{
    struct session_job *job = owner;

    if (job->view)
        (void)session_view_signal(job->view, signo);
}

static void on_pipe_over(void *owner, bool complete)
{
    (void)complete;
    session_job_free(owner);
}

static const struct pipe_ops pipe_ops = {
    .consumed = on_consumed,
    .writable = on_input_room,
    .write = on_input,
    .close_input = on_close_input,
    .resize = on_resize,
    .signal = on_signal,
    .over = on_pipe_over,
};

static void on_upgraded(struct upgrade *up, void *state)
{
    struct session_job *job = state;

    job->req = NULL;
    if (pipe_open(job->pipe, up) < 0)
        session_job_free(job);
}

/* ---- beginning ---- */

static int session_job_new(struct request *req, struct sandbox *sb, struct session *s, bool stream,
                           struct session_job **ret, struct error *err)
{
    struct session_job *job = calloc(1, sizeof(*job));
    int r;

    if (!job)
        return error_set(err, ENOMEM, "session: out of memory");
    job->req = req;
    job->session = s;
    capture_init(&job->capture, CAPTURE_MAX);
    job->name = strdup(request_param(req, 1));
    r = job->name ? sandbox_watch_new(sb, on_gone, job, &job->watch) : -ENOMEM;
    if (r >= 0 && stream)
        r = pipe_new(native_of(req)->loop, &pipe_ops, job, OUTPUT_MAX, &job->pipe);
    if (r < 0) {
        error_fill(err, r, "session '%s': wait for sandbox '%s'", request_param(req, 1),
                   sandbox_id(sb));
        session_job_free(job);
        return r;
    }
    *ret = job;
    return 0;
}

static void session_job_begin(struct session_job *job, struct request *req, int r,
                              const struct error *err)
{
    if (r < 0) {
        if (job)
            session_job_free(job);
        request_answer_error(req, err);
        return;
    }
    request_own(req, job, on_over);
    if (job->pipe)
        request_upgrade(req, "hearth-stream", on_upgraded);
}

void session_job_run(struct request *req, struct sandbox *sb, struct session *s,
                     const struct session_run_options *options)
{
    struct session_job *job = NULL;
    struct error err = {0};

    int r = session_job_new(req, sb, s, request_wants_upgrade(req, "hearth-stream"), &job, &err);
    if (r >= 0)
        r = session_run(s, options, &view_callbacks, job, &job->view, &err);
    session_job_begin(job, req, r, &err);
}

void session_job_attach(struct request *req, struct sandbox *sb, struct session *s,
                        uint64_t command, const uint64_t from[3])
{
    struct session_job *job = NULL;
    struct error err = {0};

    int r = session_job_new(req, sb, s, /* stream= */ true, &job, &err);
    if (r >= 0) {
        job->from[1] = from[1];
        job->from[2] = from[2];
        r = session_attach(s, command, from, &view_callbacks, job, &job->view, &err);
    }
    session_job_begin(job, req, r, &err);
}
