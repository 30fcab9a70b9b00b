#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/files-auth.h"
#include "api/e2b/handlers.h"
#include "api/front/touch.h"
#include "base/strv.h"

/* GET /files: the content of one file, or one range of it. */
#define DOWNLOAD_MAX (2u * EXEC_WINDOW)

struct download {
    struct request *req;         /* weak */
    struct console *c;           /* weak, while watch is there */
    struct sandbox_watch *watch; /* owned */
    struct file_call *call;      /* owned: stat */
    struct transfer *transfer;   /* owned */
    char *path;                  /* owned */
    uint64_t size, offset, length;
    bool partial, streaming;
};

static void on_over(void *state, enum request_end why)
{
    struct download *d = state;

    (void)why;
    d->call = file_call_free(d->call);
    d->transfer = transfer_free(d->transfer);
    d->watch = sandbox_watch_free(d->watch);
    free(d->path);
    free(d);
}

static void download_fail(struct download *d, const struct error *err)
{
    d->call = file_call_free(d->call);
    d->transfer = transfer_free(d->transfer);
    if (d->streaming)
        request_stream_end(d->req, /* complete= */ false);
    else
        e2b_answer_error(d->req, err);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct download *d = userdata;

    (void)sb;
    d->watch = sandbox_watch_free(d->watch);
    if (d->call || d->transfer)
        download_fail(d, reason);
}

/* ---- content ---- */

static void on_drained(void *state, size_t size)
{
    struct download *d = state;

    if (d->transfer)
        transfer_consumed(d->transfer, size);
}

static void stream_begin(struct download *d, uint64_t size)
{
    const char *name = strrchr(d->path, '/');
    _cleanup_free_ char *text = string_printf("inline; filename=\"%s\"",
                                              name && !strpbrk(name, "\"\\") ? name + 1 : "file");
    char range[96];

    if (text)
        (void)request_add_header(d->req, "Content-Disposition", text);
    (void)request_add_header(d->req, "Accept-Ranges", "bytes");
    if (d->partial) {
        (void)snprintf(range, sizeof(range), "bytes %llu-%llu/%llu", (unsigned long long)d->offset,
                       (unsigned long long)(d->offset + d->length - 1),
                       (unsigned long long)d->size);
        (void)request_add_header(d->req, "Content-Range", range);
    }
    d->streaming = true;
    request_stream_begin_as(d->req, d->partial ? 206 : 200, "application/octet-stream", size,
                            DOWNLOAD_MAX, on_drained);
}

static void on_data(struct transfer *t, const uint8_t *data, size_t size, void *userdata)
{
    struct download *d = userdata;
    struct error err = {0};

    (void)t;
    /* Files of /proc say that they are empty. */
    if (!d->streaming)
        stream_begin(d, d->size == 0 ? UINT64_MAX : d->length);
    if (request_stream_write(d->req, data, size) < 0) {
        (void)error_set(&err, ENOMEM, "out of memory");
        download_fail(d, &err);
    }
}

static void on_done(struct transfer *t, const struct error *err, void *userdata)
{
    struct download *d = userdata;

    (void)t;
    if (err) {
        download_fail(d, err);
        return;
    }
    d->transfer = transfer_free(d->transfer);
    if (!d->streaming)
        stream_begin(d, 0);
    request_stream_end(d->req, /* complete= */ true);
}

/* "bytes=A-B", "bytes=A-", "bytes=-N"; anything else is ignored, as a server may. False: 416. */
static bool parse_range(struct download *d)
{
    const char *text = request_header(d->req, "Range");
    uint64_t first = 0, last = d->size ? d->size - 1 : 0;
    const char *dash;
    char head[24];

    if (!text || !string_starts_with(text, "bytes=") || strchr(text, ',') || d->size == 0)
        return true;
    text += strlen("bytes=");
    dash = strchr(text, '-');
    if (!dash || (size_t)(dash - text) >= sizeof(head))
        return true;
    (void)snprintf(head, sizeof(head), "%.*s", (int)(dash - text), text);
    if (head[0] == '\0') {
        uint64_t suffix;

        if (parse_u64(dash + 1, 1, UINT64_MAX, &suffix) < 0)
            return true;
        first = suffix < d->size ? d->size - suffix : 0;
    } else {
        if (parse_u64(head, 0, UINT64_MAX, &first) < 0 ||
            (dash[1] && parse_u64(dash + 1, first, UINT64_MAX, &last) < 0))
            return true;
        last = MIN(last, d->size - 1);
        if (first >= d->size)
            return false;
    }
    d->partial = true;
    d->offset = first;
    d->length = last - first + 1;
    return true;
}

static void on_stat(const struct file_info *info, const struct error *err, void *userdata)
{
    static const struct transfer_callbacks callbacks = {.on_data = on_data, .on_done = on_done};
    struct download *d = userdata;
    struct error failed = {0};
    char range[48];
    int r;

    if (err) {
        download_fail(d, err);
        return;
    }
    enum file_type type = info->type;
    d->size = d->length = info->size;
    d->call = file_call_free(d->call);
    if (type == FILE_TYPE_DIRECTORY) {
        e2b_answer_status(d->req, 400, "the path is a directory");
        return;
    }
    if (!parse_range(d)) {
        (void)snprintf(range, sizeof(range), "bytes */%llu", (unsigned long long)d->size);
        (void)request_add_header(d->req, "Content-Range", range);
        e2b_answer_status(d->req, 416, "the range begins behind the end of the file");
        return;
    }
    r = file_read_start(d->c, NULL, d->path, d->offset, d->partial ? d->length : 0, &callbacks, d,
                        &d->transfer, &failed);
    if (r < 0)
        download_fail(d, &failed);
}

static void on_resolved(struct request *req, struct sandbox *sb, struct console *c,
                        const char *path, const struct envd_account *account, void *state)
{
    struct download *d = calloc(1, sizeof(*d));
    struct error err = {0};
    int r;

    (void)account;
    (void)state;
    r = d ? sandbox_watch_new(sb, on_gone, d, &d->watch) : -ENOMEM;
    if (r >= 0)
        r = string_set(&d->path, path);
    if (r < 0) {
        if (d)
            d->watch = sandbox_watch_free(d->watch);
        free(d);
        e2b_answer_status(req, 503, "out of memory");
        return;
    }
    d->req = req;
    d->c = c;
    request_own(req, d, on_over);
    r = file_stat(c, NULL, path, /* follow= */ true, on_stat, d, &d->call, &err);
    if (r < 0)
        download_fail(d, &err);
}

static void read_now(struct request *req, struct sandbox *sb, bool woken)
{
    struct console *c = sandbox_console(sb, NULL);
    struct files_request q;

    (void)woken;
    if (!files_request(req, "read", &q))
        return;
    if (!c) {
        envd_answer_gone(req, sandbox_id(sb));
        return;
    }
    if (!q.path || q.path[0] == '\0') {
        e2b_answer_status(req, 400, "'path': is missing");
        return;
    }
    envd_resolve(req, sb, c, q.user, q.path, on_resolved, NULL, NULL);
}

void handle_files_read(struct request *req)
{
    static const struct touch_ops ops = {.ready = read_now, .failed = e2b_answer_error};
    struct files_request q;

    if (files_request(req, "read", &q))
        touch_wait(req, q.sb, &ops);
}
