#include "api/native/exec-job.h"

#include <signal.h>
#include <stdlib.h>

#include "api/native/capture.h"
#include "api/native/pipe.h"
#include "base/clock.h"
#include "base/log.h"

/*
 * Theory of operation. A job has at most one client: `req` while it is HTTP, then `pipe`; with
 * neither it was left behind. It holds the exec until the process has ended or the attachment is
 * over, and a watch on the sandbox as long as it holds the exec. It is freed when it has neither
 * client nor exec.
 */
struct exec_job {
    struct api_native *api; /* weak */
    struct exec_job *prev, *next;
    struct exec_job_options options;
    bool attached;               /* the process is not of this job's making */
    struct sandbox *sb;          /* weak, valid while watch is there */
    struct sandbox_watch *watch; /* owned */
    struct exec *exec;           /* owned; NULL: over */
    struct request *req;         /* weak */
    struct pipe *pipe;           /* owned */
    struct capture capture;
    struct source *kill; /* owned: when the hung-up process is killed */
    uint64_t process_id;
    uint64_t from[3]; /* offsets that the client has seen */
    bool exited;
};

static struct exec_job *exec_job_free(struct exec_job *job)
{
    if (job->prev)
        job->prev->next = job->next;
    else
        job->api->jobs = job->next;
    if (job->next)
        job->next->prev = job->prev;
    job->kill = source_free(job->kill);
    job->exec = exec_free(job->exec);
    job->watch = sandbox_watch_free(job->watch);
    job->pipe = pipe_free(job->pipe);
    capture_done(&job->capture);
    free(job);
    return NULL;
}

/* The last thing that a callback does with the job. */
static void exec_job_check(struct exec_job *job)
{
    if (!job->req && !job->pipe && !job->exec)
        exec_job_free(job);
}

static void on_released(struct console *c, const struct error *err, void *userdata)
{
    (void)c;
    (void)err;
    (void)userdata;
}

/* The client has all of it: the guest may forget the process. */
static void exec_job_release(struct exec_job *job)
{
    struct console *c = job->watch ? sandbox_console(job->sb, NULL) : NULL;

    if (c && job->exited && !job->attached && job->process_id != 0)
        (void)exec_release(c, job->process_id, clock_now_usec() + CALL_TIMEOUT_USEC, on_released,
                           NULL);
}

/* No more from the guest: the client hears why. */
static void exec_job_broken(struct exec_job *job, const struct error *reason)
{
    job->exec = exec_free(job->exec);
    job->kill = source_free(job->kill);
    if (job->pipe && !pipe_is_finished(job->pipe))
        pipe_finish(job->pipe, STREAM_ERROR, error_to_json(reason));
    if (job->req && !job->pipe) {
        request_own(job->req, NULL, NULL);
        request_answer_error(job->req, reason);
        job->req = NULL;
    }
    exec_job_check(job);
}

/* ---- the client goes ---- */

static int on_kill(struct source *s, uint64_t now_usec, void *userdata)
{
    struct exec_job *job = userdata;

    (void)s;
    (void)now_usec;
    return job->exec ? exec_signal(job->exec, SIGKILL, EXEC_SIGNAL_TREE) : 0;
}

static void exec_job_hang_up(struct exec_job *job)
{
    int r;

    job->req = NULL;
    if (!job->exec || job->attached || job->options.keep || job->options.kind == EXEC_JOB_DETACH) {
        job->exec = exec_free(job->exec);
        exec_job_check(job);
        return;
    }
    r = exec_signal(job->exec, SIGHUP, EXEC_SIGNAL_TREE);
    if (r >= 0)
        r = loop_add_timer(job->api->loop, "hang-up", clock_now_usec() + EXEC_HANGUP_USEC, on_kill,
                           job, &job->kill);
    if (r < 0)
        (void)exec_signal(job->exec, SIGKILL, EXEC_SIGNAL_TREE);
}

static void on_request_over(void *state, enum request_end why)
{
    struct exec_job *job = state;

    if (why == REQUEST_STOPPED) {
        exec_job_free(job);
        return;
    }
    job->pipe = pipe_free(job->pipe);
    exec_job_hang_up(job);
}

/* ---- what the guest says ---- */

