#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/front/upload.h"
#include "api/multipart.h"
#include "api/swerex/rex-private.h"
#include "base/buf.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"

/*
 * POST /upload: a file, or a zip of a directory. Theory of operation: where it goes stands behind
 * the file in the form, so the file waits in an unnamed temporary file of the host. Then it is
 * written into the guest, or its entries are, one after the other. The zip is the client's, yet
 * hostile: names stay below the target, and only the guest can be filled.
 */
#define UPLOAD_MAX (UINT64_C(4) * 1024 * 1024 * 1024)
#define ENTRIES_MAX 200000u
#define PIECE (256u * 1024u)

struct rex_upload {
    struct request *req;         /* weak */
    struct console *c;           /* weak, while watch is there */
    struct sandbox_watch *watch; /* owned */
    struct multipart multipart;
    bool has_multipart;
    enum { FIELD_NONE, FIELD_FILE, FIELD_TARGET, FIELD_UNZIP } field;
    struct buf target, unzip;
    int fd; /* owned: the file */
    uint64_t size;
    char *user;              /* owned, may be NULL */
    struct archive *archive; /* owned */
    unsigned entries;
    struct upload *upload;  /* owned */
    struct file_call *call; /* owned: a directory */
    uint8_t piece[PIECE];
    size_t n_piece, at;
    bool ended; /* of the entry's content */
};

static void on_over(void *state, enum request_end why)
{
    struct rex_upload *u = state;

    (void)why;
    u->upload = upload_free(u->upload);
    u->call = file_call_free(u->call);
    u->watch = sandbox_watch_free(u->watch);
    if (u->has_multipart)
        multipart_done(&u->multipart);
    if (u->archive)
        (void)archive_read_free(u->archive);
    buf_done(&u->target);
    buf_done(&u->unzip);
    u->fd = fd_close(u->fd);
    free(u->user);
    free(u);
}

static void fail(struct rex_upload *u, const struct error *err)
{
    u->upload = upload_free(u->upload);
    u->call = file_call_free(u->call);
    rex_raise_error(u->req, err);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct rex_upload *u = userdata;

    (void)sb;
    u->watch = sandbox_watch_free(u->watch);
    u->c = NULL;
    fail(u, reason);
}

/* ---- into the guest ---- */

static void next_entry(struct rex_upload *u);

/* Content of the entry, or of the file itself. */
static ssize_t read_piece(struct rex_upload *u)
{
    if (u->archive)
        return archive_read_data(u->archive, u->piece, sizeof(u->piece));
    return read(u->fd, u->piece, sizeof(u->piece));
}

static void on_writable(void *owner)
{
    struct rex_upload *u = owner;
    struct error err = {0};

    while (!u->ended) {
        if (u->at == u->n_piece) {
            ssize_t n = read_piece(u);

            if (n < 0) {
                (void)error_set(&err, EINVAL, "the upload cannot be read: %s",
                                u->archive ? archive_error_string(u->archive) : "broken");
                fail(u, &err);
                return;
            }
            u->at = 0;
            u->n_piece = (size_t)n;
            if (n == 0) {
                u->ended = true;
                upload_finish(u->upload);
                return;
            }
        }
        size_t taken = upload_write(u->upload, u->piece + u->at, u->n_piece - u->at);
        if (taken == 0)
            return;
        u->at += taken;
    }
}

static void on_written(void *owner, const struct error *err)
{
    struct rex_upload *u = owner;

    if (err) {
        fail(u, err);
        return;
    }
    u->upload = upload_free(u->upload);
    if (u->archive)
        next_entry(u);
    else
        request_answer(u->req, 200, json_object());
}

static void write_one(struct rex_upload *u, const char *path)
{
    static const struct upload_ops ops = {on_writable, on_written};
    const struct upload_target target = {
        .c = u->c, .user = u->user ? u->user : "root", .path = path};
    struct error err = {0};

    u->at = u->n_piece = 0;
    u->ended = false;
    if (!u->c || upload_start(&target, &ops, u, &u->upload, &err) < 0) {
        error_fill(&err, -ECONNRESET, "the sandbox is gone");
        fail(u, &err);
    }
}

static void on_made(const struct error *err, void *userdata)
{
    struct rex_upload *u = userdata;

    u->call = file_call_free(u->call);
    if (err && err->code != ERR_ALREADY_EXISTS)
        fail(u, err);
    else
        next_entry(u);
}

/* A name that stays below the target: relative, and without "..". */
static bool name_is_safe(const char *name)
{
    for (const char *p = name; p && *p;) {
        size_t length = strcspn(p, "/");

        if (length == 2 && strncmp(p, "..", 2) == 0)
            return false;
        p += length + (p[length] == '/');
    }
    return name && name[0] != '\0' && name[0] != '/';
}

