#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/native/file-job.h"
#include "api/native/handlers.h"
#include "model/text.h"

#define LIST_ENTRIES_MAX 100000u
#define LIST_DEPTH_MAX 64u

/* The console, a job and, for GET and DELETE, path and user of the query. */
struct file_ask {
    struct sandbox *sb;
    struct console *c;
    struct file_job *job;
    const char *path, *user;
};

static bool file_ask(struct request *req, struct file_ask *ask)
{
    *ask = (struct file_ask){0};
    ask->c = native_console(req, &ask->sb);
    return ask->c != NULL;
}

static bool file_ask_query(struct request *req, struct file_ask *ask)
{
    return file_ask(req, ask) && file_query(req, ask->sb, &ask->path, &ask->user);
}

static bool file_begin(struct request *req, struct file_ask *ask)
{
    ask->job = file_job_new(req, ask->sb);
    return ask->job != NULL;
}

/* The call could not even begin. */
static void file_check(struct file_job *job, int r, const struct error *err)
{
    if (r < 0)
        file_job_fail(job, err);
}

static void on_done(const struct error *err, void *userdata)
{
    struct file_job *job = userdata;

    if (err) {
        file_job_fail(job, err);
        return;
    }
    job->call = file_call_free(job->call);
    request_answer_empty(job->req, 204);
}

/* ---- stat, list ---- */

static json_t *file_info_to_json(const struct file_info *info)
{
    char mode[8];

    (void)snprintf(mode, sizeof(mode), "%04o", info->mode & 07777u);
    json_t *o =
        json_pack("{s:s, s:I, s:s, s:I, s:I, s:o, s:o, s:I}", "type", file_type_name(info->type),
                  "size", (json_int_t)info->size, "mode", mode, "uid", (json_int_t)info->uid, "gid",
                  (json_int_t)info->gid, "owner", json_text(info->owner), "group",
                  json_text(info->group), "mtime_nsec", (json_int_t)info->mtime_nsec);
    if (o && info->path)
        (void)json_object_set_bytes(o, "path", info->path, strlen(info->path));
    if (o && info->link_target)
        (void)json_object_set_bytes(o, "link_target", info->link_target, strlen(info->link_target));
    return o;
}

static void on_stat(const struct file_info *info, const struct error *err, void *userdata)
{
    struct file_job *job = userdata;

    if (err) {
        file_job_fail(job, err);
        return;
    }
    json_t *json = file_info_to_json(info);
    job->call = file_call_free(job->call);
    request_answer(job->req, 200, json);
}

void handle_file_stat(struct request *req)
{
    struct error err = {0};
    struct file_ask ask;
    bool follow = false;

    if (!file_ask_query(req, &ask) || !native_query_bool(req, "follow", &follow) ||
        !file_begin(req, &ask))
        return;
    int r = file_stat(ask.c, ask.user, ask.path, follow, on_stat, ask.job, &ask.job->call, &err);
    file_check(ask.job, r, &err);
}

static void on_list(const struct file_info *infos, size_t count, bool last, const struct error *err,
                    void *userdata)
{
    struct file_job *job = userdata;
    struct error too_many;

    if (err) {
        file_job_fail(job, err);
        return;
    }
    for (size_t i = 0; i < count; i++)
        (void)json_array_append_new(job->entries, file_info_to_json(&infos[i]));
    job->n_entries += count;
    if (job->n_entries > LIST_ENTRIES_MAX) {
        error_set(&too_many, E2BIG, "the directory has more than %u entries", LIST_ENTRIES_MAX);
        file_job_fail(job, &too_many);
        return;
    }
    if (last) {
        job->call = file_call_free(job->call);
        request_answer(job->req, 200, json_pack("{s:O}", "entries", job->entries));
    }
}

void handle_file_list(struct request *req)
{
    struct error err = {0};
    struct file_ask ask;
    uint64_t depth = 1;

    if (!file_ask_query(req, &ask) || !native_query_u64(req, "depth", LIST_DEPTH_MAX, &depth) ||
        !file_begin(req, &ask))
        return;
    ask.job->entries = json_array();
    int r = file_list(ask.c, ask.user, ask.path, (uint32_t)depth, on_list, ask.job, &ask.job->call,
                      &err);
    file_check(ask.job, r, &err);
}

