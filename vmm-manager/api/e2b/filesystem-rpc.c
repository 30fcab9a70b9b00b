#include <stdlib.h>
#include <string.h>

#include "api/e2b/entry.h"
#include "api/e2b/fs-job.h"
#include "api/e2b/handlers.h"
#include "base/strv.h"

/* The service filesystem.Filesystem, but for its watches. As envd does, all of it with root's
 * rights; what is made belongs to the user. */
#define LIST_MAX 100000u
#define LIST_DEPTH_MAX 64u

/* ---- Stat ---- */

void handle_fs_stat(struct request *req)
{
    fs_job_start(req, /* stream= */ false, "path", fs_job_answer_entry);
}

/* ---- MakeDir ---- */

static void make_dir(struct fs_job *job);

static void on_owned(const struct error *err, void *userdata)
{
    struct fs_job *job = userdata;

    if (err)
        fs_job_fail(job, err);
    else
        fs_job_answer_entry(job);
}

static void on_made(const struct error *err, void *userdata)
{
    struct fs_job *job = userdata;
    const struct file_attr attr = {.set_owner = true, .uid = job->uid, .gid = job->gid};
    struct error failed = {0};
    int r;

    job->call = file_call_free(job->call);
    if (err && err->code == ERR_PERMISSION_DENIED && !job->as_root) {
        job->as_root = true;
        make_dir(job);
        return;
    }
    if (err) {
        fs_job_fail(job, err);
        return;
    }
    if (!job->as_root) {
        fs_job_answer_entry(job);
        return;
    }
    r = file_set_attr(job->c, NULL, job->path, &attr, on_owned, job, &job->call, &failed);
    fs_job_check(job, r, &failed);
}

static void make_dir(struct fs_job *job)
{
    struct error err = {0};
    int r = file_mkdir(job->c, job->as_root ? NULL : job->user, job->path, /* parents= */ true,
                       0755, on_made, job, &job->call, &err);

    fs_job_check(job, r, &err);
}

static void on_make_stat(const struct file_info *info, const struct error *err, void *userdata)
{
    struct fs_job *job = userdata;
    bool directory = !err && info->type == FILE_TYPE_DIRECTORY;

    job->call = file_call_free(job->call);
    if (err && err->code != ERR_PATH_NOT_FOUND) {
        fs_job_fail(job, err);
    } else if (err) {
        make_dir(job);
    } else {
        connect_answer_code(job->req, directory ? CONNECT_ALREADY_EXISTS : CONNECT_INVALID_ARGUMENT,
                            directory ? "the directory exists already"
                                      : "there is something that is no directory");
    }
}

static void begin_make_dir(struct fs_job *job)
{
    struct error err = {0};
    int r =
        file_stat(job->c, NULL, job->path, /* follow= */ true, on_make_stat, job, &job->call, &err);

    fs_job_check(job, r, &err);
}

void handle_fs_make_dir(struct request *req)
{
    fs_job_start(req, /* stream= */ false, "path", begin_make_dir);
}

/* ---- Remove ---- */

static void on_removed(const struct error *err, void *userdata)
{
    struct fs_job *job = userdata;

    if (err && err->code != ERR_PATH_NOT_FOUND) {
        fs_job_fail(job, err);
        return;
    }
    job->call = file_call_free(job->call);
    connect_answer(job->req, json_object());
}

static void begin_remove(struct fs_job *job)
{
    struct error err = {0};
    int r = file_remove(job->c, NULL, job->path, /* recursive= */ true, on_removed, job, &job->call,
                        &err);

    fs_job_check(job, r, &err);
}

void handle_fs_remove(struct request *req)
{
    fs_job_start(req, /* stream= */ false, "path", begin_remove);
}

/* ---- Move ---- */

static void on_moved(const struct error *err, void *userdata)
{
    struct fs_job *job = userdata;

    if (err) {
        fs_job_fail(job, err);
        return;
    }
    free(job->path);
    job->path = TAKE_PTR(job->to);
    fs_job_answer_entry(job);
}

static void on_move_parent(const struct error *err, void *userdata)
{
    struct fs_job *job = userdata;
    struct error failed = {0};
    int r;

    job->call = file_call_free(job->call);
    if (err && err->code != ERR_ALREADY_EXISTS) {
        fs_job_fail(job, err);
        return;
    }
    r = file_move(job->c, NULL, job->path, job->to, /* no_replace= */ false, on_moved, job,
                  &job->call, &failed);
    fs_job_check(job, r, &failed);
}

static void on_move_source(const struct file_info *info, const struct error *err, void *userdata)
{
    struct fs_job *job = userdata;
    _cleanup_free_ char *parent = strdup(job->to);
    struct error failed = {0};
    char *slash = parent ? strrchr(parent, '/') : NULL;
    int r;

    (void)info;
    if (err) {
        fs_job_fail(job, err);
        return;
    }
    job->call = file_call_free(job->call);
    if (!slash || slash == parent) {
        on_move_parent(NULL, job);
        return;
    }
    *slash = '\0';
    r = file_mkdir(job->c, NULL, parent, /* parents= */ true, 0755, on_move_parent, job, &job->call,
                   &failed);
    fs_job_check(job, r, &failed);
}

