#include <stdlib.h>

#include "api/native/file-job.h"
#include "api/native/handlers.h"

/* What a transfer may have in flight, twice: a window's worth waits for the client. */
#define DOWNLOAD_MAX (2u * EXEC_WINDOW)

/* ---- download: the guest sends on as the client takes ---- */

static void on_read_drained(void *state, size_t size)
{
    struct file_job *job = state;

    if (job->transfer)
        transfer_consumed(job->transfer, size);
}

static void on_read_ready(struct transfer *t, uint64_t size, void *userdata)
{
    struct file_job *job = userdata;

    (void)t;
    (void)size; /* files of /proc say 0: the answer is chunked */
    if (job->streaming)
        return; /* bytes were faster than the guest's word on them */
    job->streaming = true;
    request_stream_begin(job->req, "application/octet-stream", DOWNLOAD_MAX, on_read_drained);
}

static void on_read_data(struct transfer *t, const uint8_t *data, size_t size, void *userdata)
{
    struct file_job *job = userdata;
    struct error err;

    if (!job->streaming)
        on_read_ready(t, 0, job);
    if (request_stream_write(job->req, data, size) < 0) {
        error_set(&err, ENOBUFS, "read: the guest sent more than it may");
        file_job_fail(job, &err);
    }
}

static void on_read_done(struct transfer *t, const struct error *err, void *userdata)
{
    struct file_job *job = userdata;

    (void)t;
    if (err) {
        file_job_fail(job, err);
        return;
    }
    job->transfer = transfer_free(job->transfer);
    if (!job->streaming)
        on_read_ready(NULL, 0, job);
    request_stream_end(job->req, /* complete= */ true);
}

void handle_file_read(struct request *req)
{
    static const struct transfer_callbacks callbacks = {
        .on_ready = on_read_ready,
        .on_data = on_read_data,
        .on_done = on_read_done,
    };
    uint64_t offset = 0, length = UINT64_MAX;
    const char *path, *user;
    struct error err = {0};
    struct sandbox *sb;

    struct console *c = native_console(req, &sb);
    if (!c || !file_query(req, sb, &path, &user) ||
        !native_query_u64(req, "offset", INT64_MAX, &offset) ||
        !native_query_u64(req, "length", UINT64_MAX, &length))
        return;
    struct file_job *job = file_job_new(req, sb);
    if (!job)
        return;
    int r = file_read_start(c, user, path, offset, length, &callbacks, job, &job->transfer, &err);
    if (r < 0)
        file_job_fail(job, &err);
}

/* ---- upload: the client sends on as the guest takes ---- */

static size_t on_body(void *state, const uint8_t *data, size_t size)
{
    struct file_job *job = state;

    if (!job->transfer)
        return 0;
    size_t fits = MIN(size, transfer_writable(job->transfer));
    if (fits > 0 && transfer_write(job->transfer, data, fits) < 0)
        return 0; /* on_done tells why */
    return fits;
}

static void on_body_end(void *state)
{
    struct file_job *job = state;

    if (job->transfer)
        (void)transfer_finish(job->transfer);
}

static const struct request_body_ops body_ops = {.data = on_body, .end = on_body_end};

static void on_write_ready(struct transfer *t, uint64_t size, void *userdata)
{
    struct file_job *job = userdata;

    (void)t;
    (void)size;
    request_body_begin(job->req, &body_ops);
}

static void on_writable(struct transfer *t, void *userdata)
{
    struct file_job *job = userdata;

    (void)t;
    request_body_more(job->req);
}

static void on_write_done(struct transfer *t, const struct error *err, void *userdata)
{
    struct file_job *job = userdata;

    (void)t;
    if (err) {
        file_job_fail(job, err);
        return;
    }
    job->transfer = transfer_free(job->transfer);
    request_answer_empty(job->req, 204);
}

void handle_file_write(struct request *req)
{
    static const struct transfer_callbacks callbacks = {
        .on_ready = on_write_ready,
        .on_writable = on_writable,
        .on_done = on_write_done,
    };
    struct file_write_options options = {0};
    const char *path, *user, *mode = NULL;
    struct error err = {0};
    struct sandbox *sb;

    struct console *c = native_console(req, &sb);
    if (!c || !file_query(req, sb, &path, &user) || !native_query_string(req, "mode", &mode) ||
        !native_query_bool(req, "parents", &options.parents) ||
        !native_query_bool(req, "append", &options.append) ||
        !native_query_bool(req, "exclusive", &options.exclusive))
        return;
    if (mode && native_parse_mode(mode, &options.mode, &err) < 0) {
        request_answer_error(req, &err);
        return;
    }
    /* A client that vanishes leaves the old file. */
    options.atomic = !options.append;
    struct file_job *job = file_job_new(req, sb);
    if (!job)
        return;
    int r = file_write_start(c, user, path, &options, &callbacks, job, &job->transfer, &err);
    if (r < 0)
        file_job_fail(job, &err);
}
