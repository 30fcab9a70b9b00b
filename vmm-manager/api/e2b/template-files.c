#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "api/e2b/handlers.h"
#include "api/e2b/template-build.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/strv.h"
#include "base/worker.h"

/*
 * Files of template builds. Theory of operation: a client asks for a link for each COPY, by a hash
 * of what it copies; the link has a token, since it is used without a key. What comes is kept in a
 * file without a name, by its hash, for every later build that copies the same; of too many the
 * least used go. A build's context is made of them on a worker.
 */
#define FILES_MAX 256u
#define FILES_BYTES_MAX BUILD_CONTEXT_MAX /* all together */
#define ENTRIES_MAX 1000000u
#define BLOCK (64u * 1024u)
#define TOKEN_SIZE 33u

struct e2b_files {
    struct e2b_files *next;
    char hash[SCRIPT_HASH_SIZE];
    char token[TOKEN_SIZE];
    int fd; /* owned; -EBADF: not there yet */
    uint64_t size;
    uint64_t used_usec;
};

static struct e2b_files *files_find(struct api_e2b *e2b, const char *hash)
{
    for (struct e2b_files *f = e2b->files; f; f = f->next) {
        if (strcmp(f->hash, hash) == 0)
            return f;
    }
    return NULL;
}

static void files_unlink(struct api_e2b *e2b, struct e2b_files *gone)
{
    for (struct e2b_files **at = &e2b->files; *at; at = &(*at)->next) {
        if (*at == gone) {
            *at = gone->next;
            break;
        }
    }
    (void)fd_close(gone->fd);
    free(gone);
}

void e2b_files_free(struct api_e2b *e2b)
{
    while (e2b->files)
        files_unlink(e2b, e2b->files);
}

/* Until so much more fits; never the one that is to stay. */
static bool files_make_room(struct api_e2b *e2b, const struct e2b_files *stays, uint64_t size)
{
    for (;;) {
        struct e2b_files *oldest = NULL;
        uint64_t all = size;
        size_t n = 0;

        for (struct e2b_files *f = e2b->files; f; f = f->next, n++) {
            all += f->size;
            if (f != stays && (!oldest || f->used_usec < oldest->used_usec))
                oldest = f;
        }
        if (n < FILES_MAX && all <= FILES_BYTES_MAX)
            return true;
        if (!oldest)
            return false;
        files_unlink(e2b, oldest);
    }
}

static struct e2b_files *files_new(struct api_e2b *e2b, const char *hash)
{
    struct e2b_files *f = files_make_room(e2b, NULL, 0) ? calloc(1, sizeof(*f)) : NULL;
    uint8_t random[(TOKEN_SIZE - 1) / 2];

    if (!f || getrandom(random, sizeof(random), 0) != sizeof(random)) {
        free(f);
        return NULL;
    }
    f->fd = -EBADF;
    hex_encode(random, sizeof(random), f->token);
    (void)snprintf(f->hash, sizeof(f->hash), "%s", hash);
    f->next = e2b->files;
    e2b->files = f;
    return f;
}

int e2b_files_check(struct api_e2b *e2b, const struct template_script *script, struct error *err)
{
    for (size_t i = 0; i < script->n_copies; i++) {
        struct e2b_files *f = files_find(e2b, script->copies[i].hash);

        if (!f || f->fd < 0)
            return error_set(err, EINVAL, "step %u: its files were not uploaded",
                             script->copies[i].step);
        f->used_usec = clock_now_usec();
    }
    return 0;
}

/* ---- the link ---- */

static bool host_is_plain(const char *host)
{
    return host && host[0] &&
           strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:[]-_") ==
               strlen(host);
}

void handle_e2b_template_files(struct request *req)
{
    struct api_e2b *e2b = e2b_of(req);
    const char *name = request_param(req, 0), *hash = request_param(req, 1);
    const char *host = request_header(req, "Host"),
               *proto = request_header(req, "X-Forwarded-Proto");
    struct e2b_files *f;
    bool https = proto ? strcmp(proto, "https") == 0 : e2b->https;

    if (!e2b_build_find(e2b, name, NULL)) {
        e2b_answer_status(req, 404, "the template has no build");
        return;
    }
    if (!script_hash_is_valid(hash) || !host_is_plain(host)) {
        e2b_answer_status(req, 400, "not a SHA-256 in hex, or no host to upload to");
        return;
    }
    f = files_find(e2b, hash);
    f = f ? f : files_new(e2b, hash);
    if (!f) {
        e2b_answer_status(req, 503, "there is no room for more files");
        return;
    }
    f->used_usec = clock_now_usec();
    _cleanup_free_ char *url = string_printf("%s://%s/templates/%s/files/%s?token=%s",
                                             https ? "https" : "http", host, name, hash, f->token);
    request_answer(req, 201, json_pack("{s:b, s:s?}", "present", f->fd >= 0, "url", url));
}

/* ---- the upload ---- */

