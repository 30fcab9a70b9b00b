#include "api/e2b/fs-job.h"

#include <stdlib.h>
#include <string.h>

#include "api/e2b/entry.h"
#include "base/strv.h"

static void fs_job_free(struct fs_job *job)
{
    job->call = file_call_free(job->call);
    job->watch = sandbox_watch_free(job->watch);
    json_decref(job->message);
    json_decref(job->entries);
    file_info_done(&job->info);
    for (size_t i = 0; i < job->n_infos; i++)
        file_info_done(&job->infos[i]);
    free(job->infos);
    free(job->home);
    free(job->path);
    free(job->to);
    free(job);
}

void fs_job_detach(struct fs_job *job)
{
    fs_job_free(job);
}

static void on_over(void *state, enum request_end why)
{
    (void)why;
    fs_job_free(state);
}

void fs_job_fail(struct fs_job *job, const struct error *err)
{
    job->call = file_call_free(job->call);
    connect_answer_error(job->req, err);
}

void fs_job_check(struct fs_job *job, int r, const struct error *err)
{
    if (r < 0)
        fs_job_fail(job, err);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct fs_job *job = userdata;

    (void)sb;
    job->watch = sandbox_watch_free(job->watch);
    job->c = NULL;
    if (job->call)
        fs_job_fail(job, reason);
}

struct fs_begin {
    struct fs_job *job; /* owned until it has begun */
    fs_begin_fn begin;
};

static void begin_free(void *state)
{
    struct fs_begin *b = state;

    if (b->job)
        fs_job_free(b->job);
    free(b);
}

static void on_resolved(struct request *req, struct sandbox *sb, struct console *c,
                        const char *path, const struct envd_account *account, void *state)
{
    struct fs_begin *b = state;
    struct fs_job *job = TAKE_PTR(b->job);
    struct error err = {0};
    int r;

    job->req = req;
    job->sb = sb;
    job->c = c;
    job->uid = account->uid;
    job->gid = account->gid;
    request_own(req, job, on_over);
    r = string_set(&job->path, path);
    if (r >= 0)
        r = string_set(&job->home, account->home);
    if (r >= 0)
        r = sandbox_watch_new(sb, on_gone, job, &job->watch);
    if (r < 0) {
        error_fill(&err, r, "files of sandbox '%s'", sandbox_id(sb));
        fs_job_fail(job, &err);
        return;
    }
    b->begin(job);
}

void fs_job_start(struct request *req, bool stream, const char *key, fs_begin_fn begin)
{
    struct sandbox *sb;
    json_t *message = NULL;
    struct console *c = envd_call(req, stream, &sb, &message);
    struct fs_begin *b = c ? calloc(1, sizeof(*b)) : NULL;
    struct fs_job *job = b ? calloc(1, sizeof(*job)) : NULL;
    struct error err = {0};
    const char *path;

    if (!c)
        return;
    if (!job) {
        free(b);
        json_decref(message);
        connect_answer_code(req, CONNECT_INTERNAL, "out of memory");
        return;
    }
    b->job = job;
    b->begin = begin;
    job->message = message;
    job->streamed = stream;
    path = pb_string(message, key, key);
    if (!path) {
        begin_free(b);
        connect_answer_code(req, CONNECT_INVALID_ARGUMENT, "the path is missing");
        return;
    }
    if (envd_user(req, sb, job->user, &err) < 0) {
        begin_free(b);
        connect_answer_error(req, &err);
        return;
    }
    envd_resolve(req, sb, c, job->user, path, on_resolved, b, begin_free);
}

bool fs_job_is_directory(struct fs_job *job, const struct file_info *info, const struct error *err)
{
    bool directory = !err && info->type == FILE_TYPE_DIRECTORY;

    if (err) {
        fs_job_fail(job, err);
        return false;
    }
    job->call = file_call_free(job->call);
    if (!directory)
        connect_answer_code(job->req, CONNECT_INVALID_ARGUMENT, "the path is not a directory");
    return directory;
}

int fs_info_copy(const struct file_info *from, struct file_info *to)
{
    struct file_info copy = *from;

    copy.path = from->path ? strdup(from->path) : NULL;
    copy.link_target = from->link_target ? strdup(from->link_target) : NULL;
    if ((from->path && !copy.path) || (from->link_target && !copy.link_target)) {
        file_info_done(&copy);
        return -ENOMEM;
    }
    *to = copy;
    return 0;
}

/* ---- one entry ---- */

static void answer_entry(struct fs_job *job, const struct file_info *target)
{
    json_t *entry = entry_to_json(&job->info, job->path, target);

    job->call = file_call_free(job->call);
    connect_answer(job->req, json_pack("{s:o}", "entry", entry));
}

static void on_target(const struct file_info *info, const struct error *err, void *userdata)
{
    answer_entry(userdata, err ? NULL : info);
}

static void on_entry(const struct file_info *info, const struct error *err, void *userdata)
{
    struct fs_job *job = userdata;
    struct error failed = {0};
    int r;

    if (err) {
        fs_job_fail(job, err);
        return;
    }
    r = fs_info_copy(info, &job->info);
    job->call = file_call_free(job->call);
    if (r < 0) {
        (void)error_set(&failed, ENOMEM, "out of memory");
        fs_job_fail(job, &failed);
        return;
    }
    if (job->info.type != FILE_TYPE_LINK) {
        answer_entry(job, NULL);
        return;
    }
    r = file_stat(job->c, NULL, job->path, /* follow= */ true, on_target, job, &job->call, &failed);
    fs_job_check(job, r, &failed);
}

void fs_job_answer_entry(struct fs_job *job)
{
    struct error err = {0};
    int r;

    job->call = file_call_free(job->call);
    r = file_stat(job->c, NULL, job->path, /* follow= */ false, on_entry, job, &job->call, &err);
    fs_job_check(job, r, &err);
}