/* ---- changes ---- */

void handle_file_remove(struct request *req)
{
    struct error err = {0};
    struct file_ask ask;
    bool recursive = false;

    if (!file_ask_query(req, &ask) || !native_query_bool(req, "recursive", &recursive) ||
        !file_begin(req, &ask))
        return;
    int r =
        file_remove(ask.c, ask.user, ask.path, recursive, on_done, ask.job, &ask.job->call, &err);
    file_check(ask.job, r, &err);
}

/* All bodies of this file; each route knows its own keys of it. */
struct file_body {
    char *path, *from, *to, *target, *mode, *user;
    bool parents, no_replace;
    uint32_t mode_bits;
};

static void file_body_done(struct file_body *body)
{
    free(body->path);
    free(body->from);
    free(body->to);
    free(body->target);
    free(body->mode);
    free(body->user);
}

#define BODY(key, member, type, min, required)                                                     \
    {                                                                                              \
        key, type, offsetof(struct file_body, member), min, 4095, required                         \
    }
#define BODY_PATH BODY("path", path, FIELD_PATH, 1, true)
#define BODY_USER BODY("user", user, FIELD_STRING, 1, false)
#define BODY_MODE BODY("mode", mode, FIELD_STRING, 1, false)

/* Decodes, parses the mode, finds the console and makes the job. */
static bool file_body(struct request *req, const struct field *fields, size_t count,
                      struct file_body *body, struct file_ask *ask)
{
    struct error err = {0};

    if (!file_ask(req, ask) || !native_decode(req, fields, count, body))
        return false;
    if (body->mode && native_parse_mode(body->mode, &body->mode_bits, &err) < 0) {
        request_answer_error(req, &err);
        return false;
    }
    ask->user = file_user(ask->sb, body->user);
    return file_begin(req, ask);
}

void handle_file_mkdir(struct request *req)
{
    static const struct field fields[] = {
        BODY_PATH,
        BODY_USER,
        BODY_MODE,
        BODY("parents", parents, FIELD_BOOL, 0, false),
    };
    struct file_body body = {.mode_bits = 0755};
    struct error err = {0};
    struct file_ask ask;

    if (file_body(req, fields, ARRAY_SIZE(fields), &body, &ask)) {
        int r = file_mkdir(ask.c, ask.user, body.path, body.parents, body.mode_bits, on_done,
                           ask.job, &ask.job->call, &err);
        file_check(ask.job, r, &err);
    }
    file_body_done(&body);
}

void handle_file_move(struct request *req)
{
    static const struct field fields[] = {
        BODY("from", from, FIELD_PATH, 1, true),
        BODY("to", to, FIELD_PATH, 1, true),
        BODY("no_replace", no_replace, FIELD_BOOL, 0, false),
        BODY_USER,
    };
    struct file_body body = {0};
    struct error err = {0};
    struct file_ask ask;

    if (file_body(req, fields, ARRAY_SIZE(fields), &body, &ask)) {
        int r = file_move(ask.c, ask.user, body.from, body.to, body.no_replace, on_done, ask.job,
                          &ask.job->call, &err);
        file_check(ask.job, r, &err);
    }
    file_body_done(&body);
}

void handle_file_symlink(struct request *req)
{
    static const struct field fields[] = {
        BODY("target", target, FIELD_STRING, 1, true),
        BODY_PATH,
        BODY_USER,
    };
    struct file_body body = {0};
    struct error err = {0};
    struct file_ask ask;

    if (file_body(req, fields, ARRAY_SIZE(fields), &body, &ask)) {
        int r = file_symlink(ask.c, ask.user, body.target, body.path, on_done, ask.job,
                             &ask.job->call, &err);
        file_check(ask.job, r, &err);
    }
    file_body_done(&body);
}

struct attr_body {
    struct file_body file;
    uint64_t uid, gid, mtime_nsec;
};