struct files_put {
    struct api_e2b *e2b; /* weak */
    struct request *req; /* weak */
    char hash[SCRIPT_HASH_SIZE];
    int fd; /* owned */
    uint64_t size;
    bool failed;
};

static void on_put_over(void *state, enum request_end why)
{
    struct files_put *p = state;

    (void)why;
    (void)fd_close(p->fd);
    free(p);
}

static void put_fail(struct files_put *p, unsigned status, const char *message)
{
    p->failed = true;
    e2b_answer_status(p->req, status, message);
}

static size_t on_put_data(void *state, const uint8_t *data, size_t size)
{
    struct files_put *p = state;

    if (p->failed)
        return size;
    p->size += size;
    if (p->size > FILES_BYTES_MAX)
        put_fail(p, 413, "the files are too large");
    else if (fd_write_full(p->fd, data, size) < 0)
        put_fail(p, 507, "the files cannot be kept");
    return size;
}

static void on_put_end(void *state)
{
    struct files_put *p = state;
    struct e2b_files *f = files_find(p->e2b, p->hash);

    if (p->failed)
        return;
    if (!f || !files_make_room(p->e2b, f, p->size)) {
        put_fail(p, 507, "there is no room for the files any more");
        return;
    }
    (void)fd_close(f->fd);
    f->fd = TAKE_FD(p->fd);
    f->size = p->size;
    f->used_usec = clock_now_usec();
    request_answer_empty(p->req, 200);
}

/* Length is no secret. */
static bool token_is(const char *token, const char *wanted)
{
    unsigned char differ = 0;

    if (!token || strlen(token) != strlen(wanted))
        return false;
    for (size_t i = 0; wanted[i]; i++)
        differ |= (unsigned char)(token[i] ^ wanted[i]);
    return differ == 0;
}

void handle_e2b_template_put(struct request *req)
{
    static const struct request_body_ops ops = {on_put_data, on_put_end};
    struct api_e2b *e2b = e2b_of(req);
    struct e2b_files *f = files_find(e2b, request_param(req, 1));
    struct files_put *p;
    struct error err = {0};
    const char *token = NULL;

    if (!e2b_query(req, "token", &token))
        return;
    if (!f || !token_is(token, f->token)) {
        e2b_answer_status(req, 403, "the link is not valid (any more)");
        return;
    }
    p = calloc(1, sizeof(*p));
    if (!p) {
        e2b_answer_status(req, 503, "out of memory");
        return;
    }
    p->e2b = e2b;
    p->req = req;
    (void)snprintf(p->hash, sizeof(p->hash), "%s", f->hash);
    p->fd = build_temporary(e2b->core, &err);
    if (p->fd < 0) {
        free(p);
        e2b_answer_error(req, &err);
        return;
    }
    request_own(req, p, on_put_over);
    request_body_begin(req, &ops);
}

/* ---- the context ---- */

struct context_job {
    struct e2b_build *build; /* weak; NULL: nobody waits any more */
    _Atomic bool cancel;
    struct {
        int fd; /* owned */
        unsigned step;
    } * parts; /* owned */
    size_t n_parts;
    char *dockerfile; /* owned */
    int fd;           /* owned: the context */
    struct error err;
};

static void context_free(struct context_job *job)
{
    for (size_t i = 0; i < job->n_parts; i++)
        (void)fd_close(job->parts[i].fd);
    free(job->parts);
    free(job->dockerfile);
    (void)fd_close(job->fd);
    free(job);
}

void context_job_cancel(struct context_job *job)
{
    job->build = NULL;
    atomic_store(&job->cancel, true);
}

static int out_failed(struct context_job *job, struct archive *out)
{
    const char *text = archive_error_string(out);

    return error_set(&job->err, EIO, "write the context: %s", text ? text : "unknown error");
}

static int put_text(struct context_job *job, struct archive *out)
{
    struct archive_entry *entry = archive_entry_new();
    size_t size = strlen(job->dockerfile);
    int r = 0;

    if (!entry)
        return error_set(&job->err, ENOMEM, "out of memory");
    archive_entry_set_pathname(entry, "Dockerfile");
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, (la_int64_t)size);
    if (archive_write_header(out, entry) != ARCHIVE_OK ||
        archive_write_data(out, job->dockerfile, size) != (la_ssize_t)size)
        r = out_failed(job, out);
    archive_entry_free(entry);
    return r;
}

/* Below the step's directory; what is no file, directory or link is left out. */
static int put_entry(struct context_job *job, struct archive *in, struct archive_entry *entry,
                     struct archive *out, unsigned step, uint64_t *bytes)
{
    const char *path = archive_entry_pathname(entry), *link = archive_entry_hardlink(entry);
    mode_t type = archive_entry_filetype(entry);
    _cleanup_free_ char *below = NULL, *target = NULL;
    static const size_t block = BLOCK;

