#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <zlib.h>

#include "api/e2b/files-auth.h"
#include "api/e2b/handlers.h"
#include "api/multipart.h"
#include "api/front/touch.h"
#include "api/front/upload.h"
#include "base/strv.h"
#include "model/text.h"

/*
 * POST /files. Theory of operation: the user is looked up first, the body waits for it. Content
 * goes to one upload at a time; a part's end waits until its file is written, so files arrive in
 * order and the first failure ends it all. The body is a multipart form whose parts are files, or
 * the plain bytes of one file, perhaps gzipped.
 */
#define INFLATE_CHUNK (64u * 1024u)

struct post {
    struct request *req;         /* weak */
    struct console *c;           /* weak, while watch is there */
    struct sandbox_watch *watch; /* owned */
    char user[129];
    char *home, *path; /* owned; path: of the query, made absolute; may be NULL */
    uint32_t uid, gid;
    bool is_multipart, gzip, answered;
    struct multipart multipart;
    z_stream inflate;
    bool inflating, inflated;
    uint8_t plain[INFLATE_CHUNK]; /* inflated and not taken yet */
    size_t n_plain, plain_at;
    struct upload *upload; /* owned */
    bool part_ended;       /* no more for this upload */
    bool body_ended;
    char *target;  /* owned: where it goes */
    json_t *files; /* owned: the answer */
};

static void post_free(struct post *p)
{
    p->upload = upload_free(p->upload);
    p->watch = sandbox_watch_free(p->watch);
    if (p->is_multipart)
        multipart_done(&p->multipart);
    if (p->inflating)
        (void)inflateEnd(&p->inflate);
    json_decref(p->files);
    free(p->home);
    free(p->path);
    free(p->target);
    free(p);
}

static void on_over(void *state, enum request_end why)
{
    (void)why;
    post_free(state);
}

static void post_fail(struct post *p, const struct error *err)
{
    p->upload = upload_free(p->upload);
    if (p->answered)
        return;
    p->answered = true;
    if (err->code == ERR_NO_SPACE)
        e2b_answer_status(p->req, 507, err->text);
    else if (err->code == ERR_PATH_IS_DIRECTORY || err->code == ERR_PATH_NOT_DIRECTORY)
        e2b_answer_status(p->req, 400, err->text);
    else
        e2b_answer_error(p->req, err);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct post *p = userdata;

    (void)sb;
    p->watch = sandbox_watch_free(p->watch);
    post_fail(p, reason);
}

static void post_check(struct post *p)
{
    struct error err = {0};

    if (!p->body_ended || p->upload || p->answered)
        return;
    if (p->is_multipart && multipart_finish(&p->multipart, &err) < 0) {
        post_fail(p, &err);
        return;
    }
    p->answered = true;
    request_answer(p->req, 200, json_incref(p->files));
}

/* ---- one file ---- */

static void on_upload_writable(void *owner)
{
    struct post *p = owner;

    request_body_more(p->req);
}

static void on_upload_done(void *owner, const struct error *err)
{
    struct post *p = owner;
    const char *name = strrchr(p->target, '/');
    struct error broken = {0};

    if (!err && !p->part_ended) {
        (void)error_set(&broken, EIO, "'%s': written before all of it was there", p->target);
        err = &broken;
    }
    if (err) {
        post_fail(p, err);
        return;
    }
    p->upload = upload_free(p->upload);
    (void)json_array_append_new(p->files,
                                json_pack("{s:o, s:o, s:s}", "path", json_text(p->target), "name",
                                          json_text(name ? name + 1 : p->target), "type", "file"));
    request_body_more(p->req);
    post_check(p);
}

