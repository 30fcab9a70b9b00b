#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/front/upload.h"
#include "api/swerex/rex-private.h"
#include "api/swerex/tty-text.h"
#include "base/buf.h"
#include "base/strv.h"
#include "model/text.h"

/* POST /read_file and /write_file. */
#define READ_MAX (64u * 1024u * 1024u)

struct file {
    struct request *req;         /* weak */
    struct sandbox_watch *watch; /* owned */
    struct transfer *transfer;   /* owned */
    struct upload *upload;       /* owned */
    struct buf content;
    json_t *body; /* owned, of a write */
    size_t sent;
    char errors[24];
};

static void on_over(void *state, enum request_end why)
{
    struct file *f = state;

    (void)why;
    f->transfer = transfer_free(f->transfer);
    f->upload = upload_free(f->upload);
    f->watch = sandbox_watch_free(f->watch);
    buf_done(&f->content);
    json_decref(f->body);
    free(f);
}

static void fail(struct file *f, const struct error *err)
{
    f->transfer = transfer_free(f->transfer);
    f->upload = upload_free(f->upload);
    rex_raise_error(f->req, err);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct file *f = userdata;

    (void)sb;
    f->watch = sandbox_watch_free(f->watch);
    if (f->transfer || f->upload)
        fail(f, reason);
}

static struct file *file_new(struct request *req, struct sandbox *sb)
{
    struct file *f = calloc(1, sizeof(*f));

    if (!f || sandbox_watch_new(sb, on_gone, f, &f->watch) < 0) {
        free(f);
        rex_raise(req, "builtins.MemoryError", "out of memory", NULL);
        return NULL;
    }
    f->req = req;
    buf_init(&f->content, READ_MAX);
    request_own(req, f, on_over);
    return f;
}

/* ---- read ---- */

static void on_data(struct transfer *t, const uint8_t *data, size_t size, void *userdata)
{
    struct file *f = userdata;
    struct error err = {0};

    transfer_consumed(t, size);
    if (buf_append(&f->content, data, size) < 0) {
        (void)error_set(&err, E2BIG, "the file has more than %u bytes", READ_MAX);
        fail(f, &err);
    }
}

/* Bytes that are no UTF-8, by Python's names for what to do with them. */
static char *decode(struct file *f)
{
    const char *data = buf_string(&f->content);
    struct buf out;
    char *text;

    if (utf8_is_valid(data, f->content.size))
        return strndup(data, f->content.size);
    if (strcmp(f->errors, "backslashreplace") == 0)
        return text_backslashed(data, f->content.size);
    if (strcmp(f->errors, "ignore") != 0 && strcmp(f->errors, "replace") != 0)
        return NULL;
    buf_init(&out, 3 * f->content.size + 1);
    for (size_t i = 0; i < f->content.size;) {
        size_t n = 1;

        while (n <= 4 && i + n <= f->content.size && !utf8_is_valid(data + i, n))
            n++;
        if (n <= 4 && i + n <= f->content.size) {
            (void)buf_append(&out, data + i, n);
            i += n;
            continue;
        }
        if (f->errors[0] == 'r')
            (void)buf_append_string(&out, "\xef\xbf\xbd");
        i++;
    }
    text = strdup(buf_string(&out));
    buf_done(&out);
    return text;
}

static void on_read_done(struct transfer *t, const struct error *err, void *userdata)
{
    struct file *f = userdata;

    (void)t;
    if (err) {
        fail(f, err);
        return;
    }
    f->transfer = transfer_free(f->transfer);
    _cleanup_free_ char *text = decode(f);
    if (!text)
        rex_raise(f->req, "builtins.ValueError", "the file is not valid UTF-8", NULL);
    else
        request_answer(f->req, 200, json_pack("{s:o}", "content", json_string(text)));
}

void handle_rex_read_file(struct request *req)
{
    static const struct transfer_callbacks callbacks = {.on_data = on_data,
                                                        .on_done = on_read_done};
    const json_t *body = request_json(req);
    const char *path = json_string_value(json_object_get(body, "path"));
    const char *errors = json_string_value(json_object_get(body, "errors"));
    const char *encoding = json_string_value(json_object_get(body, "encoding"));
    struct error err = {0};
    struct sandbox *sb;
    struct file *f;

    struct console *c = rex_console(req, &sb);
    if (!c)
        return;
    if (!path || (encoding && strcasecmp(encoding, "utf-8") != 0 &&
                  strcasecmp(encoding, "utf8") != 0 && strcasecmp(encoding, "ascii") != 0)) {
        request_answer(req, 422,
                       json_pack("{s:s}", "detail",
                                 path ? "encoding: only UTF-8 is known" : "path: is missing"));
        return;
    }
    f = file_new(req, sb);
    if (!f)
        return;
    (void)snprintf(f->errors, sizeof(f->errors), "%s", errors ? errors : "strict");
    if (file_read_start(c, sandbox_get_spec(sb)->user, path, 0, 0, &callbacks, f, &f->transfer,
                        &err) < 0)
        fail(f, &err);
}

/* ---- write ---- */

static void on_writable(void *owner)
{
    struct file *f = owner;
    const json_t *content = json_object_get(f->body, "content");
    const char *text = json_string_value(content);
    size_t size = json_string_length(content), n;

    while (f->sent < size) {
        n = upload_write(f->upload, (const uint8_t *)text + f->sent, size - f->sent);
        if (n == 0)
            return;
        f->sent += n;
    }
    upload_finish(f->upload);
}

static void on_write_done(void *owner, const struct error *err)
{
    struct file *f = owner;

    if (err) {
        fail(f, err);
        return;
    }
    f->upload = upload_free(f->upload);
    request_answer(f->req, 200, json_object());
}

void handle_rex_write_file(struct request *req)
{
    static const struct upload_ops ops = {on_writable, on_write_done};
    struct upload_target target = {0};
    struct error err = {0};
    struct sandbox *sb;
    struct file *f;
    const void *data;
    json_t *body;
    size_t size;

    struct console *c = rex_console(req, &sb);
    if (!c)
        return;
    data = request_body(req, &size);
    body = size > 0 ? json_loadb(data, size, JSON_ALLOW_NUL, NULL) : NULL;
    target.path = json_string_value(json_object_get(body, "path"));
    if (!target.path || !json_is_string(json_object_get(body, "content"))) {
        json_decref(body);
        request_answer(req, 422, json_pack("{s:s}", "detail", "path and content: are needed"));
        return;
    }
    f = file_new(req, sb);
    if (!f) {
        json_decref(body);
        return;
    }
    f->body = body;
    target.c = c;
    target.user = sandbox_get_spec(sb)->user ? sandbox_get_spec(sb)->user : "root";
    if (upload_start(&target, &ops, f, &f->upload, &err) < 0)
        fail(f, &err);
}
