#pragma once

#include "api/e2b/e2b-private.h"

/*
 * One call of the service filesystem.Filesystem: a few file operations in a row, then one answer.
 * Owned by its request.
 */
struct fs_job {
    struct request *req;         /* weak */
    struct sandbox *sb;          /* weak */
    struct console *c;           /* weak; NULL when the console went */
    struct sandbox_watch *watch; /* owned */
    struct file_call *call;      /* owned: under way */
    json_t *message;             /* owned: the call's */
    char user[129];
    char *home, *path, *to; /* owned, absolute; `to` of Move only */
    uint32_t uid, gid;
    bool as_root;  /* second try, with root's rights */
    bool streamed; /* the call is a stream */
    /* stat, and list with what its symlinks lead to */
    struct file_info info;
    struct file_info *infos; /* owned */
    size_t n_infos, at;
    json_t *entries; /* owned */
};

typedef void (*fs_begin_fn)(struct fs_job *job);
/* Decodes, checks and resolves `key` (NULL: the message has no path); then `begin`. */
void fs_job_start(struct request *req, bool stream, const char *key, fs_begin_fn begin);
/* The request has another state now: the job ends alone. Legal in callbacks of its calls. */
void fs_job_detach(struct fs_job *job);
/* Answers with the error. The job goes with the request. */
void fs_job_fail(struct fs_job *job, const struct error *err);
/* The operation could not even begin. */
void fs_job_check(struct fs_job *job, int r, const struct error *err);
/* Stats job->path (and what it leads to) and answers {"entry"}. */
void fs_job_answer_entry(struct fs_job *job);
/* What file_stat() said of job->path: true when it is a directory, else the answer is out. */
bool fs_job_is_directory(struct fs_job *job, const struct file_info *info, const struct error *err);
/* Copies what is borrowed. */
int fs_info_copy(const struct file_info *from, struct file_info *to);
