#include <stdio.h>
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
    (void)request_add_header(job->req, "Accept-Ranges", "bytes");
    if (job->range.length > 0)
        request_stream_begin_as(job->req, 206, "application/octet-stream", job->range.length,
                                DOWNLOAD_MAX, on_read_drained);
    else
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

static void read_begin(struct file_job *job, struct console *c, uint64_t offset, uint64_t length)
{
    static const struct transfer_callbacks callbacks = {
        .on_ready = on_read_ready,
        .on_data = on_read_data,
        .on_done = on_read_done,
    };
    struct error err = {0};
    int r = file_read_start(c, job->user, job->path, offset, length, &callbacks, job,
                            &job->transfer, &err);

    if (r < 0)
        file_job_fail(job, &err);
}

/* With a Range header: how large is it? */
static void on_read_stat(const struct file_info *info, const struct error *err, void *userdata)
{
    struct file_job *job = userdata;
    uint64_t size = err || info->type != FILE_TYPE_REGULAR ? 0 : info->size;
    struct error why = {0};
    char text[80];
    int r = 0;

    if (err) {
        file_job_fail(job, err);
        return;
    }
    job->call = file_call_free(job->call);
    struct console *c = sandbox_console(job->sb, &why);
    if (size > 0)
        r = byte_range_parse(request_header(job->req, "Range"), size, &job->range);
    if (!c) {
        file_job_fail(job, &why);
    } else if (r < 0) {
        (void)snprintf(text, sizeof(text), "bytes */%llu", (unsigned long long)size);
        (void)request_add_header(job->req, "Content-Range", text);
        error_set_code(&why, ERR_RANGE_NOT_SATISFIABLE, "Range: the file has %llu bytes",
                       (unsigned long long)size);
        file_job_fail(job, &why);
    } else if (r > 0) {
        (void)snprintf(text, sizeof(text), "bytes %llu-%llu/%llu",
                       (unsigned long long)job->range.offset,
                       (unsigned long long)(job->range.offset + job->range.length - 1),
                       (unsigned long long)size);
        (void)request_add_header(job->req, "Content-Range", text);
        read_begin(job, c, job->range.offset, job->range.length);
    } else {
        read_begin(job, c, 0, UINT64_MAX);
    }
}

void handle_file_read(struct request *req)
{
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
    job->path = path;
    job->user = user;
    if (!request_header(req, "Range") || offset > 0 || length != UINT64_MAX) {
        read_begin(job, c, offset, length);
        return;
    }
    int r = file_stat(c, user, path, /* follow= */ true, on_read_stat, job, &job->call, &err);
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
