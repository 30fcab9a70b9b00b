#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/fs-job.h"
#include "api/e2b/handlers.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/strv.h"
#include "model/text.h"

/*
 * Watches of directories: as a stream (WatchDir), or as a watcher that is asked for its events now
 * and then (CreateWatcher, GetWatcherEvents, RemoveWatcher).
 */
#define WATCH_STREAM_MAX (1024u * 1024u)
#define WATCHERS_MAX 1024u
#define WATCHER_EVENTS_MAX 16384u /* the oldest go */
#define WATCH_KEEPALIVE_USEC (50 * USEC_PER_SEC)

struct e2b_watcher {
    struct api_e2b *e2b; /* weak */
    struct e2b_watcher *prev, *next;
    struct request *req;         /* weak: the stream, or CreateWatcher until it is armed */
    struct sandbox_watch *watch; /* owned */
    struct file_call *call;      /* owned; NULL: over */
    struct source *keepalive;    /* owned, of a stream */
    char sandbox_id[65], id[33];
    bool stream, armed;
    json_t *events; /* owned, of a watcher that is asked */
};

static void watcher_free(struct e2b_watcher *w)
{
    if (w->prev)
        w->prev->next = w->next;
    else
        w->e2b->watchers = w->next;
    if (w->next)
        w->next->prev = w->prev;
    w->e2b->n_watchers--;
    w->keepalive = source_free(w->keepalive);
    w->call = file_call_free(w->call);
    w->watch = sandbox_watch_free(w->watch);
    json_decref(w->events);
    free(w);
}

static const char *event_type(enum file_event_kind kind)
{
    switch (kind) {
    case FILE_EVENT_CREATE:
        return "EVENT_TYPE_CREATE";
    case FILE_EVENT_WRITE:
        return "EVENT_TYPE_WRITE";
    case FILE_EVENT_REMOVE:
        return "EVENT_TYPE_REMOVE";
    case FILE_EVENT_RENAME:
        return "EVENT_TYPE_RENAME";
    case FILE_EVENT_CHMOD:
        return "EVENT_TYPE_CHMOD";
    default:
        return NULL;
    }
}

static void watcher_over(struct e2b_watcher *w, const struct error *err)
{
    struct request *req = w->req;

    w->call = file_call_free(w->call);
    w->keepalive = source_free(w->keepalive);
    if (req && w->stream && w->armed)
        connect_stream_end(req, connect_code_name(connect_code_of(err)), err->text);
    else if (req)
        connect_answer_error(req, err);
    /* The request's own end frees it. */
}

static int on_keepalive(struct source *s, uint64_t now_usec, void *userdata)
{
    struct e2b_watcher *w = userdata;

    (void)connect_stream_message(w->req, json_pack("{s:{}}", "keepalive"));
    return source_set_time(s, now_usec + WATCH_KEEPALIVE_USEC);
}

static void watcher_armed(struct e2b_watcher *w)
{
    w->armed = true;
    if (w->stream) {
        connect_stream_begin(w->req, WATCH_STREAM_MAX, NULL);
        (void)connect_stream_message(w->req, json_pack("{s:{}}", "start"));
        (void)loop_add_timer(w->e2b->loop, "e2b-watch", clock_now_usec() + WATCH_KEEPALIVE_USEC,
                             on_keepalive, w, &w->keepalive);
        return;
    }
    struct request *req = TAKE_PTR(w->req);
    request_own(req, NULL, NULL); /* from here on the table owns it */
    connect_answer(req, json_pack("{s:s}", "watcherId", w->id));
}

static void on_event(enum file_event_kind kind, const char *path, const struct error *err,
                     void *userdata)
{
    struct e2b_watcher *w = userdata;
    const char *type = event_type(kind);
    json_t *event;

    if (err) {
        watcher_over(w, err);
        return;
    }
    if (!w->armed)
        watcher_armed(w);
    if (!type || !path)
        return;
    event = json_pack("{s:o, s:s}", "name", json_text(path), "type", type);
    if (w->stream) {
        if (connect_stream_message(w->req, json_pack("{s:o}", "filesystem", event)) < 0)
            log_debug("e2b: an event of a watch was dropped: its reader is slow");
        return;
    }
    if (json_array_size(w->events) >= WATCHER_EVENTS_MAX)
        (void)json_array_remove(w->events, 0);
    (void)json_array_append_new(w->events, event);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct e2b_watcher *w = userdata;

    (void)sb;
    w->watch = sandbox_watch_free(w->watch);
    if (w->req)
        watcher_over(w, reason);
    else
        watcher_free(w);
}