static void begin_move(struct fs_job *job)
{
    const char *to = pb_string(job->message, "destination", "destination");
    struct error err = {0};
    int r;

    if (!to || to[0] == '\0') {
        connect_answer_code(job->req, CONNECT_INVALID_ARGUMENT, "'destination': is missing");
        return;
    }
    job->to = envd_join(job->home, to);
    if (!job->to) {
        connect_answer_code(job->req, CONNECT_INTERNAL, "out of memory");
        return;
    }
    r = file_stat(job->c, NULL, job->path, /* follow= */ false, on_move_source, job, &job->call,
                  &err);
    fs_job_check(job, r, &err);
}

void handle_fs_move(struct request *req)
{
    fs_job_start(req, /* stream= */ false, "source", begin_move);
}

/* ---- ListDir ---- */

static int by_path(const void *a, const void *b)
{
    const struct file_info *x = a, *y = b;
    const char *p = x->path, *q = y->path;

    /* Depth first: a directory's own entries follow it, so '/' sorts before anything else. */
    while (*p && *p == *q) {
        p++;
        q++;
    }
    unsigned char c = *p == '/' ? 1 : (unsigned char)*p, d = *q == '/' ? 1 : (unsigned char)*q;
    return c < d ? -1 : c > d;
}

static void list_next(struct fs_job *job);

static void list_add(struct fs_job *job, const struct file_info *target)
{
    const struct file_info *info = &job->infos[job->at++];
    _cleanup_free_ char *path =
        string_printf("%s/%s", strcmp(job->path, "/") == 0 ? "" : job->path, info->path);

    if (path)
        (void)json_array_append_new(job->entries, entry_to_json(info, path, target));
}

static void on_list_target(const struct file_info *info, const struct error *err, void *userdata)
{
    struct fs_job *job = userdata;

    list_add(job, err ? NULL : info);
    job->call = file_call_free(job->call);
    list_next(job);
}

/* Entries up to the next symlink; it goes on when that one is known. */
static void list_next(struct fs_job *job)
{
    struct error err = {0};

    while (job->at < job->n_infos && job->infos[job->at].type != FILE_TYPE_LINK)
        list_add(job, NULL);
    if (job->at == job->n_infos) {
        connect_answer(job->req, json_pack("{s:O}", "entries", job->entries));
        return;
    }
    _cleanup_free_ char *path = string_printf("%s/%s", strcmp(job->path, "/") == 0 ? "" : job->path,
                                              job->infos[job->at].path);
    int r = path ? file_stat(job->c, NULL, path, /* follow= */ true, on_list_target, job,
                             &job->call, &err)
                 : error_set(&err, ENOMEM, "out of memory");
    fs_job_check(job, r, &err);
}

static int list_take(struct fs_job *job, const struct file_info *infos, size_t count,
                     struct error *err)
{
    struct file_info *grown;

    if (job->n_infos + count > LIST_MAX)
        return error_set(err, E2BIG, "the directory has more than %u entries", LIST_MAX);
    grown = reallocarray(job->infos, job->n_infos + count + 1, sizeof(*grown));
    if (!grown)
        return error_set(err, ENOMEM, "out of memory");
    job->infos = grown;
    for (size_t i = 0; i < count; i++) {
        if (fs_info_copy(&infos[i], &grown[job->n_infos]) < 0)
            return error_set(err, ENOMEM, "out of memory");
        job->n_infos++;
    }
    return 0;
}

static void on_list(const struct file_info *infos, size_t count, bool last, const struct error *err,
                    void *userdata)
{
    struct fs_job *job = userdata;
    struct error failed = {0};

    if (err) {
        fs_job_fail(job, err);
        return;
    }
    if (list_take(job, infos, count, &failed) < 0) {
        fs_job_fail(job, &failed);
        return;
    }
    if (!last)
        return;
    job->call = file_call_free(job->call);
    qsort(job->infos, job->n_infos, sizeof(*job->infos), by_path);
    job->entries = json_array();
    list_next(job);
}

static void on_list_root(const struct file_info *info, const struct error *err, void *userdata)
{
    struct fs_job *job = userdata;
    struct error failed = {0};
    uint64_t depth = 1;
    int r;

    if (!fs_job_is_directory(job, info, err))
        return;
    if (pb_u64(job->message, "depth", "depth", LIST_DEPTH_MAX, &depth) < 0) {
        connect_answer_code(job->req, CONNECT_INVALID_ARGUMENT, "'depth': is out of range");
        return;
    }
    r = file_list(job->c, NULL, job->path, depth > 0 ? (uint32_t)depth : 1, on_list, job,
                  &job->call, &failed);
    fs_job_check(job, r, &failed);
}

static void begin_list(struct fs_job *job)
{
    struct error err = {0};
    int r =
        file_stat(job->c, NULL, job->path, /* follow= */ true, on_list_root, job, &job->call, &err);

    fs_job_check(job, r, &err);
}

void handle_fs_list_dir(struct request *req)
{
    fs_job_start(req, /* stream= */ false, "path", begin_list);
}