#define ATTR(key, member, type, min, max, required)                                                \
    {                                                                                              \
        key, type, offsetof(struct attr_body, member), min, max, required                          \
    }

void handle_file_attr(struct request *req)
{
    static const struct field fields[] = {
        ATTR("path", file.path, FIELD_PATH, 1, 4095, true),
        ATTR("user", file.user, FIELD_STRING, 1, 128, false),
        ATTR("mode", file.mode, FIELD_STRING, 1, 16, false),
        ATTR("uid", uid, FIELD_U64, 0, UINT32_MAX - 1, false),
        ATTR("gid", gid, FIELD_U64, 0, UINT32_MAX - 1, false),
        ATTR("mtime_nsec", mtime_nsec, FIELD_U64, 0, INT64_MAX, false),
    };
    /* What stays UINT64_MAX was not given. */
    struct attr_body body = {.uid = UINT64_MAX, .gid = UINT64_MAX, .mtime_nsec = UINT64_MAX};
    struct error err = {0};
    struct file_ask ask;

    if (file_body(req, fields, ARRAY_SIZE(fields), &body.file, &ask)) {
        struct file_attr attr = {
            .set_mode = body.file.mode != NULL,
            .set_owner = body.uid != UINT64_MAX || body.gid != UINT64_MAX,
            .set_mtime = body.mtime_nsec != UINT64_MAX,
            .mode = body.file.mode_bits,
            .uid = (uint32_t)body.uid, /* UINT32_MAX: stays, as for chown() */
            .gid = (uint32_t)body.gid,
            .mtime_nsec = body.mtime_nsec,
        };
        int r = file_set_attr(ask.c, ask.user, body.file.path, &attr, on_done, ask.job,
                              &ask.job->call, &err);
        file_check(ask.job, r, &err);
    }
    file_body_done(&body.file);
}

/* ---- watch ---- */

static const char *event_name(enum file_event_kind kind)
{
    switch (kind) {
    case FILE_EVENT_CREATE:
        return "create";
    case FILE_EVENT_WRITE:
        return "write";
    case FILE_EVENT_REMOVE:
        return "remove";
    case FILE_EVENT_RENAME:
        return "rename";
    case FILE_EVENT_CHMOD:
        return "chmod";
    case FILE_EVENT_OVERFLOW:
        return "overflow";
    }
    return "armed";
}

static void watch_line(struct file_job *job, enum file_event_kind kind, const char *path)
{
    json_t *o = json_pack("{s:s}", "kind", event_name(kind));

    if (o && path)
        (void)json_object_set_bytes(o, "path", path, strlen(path));
    if (request_stream_line(job->req, o) < 0)
        job->overflow = true;
}

/* A reader that had fallen behind hears that it missed something. */
static void on_drained(void *state, size_t size)
{
    struct file_job *job = state;

    (void)size;
    if (!job->overflow || request_stream_room(job->req) < NDJSON_MAX / 2)
        return;
    job->overflow = false;
    watch_line(job, FILE_EVENT_OVERFLOW, NULL);
}

static void on_event(enum file_event_kind kind, const char *path, const struct error *err,
                     void *userdata)
{
    struct file_job *job = userdata;

    if (err) {
        if (job->streaming)
            (void)request_stream_line(job->req, json_pack("{s:o}", "error", error_to_json(err)));
        file_job_fail(job, err);
        return;
    }
    if (!job->streaming) {
        job->streaming = true;
        request_stream_begin(job->req, "application/x-ndjson", NDJSON_MAX, on_drained);
    }
    if (!job->overflow)
        watch_line(job, kind, path);
}

void handle_file_watch(struct request *req)
{
    struct error err = {0};
    struct file_ask ask;
    bool recursive = false;

    if (!file_ask_query(req, &ask) || !native_query_bool(req, "recursive", &recursive) ||
        !file_begin(req, &ask))
        return;
    int r =
        file_watch(ask.c, ask.user, ask.path, recursive, on_event, ask.job, &ask.job->call, &err);
    file_check(ask.job, r, &err);
}