static void on_over(void *state, enum request_end why)
{
    (void)why;
    watcher_free(state);
}

/* ---- beginning ---- */

/* False: the answer is out, and the request still the job's. */
static bool watch_begin(struct fs_job *job, bool stream)
{
    struct api_e2b *e2b = e2b_of(job->req);
    struct e2b_watcher *w = e2b->n_watchers < WATCHERS_MAX ? calloc(1, sizeof(*w)) : NULL;
    const json_t *recursive = pb_get(job->message, "recursive", "recursive");
    struct request *req = job->req;
    struct error err = {0};
    int r;

    if (!w) {
        connect_answer_code(req, CONNECT_RESOURCE_EXHAUSTED, "too many watches");
        return false;
    }
    w->e2b = e2b;
    w->next = e2b->watchers;
    if (w->next)
        w->next->prev = w;
    e2b->watchers = w;
    e2b->n_watchers++;
    w->stream = stream;
    w->req = req;
    (void)snprintf(w->sandbox_id, sizeof(w->sandbox_id), "%s", sandbox_id(job->sb));
    w->events = json_array();
    r = random_id(w->id, sizeof(w->id) - 1);
    if (r >= 0)
        r = sandbox_watch_new(job->sb, on_gone, w, &w->watch);
    if (r < 0)
        error_fill(&err, r, "watch '%s'", job->path);
    else
        r = file_watch(job->c, NULL, job->path, json_is_true(recursive), on_event, w, &w->call,
                       &err);
    if (r < 0) {
        watcher_free(w);
        connect_answer_error(req, &err);
        return false;
    }
    request_own(req, w, on_over);
    return true;
}

static void on_watch_root(const struct file_info *info, const struct error *err, void *userdata);

static void begin_watch(struct fs_job *job)
{
    struct error err = {0};
    int r = file_stat(job->c, NULL, job->path, /* follow= */ true, on_watch_root, job, &job->call,
                      &err);

    fs_job_check(job, r, &err);
}

static void on_watch_root(const struct file_info *info, const struct error *err, void *userdata)
{
    struct fs_job *job = userdata;

    if (fs_job_is_directory(job, info, err) && watch_begin(job, job->streamed))
        fs_job_detach(job);
}

void handle_fs_watch_dir(struct request *req)
{
    fs_job_start(req, /* stream= */ true, "path", begin_watch);
}

void handle_fs_create_watcher(struct request *req)
{
    fs_job_start(req, /* stream= */ false, "path", begin_watch);
}

/* ---- asking ---- */

static struct e2b_watcher *watcher_asked(struct request *req)
{
    struct sandbox *sb;
    json_t *message = NULL;
    struct e2b_watcher *w;

    if (!envd_call(req, /* stream= */ false, &sb, &message))
        return NULL;
    const char *id = pb_string(message, "watcherId", "watcher_id");
    for (w = e2b_of(req)->watchers; w; w = w->next) {
        if (id && !w->stream && w->armed && strcmp(w->id, id) == 0 &&
            strcmp(w->sandbox_id, sandbox_id(sb)) == 0)
            break;
    }
    json_decref(message);
    if (!w)
        connect_answer_code(req, CONNECT_NOT_FOUND, "the watcher was not found");
    return w;
}

void handle_fs_watcher_events(struct request *req)
{
    struct e2b_watcher *w = watcher_asked(req);
    json_t *events;

    if (!w)
        return;
    events = w->events;
    w->events = json_array();
    connect_answer(req, json_pack("{s:o}", "events", events));
}

void handle_fs_remove_watcher(struct request *req)
{
    struct e2b_watcher *w = watcher_asked(req);

    if (!w)
        return;
    watcher_free(w);
    connect_answer(req, json_object());
}

void e2b_watchers_free(struct api_e2b *e2b)
{
    while (e2b->watchers) {
        struct e2b_watcher *w = e2b->watchers;

        if (w->req)
            request_own(w->req, NULL, NULL);
        watcher_free(w);
    }
}