    if (!path || (!link && type != AE_IFREG && type != AE_IFDIR && type != AE_IFLNK))
        return 0;
    below = string_printf("s%u/%s", step, path + strspn(path, "/"));
    target = link ? string_printf("s%u/%s", step, link + strspn(link, "/")) : NULL;
    if (!below || (link && !target))
        return error_set(&job->err, ENOMEM, "out of memory");
    archive_entry_set_pathname(entry, below);
    if (link)
        archive_entry_set_hardlink(entry, target);
    if (archive_write_header(out, entry) != ARCHIVE_OK)
        return out_failed(job, out);
    _cleanup_free_ char *data = malloc(block);
    for (;;) {
        la_ssize_t n = data ? archive_read_data(in, data, block) : -1;

        if (n < 0)
            return error_set(&job->err, EINVAL, "step %u: its files are not a whole tar", step);
        if (n == 0)
            return 0;
        *bytes += (uint64_t)n;
        if (*bytes > BUILD_CONTEXT_MAX || atomic_load(&job->cancel))
            return error_set(&job->err, E2BIG, "step %u: its files are too large", step);
        if (archive_write_data(out, data, (size_t)n) != n)
            return out_failed(job, out);
    }
}

static int put_part(struct context_job *job, size_t index, struct archive *out, unsigned *entries,
                    uint64_t *bytes)
{
    unsigned step = job->parts[index].step;
    struct archive *in = archive_read_new();
    struct archive_entry *entry;
    char path[64];
    int r = 0, status = ARCHIVE_FATAL;

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", job->parts[index].fd);
    if (in && archive_read_support_filter_gzip(in) == ARCHIVE_OK &&
        archive_read_support_filter_zstd(in) == ARCHIVE_OK &&
        archive_read_support_format_tar(in) == ARCHIVE_OK &&
        archive_read_open_filename(in, path, BLOCK) == ARCHIVE_OK) {
        do {
            status = archive_read_next_header(in, &entry);
            if (status != ARCHIVE_OK && status != ARCHIVE_WARN)
                break;
            r = ++*entries > ENTRIES_MAX
                    ? error_set(&job->err, E2BIG, "step %u: too many files", step)
                    : put_entry(job, in, entry, out, step, bytes);
        } while (r >= 0);
    }
    if (r >= 0 && status != ARCHIVE_EOF)
        r = error_set(&job->err, EINVAL, "step %u: its files are not a tar", step);
    if (in)
        (void)archive_read_free(in);
    return r;
}

static void context_run(void *userdata)
{
    struct context_job *job = userdata;
    struct archive *out = archive_write_new();
    unsigned entries = 0;
    uint64_t bytes = 0;
    int r;

    if (!out || archive_write_set_format_pax_restricted(out) != ARCHIVE_OK ||
        archive_write_open_fd(out, job->fd) != ARCHIVE_OK)
        r = error_set(&job->err, ENOMEM, "out of memory");
    else
        r = put_text(job, out);
    for (size_t i = 0; r >= 0 && i < job->n_parts; i++)
        r = put_part(job, i, out, &entries, &bytes);
    if (r >= 0 && archive_write_close(out) != ARCHIVE_OK)
        (void)out_failed(job, out);
    if (out)
        (void)archive_write_free(out);
}

static void context_done(void *userdata, int cancelled)
{
    struct context_job *job = userdata;

    if (cancelled && !job->err.errnum)
        (void)error_set(&job->err, ECANCELED, "the daemon ends");
    if (job->build)
        e2b_build_context(job->build, TAKE_FD(job->fd), job->err.errnum ? &job->err : NULL);
    context_free(job);
}

int context_job_start(struct e2b_build *b, struct error *err)
{
    const struct template_script *script = &b->script;
    struct context_job *job = calloc(1, sizeof(*job));
    const _Atomic bool *stop;
    int r = 0;

    if (!job)
        return error_set(err, ENOMEM, "out of memory");
    job->build = b;
    job->fd = build_temporary(b->e2b->core, err);
    job->dockerfile = strdup(buf_string(&script->dockerfile));
    job->parts = calloc(script->n_copies + 1, sizeof(*job->parts));
    if (job->fd < 0 || !job->dockerfile || !job->parts)
        r = error_fill(err, job->fd < 0 ? job->fd : -ENOMEM, "out of memory");
    for (size_t i = 0; r >= 0 && i < script->n_copies; i++) {
        const struct e2b_files *f = files_find(b->e2b, script->copies[i].hash);
        int fd = f ? fcntl(f->fd, F_DUPFD_CLOEXEC, 3) : -1;

        if (fd < 0) {
            r = error_set(err, EIO, "step %u: its files are gone", script->copies[i].step);
            break;
        }
        job->parts[job->n_parts].fd = fd;
        job->parts[job->n_parts++].step = script->copies[i].step;
    }
    if (r >= 0)
        r = workers_submit(core_image_workers(b->e2b->core, &stop), context_run, context_done, job);
    if (r < 0) {
        context_free(job);
        return error_fill(err, r, "build");
    }
    b->job = job;
    return 0;
}
