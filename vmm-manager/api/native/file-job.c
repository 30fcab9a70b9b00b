#include "api/native/file-job.h"

#include <stdlib.h>
#include <string.h>

static void on_over(void *state, enum request_end why)
{
    struct file_job *job = state;

    (void)why;
    job->call = file_call_free(job->call);
    job->transfer = transfer_free(job->transfer);
    job->watch = sandbox_watch_free(job->watch);
    json_decref(job->entries);
    free(job);
}

void file_job_fail(struct file_job *job, const struct error *err)
{
    job->call = file_call_free(job->call);
    job->transfer = transfer_free(job->transfer);
    if (job->streaming)
        request_stream_end(job->req, /* complete= */ false);
    else
        request_answer_error(job->req, err);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct file_job *job = userdata;

    (void)sb;
    job->watch = sandbox_watch_free(job->watch);
    if (job->call || job->transfer)
        file_job_fail(job, reason);
}

struct file_job *file_job_new(struct request *req, struct sandbox *sb)
{
    struct file_job *job = calloc(1, sizeof(*job));
    int r = job ? sandbox_watch_new(sb, on_gone, job, &job->watch) : -ENOMEM;

    if (r < 0) {
        struct error err = {0};
        error_fill(&err, r, "files of sandbox '%s'", sandbox_id(sb));
        request_answer_error(req, &err);
        free(job);
        return NULL;
    }
    job->req = req;
    job->sb = sb;
    request_own(req, job, on_over);
    return job;
}

const char *file_user(struct sandbox *sb, const char *user)
{
    return user ? user : sandbox_get_spec(sb)->user;
}

bool file_query(struct request *req, struct sandbox *sb, const char **ret_path,
                const char **ret_user)
{
    const char *path = NULL, *user = NULL;
    struct error err;

    if (!native_query_string(req, "path", &path) || !native_query_string(req, "user", &user))
        return false;
    if (!path || path[0] != '/' || strlen(path) > 4095) {
        error_set(&err, EINVAL, "'path': '%.128s' is not an absolute path of at most 4095 bytes",
                  path ? path : "");
        request_answer_error(req, &err);
        return false;
    }
    *ret_path = path;
    *ret_user = file_user(sb, user);
    return true;
}