static bool post_open(struct post *p, const char *path, struct error *err)
{
    static const struct upload_ops ops = {on_upload_writable, on_upload_done};
    struct upload_target target = {.c = p->c, .user = p->user, .uid = p->uid, .gid = p->gid};

    if (!p->watch) {
        (void)error_set_code(err, ERR_GUEST_GONE, "the sandbox is gone");
        return false;
    }
    free(p->target);
    p->target = envd_join(p->home, path);
    if (!p->target) {
        (void)error_set(err, ENOMEM, "out of memory");
        return false;
    }
    for (size_t i = 0; i < json_array_size(p->files); i++) {
        const json_t *file = json_array_get(p->files, i);

        if (strcmp(json_string_value(json_object_get(file, "path")), p->target) == 0) {
            (void)error_set(err, EINVAL, "'%s': twice in one request", p->target);
            return false;
        }
    }
    target.path = p->target;
    p->part_ended = false;
    return upload_start(&target, &ops, p, &p->upload, err) >= 0;
}

static void post_end_part(struct post *p)
{
    p->part_ended = true;
    if (p->upload)
        upload_finish(p->upload);
}

/* ---- multipart ---- */

static bool on_part(void *owner, const struct multipart_part *part, struct error *err)
{
    struct post *p = owner;
    const char *path = p->path ? p->path : part->filename;

    if (strcmp(part->name, "file") != 0) {
        (void)error_set(err, EINVAL, "a part named '%.64s': only 'file' is known", part->name);
        return false;
    }
    if (!path || path[0] == '\0') {
        (void)error_set(err, EINVAL, "a part without a file name, and no 'path' in the query");
        return false;
    }
    return post_open(p, path, err);
}

static size_t on_part_data(void *owner, const uint8_t *data, size_t size)
{
    struct post *p = owner;

    return p->upload ? upload_write(p->upload, data, size) : 0;
}

static bool on_part_end(void *owner, struct error *err)
{
    (void)err;
    post_end_part(owner);
    return true;
}

/* ---- gzip ---- */

/* What was inflated goes first; true when all of it is out. */
static bool post_flush(struct post *p)
{
    while (p->plain_at < p->n_plain) {
        size_t n = p->upload
                       ? upload_write(p->upload, p->plain + p->plain_at, p->n_plain - p->plain_at)
                       : 0;

        if (n == 0)
            return false;
        p->plain_at += n;
    }
    p->plain_at = p->n_plain = 0;
    return true;
}

static size_t post_inflate(struct post *p, const uint8_t *data, size_t size)
{
    struct error err = {0};
    int z;

    if (!post_flush(p))
        return 0;
    if (p->inflated)
        return size;
    p->inflate.next_in = (Bytef *)(uintptr_t)data;
    p->inflate.avail_in = (uInt)MIN(size, (size_t)UINT32_MAX);
    while (p->inflate.avail_in > 0 && !p->inflated) {
        p->inflate.next_out = p->plain;
        p->inflate.avail_out = sizeof(p->plain);
        z = inflate(&p->inflate, Z_NO_FLUSH);
        if (z != Z_OK && z != Z_STREAM_END && z != Z_BUF_ERROR) {
            (void)error_set(&err, EINVAL, "the body is not gzip: %s",
                            p->inflate.msg ? p->inflate.msg : "broken");
            post_fail(p, &err);
            return 0;
        }
        p->inflated = z == Z_STREAM_END;
        p->n_plain = sizeof(p->plain) - p->inflate.avail_out;
        if (!post_flush(p))
            break;
    }
    return size - p->inflate.avail_in;
}

/* ---- the body ---- */

static size_t on_body(void *state, const uint8_t *data, size_t size)
{
    struct post *p = state;
    struct error err = {0};
    ssize_t n;

    if (p->answered)
        return 0;
    /* The end of a part is written before the next begins. */
    if (p->part_ended && p->upload)
        return 0;
    if (!p->is_multipart)
        return p->gzip ? post_inflate(p, data, size) : on_part_data(p, data, size);
    n = multipart_feed(&p->multipart, data, size, &err);
    if (n < 0) {
        post_fail(p, &err);
        return 0;
    }
    return (size_t)n;
}

