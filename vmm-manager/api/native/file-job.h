#pragma once

#include "api/native/native.h"
#include "api/native/range.h"
#include "host/files.h"

/*
 * A file operation under way for a request: cancelled when the client goes away, answered with the
 * reason when the sandbox does.
 */
struct file_job {
    struct request *req;         /* weak */
    struct sandbox_watch *watch; /* owned */
    struct file_call *call;      /* owned */
    struct transfer *transfer;   /* owned */
    struct sandbox *sb;          /* weak, while the watch is there */
    const char *path, *user;     /* weak: reading in two steps */
    struct byte_range range;     /* reading: length 0: all of it */
    json_t *entries;             /* owned: list */
    size_t n_entries;
    bool streaming; /* the answer has begun */
    bool overflow;  /* watch: events were dropped for want of a reader */
};

/* NULL: the error is already the answer. Owned by the request. */
struct file_job *file_job_new(struct request *req, struct sandbox *sb);
/* Answers with the error, or cuts the answer that has begun. */
void file_job_fail(struct file_job *job, const struct error *err);

/* path= and user= of the query, checked; user is the sandbox's default when absent. */
bool file_query(struct request *req, struct sandbox *sb, const char **ret_path,
                const char **ret_user);
/* The given user, or the sandbox's default. */
const char *file_user(struct sandbox *sb, const char *user);