static void next_entry(struct rex_upload *u)
{
    struct archive_entry *entry;
    struct error err = {0};
    const char *name;
    int r = archive_read_next_header(u->archive, &entry);

    if (r == ARCHIVE_EOF) {
        request_answer(u->req, 200, json_object());
        return;
    }
    name = r == ARCHIVE_OK || r == ARCHIVE_WARN ? archive_entry_pathname(entry) : NULL;
    if (!name || !name_is_safe(name) || ++u->entries > ENTRIES_MAX || !u->c) {
        (void)error_set(&err, EINVAL, "the zip is broken, or '%.64s' leads out of it",
                        name ? name : "");
        fail(u, &err);
        return;
    }
    _cleanup_free_ char *path = string_printf("%s/%s", buf_string(&u->target), name);
    if (!path) {
        (void)error_set(&err, ENOMEM, "out of memory");
        fail(u, &err);
        return;
    }
    if (archive_entry_filetype(entry) != AE_IFDIR) {
        write_one(u, path);
        return;
    }
    path[strlen(path) - (path[strlen(path) - 1] == '/')] = '\0';
    if (file_mkdir(u->c, u->user, path, /* parents= */ true, 0755, on_made, u, &u->call, &err) < 0)
        fail(u, &err);
}

static void begin(struct rex_upload *u)
{
    struct error err = {0};

    if (u->target.size == 0 || buf_string(&u->target)[0] != '/') {
        request_answer(u->req, 422,
                       json_pack("{s:s}", "detail", "target_path: not an absolute path"));
        return;
    }
    (void)lseek(u->fd, 0, SEEK_SET);
    if (strcmp(buf_string(&u->unzip), "true") != 0) {
        write_one(u, buf_string(&u->target));
        return;
    }
    u->archive = archive_read_new();
    if (!u->archive || archive_read_support_format_zip(u->archive) != ARCHIVE_OK ||
        archive_read_open_fd(u->archive, u->fd, PIECE) != ARCHIVE_OK) {
        (void)error_set(&err, EINVAL, "the upload is not a zip");
        fail(u, &err);
        return;
    }
    if (file_mkdir(u->c, u->user, buf_string(&u->target), /* parents= */ true, 0755, on_made, u,
                   &u->call, &err) < 0)
        fail(u, &err);
}

/* ---- the form ---- */

static bool on_part(void *owner, const struct multipart_part *part, struct error *err)
{
    struct rex_upload *u = owner;

    (void)err;
    u->field = strcmp(part->name, "file") == 0          ? FIELD_FILE
               : strcmp(part->name, "target_path") == 0 ? FIELD_TARGET
               : strcmp(part->name, "unzip") == 0       ? FIELD_UNZIP
                                                        : FIELD_NONE;
    return true;
}

static size_t on_part_data(void *owner, const uint8_t *data, size_t size)
{
    struct rex_upload *u = owner;

    if (u->field == FIELD_TARGET)
        (void)buf_append(&u->target, data, MIN(size, buf_room(&u->target)));
    else if (u->field == FIELD_UNZIP)
        (void)buf_append(&u->unzip, data, MIN(size, buf_room(&u->unzip)));
    else if (u->field == FIELD_FILE && u->size + size <= UPLOAD_MAX &&
             fd_write_full(u->fd, data, size) >= 0)
        u->size += size;
    else if (u->field == FIELD_FILE)
        u->size = UPLOAD_MAX + 1; /* said at the end */
    return size;
}

static bool on_part_end(void *owner, struct error *err)
{
    (void)owner;
    (void)err;
    return true;
}

static size_t on_body(void *state, const uint8_t *data, size_t size)
{
    struct rex_upload *u = state;
    struct error err = {0};
    size_t done = 0;

    while (done < size) {
        ssize_t n = multipart_feed(&u->multipart, data + done, size - done, &err);

        if (n <= 0) {
            error_fill(&err, -EINVAL, "the form cannot be read");
            fail(u, &err);
            return done;
        }
        done += (size_t)n;
    }
    return size;
}

static void on_body_end(void *state)
{
    struct rex_upload *u = state;
    struct error err = {0};

    if (multipart_finish(&u->multipart, &err) < 0)
        fail(u, &err);
    else if (u->size > UPLOAD_MAX)
        rex_raise(u->req, "builtins.OSError", "the file is too large, or the host's disk is full",
                  NULL);
    else
        begin(u);
}

void handle_rex_upload(struct request *req)
{
    static const struct multipart_ops ops = {on_part, on_part_data, on_part_end};
    static const struct request_body_ops body_ops = {on_body, on_body_end};
    const char *type = request_header(req, "Content-Type");
    struct rex_upload *u;
    struct error err = {0};
    struct sandbox *sb;
    int r;

    struct console *c = rex_console(req, &sb);
    if (!c)
        return;
    u = calloc(1, sizeof(*u));
    if (!u) {
        rex_raise(req, "builtins.MemoryError", "out of memory", NULL);
        return;
    }
    u->req = req;
    u->c = c;
    buf_init(&u->target, 4095);
    buf_init(&u->unzip, 8);
    u->fd = file_open_unnamed("/var/tmp");
    request_own(req, u, on_over);
    r = u->fd < 0 ? error_set(&err, -u->fd, "a temporary file: %s", errno_text(-u->fd)) : 0;
    if (r >= 0 && string_set(&u->user, sandbox_get_spec(sb)->user) < 0)
        r = error_set(&err, ENOMEM, "out of memory");
    if (r >= 0)
        r = multipart_init(&u->multipart, type ? type : "", &ops, u, &err);
    u->has_multipart = r >= 0;
    if (r >= 0 && sandbox_watch_new(sb, on_gone, u, &u->watch) < 0)
        r = error_set(&err, ENOMEM, "out of memory");
    if (r < 0)
        fail(u, &err);
    else
        request_body_begin(req, &body_ops);
}