static void on_body_end(void *state)
{
    struct post *p = state;
    struct error err = {0};

    p->body_ended = true;
    if (!p->is_multipart && !p->answered) {
        if (p->gzip && (!p->inflated || !post_flush(p))) {
            (void)error_set(&err, EINVAL, "the gzip body ended too early");
            post_fail(p, &err);
            return;
        }
        post_end_part(p);
    }
    post_check(p);
}

static int post_body(struct post *p, struct error *err)
{
    static const struct multipart_ops multipart_ops = {on_part, on_part_data, on_part_end};
    const char *type = request_header(p->req, "Content-Type");
    const char *encoding = request_header(p->req, "Content-Encoding");

    if (type && strncasecmp(type, "multipart/", 10) == 0) {
        int r = multipart_init(&p->multipart, type, &multipart_ops, p, err);

        p->is_multipart = r >= 0;
        return r;
    }
    if (!type || strncasecmp(type, "application/octet-stream", 24) != 0)
        return error_set(err, EINVAL,
                         "'Content-Type': '%.64s' is neither multipart/form-data nor "
                         "application/octet-stream",
                         type ? type : "");
    if (!p->path)
        return error_set(err, EINVAL, "'path': is missing");
    if (encoding && strcasecmp(encoding, "gzip") == 0) {
        p->gzip = true;
        if (inflateInit2(&p->inflate, 15 + 16) != Z_OK)
            return error_set(err, ENOMEM, "out of memory");
        p->inflating = true;
    } else if (encoding && strcasecmp(encoding, "identity") != 0) {
        return error_set(err, EINVAL, "'Content-Encoding': '%.32s' is not known", encoding);
    }
    return post_open(p, p->path, err) ? 0 : -err->errnum;
}

static void on_resolved(struct request *req, struct sandbox *sb, struct console *c,
                        const char *path, const struct envd_account *account, void *state)
{
    static const struct request_body_ops body_ops = {on_body, on_body_end};
    struct post **owned = state, *p = TAKE_PTR(*owned);
    struct error err = {0};
    int r;

    p->req = req;
    p->c = c;
    p->uid = account->uid;
    p->gid = account->gid;
    request_own(req, p, on_over);
    r = string_set(&p->home, account->home);
    if (r >= 0 && p->path)
        r = string_set(&p->path, path);
    if (r >= 0)
        r = sandbox_watch_new(sb, on_gone, p, &p->watch);
    if (r < 0)
        error_fill(&err, r, "files of sandbox '%s'", sandbox_id(sb));
    else
        r = post_body(p, &err);
    if (r < 0)
        post_fail(p, &err);
    else
        request_body_begin(req, &body_ops);
}

static void owned_free(void *state)
{
    struct post **owned = state;

    if (*owned)
        post_free(*owned);
    free(owned);
}

static void write_now(struct request *req, struct sandbox *sb, bool woken)
{
    struct console *c = sandbox_console(sb, NULL);
    struct files_request q;
    struct post *p, **owned;

    (void)woken;
    if (!files_request(req, "write", &q))
        return;
    if (!c) {
        envd_answer_gone(req, sandbox_id(sb));
        return;
    }
    p = calloc(1, sizeof(*p));
    owned = p ? calloc(1, sizeof(struct post *)) : NULL;
    if (!owned || (q.path && string_set(&p->path, q.path) < 0)) {
        free(owned);
        free(p);
        e2b_answer_status(req, 503, "out of memory");
        return;
    }
    *owned = p;
    memcpy(p->user, q.user, sizeof(p->user));
    p->files = json_array();
    envd_resolve(req, sb, c, q.user, q.path ? q.path : "", on_resolved, owned, owned_free);
}

void handle_files_write(struct request *req)
{
    static const struct touch_ops ops = {.ready = write_now, .failed = e2b_answer_error};
    struct files_request q;

    if (files_request(req, "write", &q))
        touch_wait(req, q.sb, &ops);
}