static void on_started(struct exec *e, uint64_t process_id, uint32_t pid,
                       const struct exec_range ranges[EXEC_STREAMS_MAX], void *userdata)
{
    struct exec_job *job = userdata;

    (void)e;
    job->process_id = process_id;
    if (job->pipe) {
        uint64_t at[3];
        for (int i = 1; i <= 2; i++)
            at[i] = MIN(MAX(job->from[i], ranges[i].start), MAX(ranges[i].start, ranges[i].end));
        pipe_event(job->pipe, STREAM_STARTED,
                   json_pack("{s:I, s:I, s:I, s:I}", "process_id", (json_int_t)process_id, "pid",
                             (json_int_t)pid, "stdout", (json_int_t)at[1], "stderr",
                             (json_int_t)at[2]));
        pipe_pump_input(job->pipe);
    }
    if (job->options.kind == EXEC_JOB_DETACH && job->req) {
        struct request *req = job->req;
        request_own(req, NULL, NULL);
        request_answer(
            req, 201,
            json_pack("{s:I, s:I}", "process_id", (json_int_t)process_id, "pid", (json_int_t)pid));
        job->req = NULL;
        job->exec = exec_free(job->exec);
        exec_job_check(job);
    }
}

static void on_output(struct exec *e, uint8_t stream, uint64_t offset, const uint8_t *data,
                      size_t size, void *userdata)
{
    struct exec_job *job = userdata;

    (void)offset;
    if (job->pipe && (stream == 1 || stream == 2)) {
        pipe_output(job->pipe, stream, data, size); /* acknowledged when the client took it */
        return;
    }
    if (job->req)
        capture_add(&job->capture, stream, data, size);
    exec_consumed(e, stream, size);
}

static void on_writable(struct exec *e, uint8_t stream, void *userdata)
{
    struct exec_job *job = userdata;

    (void)e;
    if (stream == 0 && job->pipe)
        pipe_pump_input(job->pipe);
}

json_t *exec_result_to_json(const struct exec_exit *exit, uint64_t process_id,
                            const bool truncated[3])
{
    json_t *o =
        json_pack("{s:i, s:I, s:b, s:b, s:{s:b, s:b}, s:I}", "exit_code",
                  exit->timed_out ? 124 : exec_exit_code(exit), "duration_ms",
                  (json_int_t)(exit->wall_usec / USEC_PER_MSEC), "timed_out", exit->timed_out,
                  "oom_killed", exit->oom_killed, "truncated", "stdout", truncated[1], "stderr",
                  truncated[2], "process_id", (json_int_t)process_id);

    if (o && exit->signal)
        (void)json_object_set_new(o, "signal", json_integer(exit->signal));
    return o;
}

static void on_process_exit(struct exec *e, const struct exec_exit *exit, void *userdata)
{
    struct exec_job *job = userdata;
    json_t *result = exec_result_to_json(exit, job->process_id, job->capture.truncated);

    (void)e;
    job->exited = true;
    job->exec = exec_free(job->exec);
    job->kill = source_free(job->kill);
    if (job->pipe) {
        pipe_finish(job->pipe, STREAM_EXIT, result);
        return;
    }
    if (job->req) {
        capture_to_json(&job->capture, result);
        request_own(job->req, NULL, NULL);
        request_answer(job->req, 200, result);
        job->req = NULL;
    } else {
        json_decref(result);
    }
    exec_job_release(job);
    exec_job_check(job);
}

static void on_closed(struct exec *e, const struct error *reason, void *userdata)
{
    struct exec_job *job = userdata;

    (void)e;
    /* The console knows only that it was closed; the watch follows and tells why. */
    if (reason->code != ERR_GUEST_GONE || !job->watch)
        exec_job_broken(job, reason);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct exec_job *job = userdata;

    (void)sb;
    job->watch = sandbox_watch_free(job->watch);
    exec_job_broken(job, reason);
}

static const struct exec_callbacks exec_callbacks = {
    .on_started = on_started,
    .on_output = on_output,
    .on_writable = on_writable,
    .on_exit = on_process_exit,
    .on_closed = on_closed,
};

/* ---- what the client says ---- */

static void on_consumed(void *owner, int stream, size_t size)
{
    struct exec_job *job = owner;

    if (job->exec)
        exec_consumed(job->exec, (uint8_t)stream, size);
}

static size_t on_input_room(void *owner)
{
    struct exec_job *job = owner;

    return job->exec ? exec_writable(job->exec, 0) : 0;
}

static int on_input(void *owner, const void *data, size_t size)
{
    struct exec_job *job = owner;

    return job->exec ? exec_write(job->exec, 0, data, size) : -EPIPE;
}

static void on_close_input(void *owner)
{
    struct exec_job *job = owner;

    if (job->exec)
        (void)exec_close_stream(job->exec, 0);
}

static void on_resize(void *owner, uint16_t rows, uint16_t cols)
{
    struct exec_job *job = owner;

    if (job->exec)
        (void)exec_resize(job->exec, rows, cols);
}

/* As a terminal and a person would: keys reach what is in front, SIGKILL leaves nothing behind. */
static enum exec_signal_scope signal_scope(bool tty, int signo)
{
    if (signo == SIGKILL)
        return EXEC_SIGNAL_TREE;
    if (tty && (signo == SIGINT || signo == SIGQUIT || signo == SIGTSTP))
        return EXEC_SIGNAL_FOREGROUND;
    return EXEC_SIGNAL_PROCESS;
}

static void on_signal(void *owner, int signo)
{
    struct exec_job *job = owner;

    if (job->exec)
        (void)exec_signal(job->exec, signo, signal_scope(job->options.tty, signo));
}

static void on_pipe_over(void *owner, bool complete)
{
    struct exec_job *job = owner;

    job->pipe = pipe_free(job->pipe);
    if (complete)
        exec_job_release(job);
    exec_job_hang_up(job);
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
    struct exec_job *job = state;

    job->req = NULL;
    if (pipe_open(job->pipe, up) < 0)
        on_pipe_over(job, false);
}

/* ---- beginning ---- */

static int exec_job_new(struct request *req, struct sandbox *sb,
                        const struct exec_job_options *options, struct exec_job **ret,
                        struct error *err)
{
    struct api_native *api = native_of(req);
    struct exec_job *job = calloc(1, sizeof(*job));
    int r;

    if (!job)
        return error_set(err, ENOMEM, "exec: out of memory");
    job->api = api;
    job->options = *options;
    job->sb = sb;
    job->req = req;
    capture_init(&job->capture, CAPTURE_MAX);
    job->next = api->jobs;
    if (job->next)
        job->next->prev = job;
    api->jobs = job;
    r = sandbox_watch_new(sb, on_gone, job, &job->watch);
    if (r >= 0 && options->kind == EXEC_JOB_STREAM)
        r = pipe_new(api->loop, &pipe_ops, job, 2 * EXEC_WINDOW, &job->pipe);
    if (r < 0) {
        error_fill(err, r, "exec: wait for sandbox '%s'", sandbox_id(sb));
        exec_job_free(job);
        return r;
    }
    *ret = job;
    return 0;
}

/* The process is on its way: so is the request. */
static void exec_job_begin(struct exec_job *job)
{
    request_own(job->req, job, on_request_over);
    if (job->pipe)
        request_upgrade(job->req, "hearth-stream", on_upgraded);
}

void exec_job_start(struct request *req, struct sandbox *sb, struct console *c,
                    const struct exec_spec *spec, const struct exec_job_options *options)
{
    struct error err = {0};
    struct exec_job *job = NULL;

    int r = exec_job_new(req, sb, options, &job, &err);
    if (r >= 0)
        r = exec_start(c, spec, &exec_callbacks, job, &job->exec, &err);
    if (r < 0) {
        if (job)
            exec_job_free(job);
        request_answer_error(req, &err);
        return;
    }
    exec_job_begin(job);
}

void exec_job_attach(struct request *req, struct sandbox *sb, struct console *c,
                     uint64_t process_id, const uint64_t *from)
{
    struct exec_job_options options = {.kind = EXEC_JOB_STREAM, .keep = true};
    uint64_t offsets[EXEC_STREAMS_MAX] = {0};
    struct error err = {0};
    struct exec_job *job = NULL;

    int r = exec_job_new(req, sb, &options, &job, &err);
    if (r >= 0) {
        job->attached = true;
        for (int i = 1; from && i <= 2; i++)
            job->from[i] = offsets[i] = from[i];
        r = exec_attach(c, process_id, from ? offsets : NULL, &exec_callbacks, job, &job->exec,
                        &err);
    }
    if (r < 0) {
        if (job)
            exec_job_free(job);
        request_answer_error(req, &err);
        return;
    }
    exec_job_begin(job);
}

void exec_jobs_free(struct api_native *api)
{
    while (api->jobs)
        exec_job_free(api->jobs);
}
