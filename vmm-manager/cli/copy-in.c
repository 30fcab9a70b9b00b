#include "cli/copy.h"

#include <fcntl.h>
#include <fts.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/strv.h"
#include "cli/client.h"

struct upload {
    struct copy *copy;
    const char *name;
    uint64_t size;
};

static void on_sent(uint64_t total, void *userdata)
{
    struct upload *u = userdata;

    copy_progress(u->copy, u->name, total, u->size);
}

/* `mode` 0: the guest's default. */
static int put_fd(struct copy *c, int fd, const char *name, const char *to, uint32_t mode,
                  uint64_t size, struct error *err)
{
    _cleanup_free_ char *head = copy_path(c, "", to), *target = NULL;
    struct upload upload = {.copy = c, .name = name, .size = size};
    struct http_request request = {.method = "PUT",
                                   .upload = true,
                                   .upload_fd = fd,
                                   .silence_usec = CLIENT_WORK_SILENCE_USEC,
                                   .on_sent = on_sent,
                                   .userdata = &upload};
    _cleanup_buf_ struct buf ignored = {0};
    int r;

    if (head)
        target = mode ? string_printf("%s&mode=%o", head, mode) : string_printf("%s", head);
    if (!target)
        return error_set(err, ENOMEM, "out of memory");
    request.target = target;
    r = client_open(c->cli, &request, err);
    if (r < 0)
        return r;
    buf_init(&ignored, HTTP_LINE_MAX);
    r = http_read_all(&c->cli->http, &ignored, err);
    c->bytes += size;
    return r;
}

static int put_file(struct copy *c, const char *from, const char *to, struct error *err)
{
    _cleanup_close_ int fd = open(from, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return error_set(err, errno, "'%s': %s", from, errno_text(errno));
    return put_fd(c, fd, from, to, S_ISREG(st.st_mode) ? (uint32_t)(st.st_mode & 07777) : 0,
                  S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0, err);
}

static json_t *path_and_mode(const char *path, mode_t mode)
{
    char text[8];

    (void)snprintf(text, sizeof(text), "%04o", mode & 07777u);
    return json_pack("{s:s, s:s}", "path", path, "mode", text);
}

static int make_directory(struct copy *c, const char *to, mode_t mode, struct error *err)
{
    /* Ours to write in until it is filled, whatever its mode will be. */
    json_auto_t *body = path_and_mode(to, mode | 0700);

    if (body)
        (void)json_object_set_new(body, "parents", json_true());
    return copy_call(c, "/mkdir", body, err);
}

static int finish_directory(struct copy *c, const char *to, mode_t mode, struct error *err)
{
    json_auto_t *body = NULL;

    if ((mode & 0700) == 0700)
        return 0;
    body = path_and_mode(to, mode);
    return copy_call(c, "/attr", body, err);
}

static int make_link(struct copy *c, const char *from, const char *to, struct error *err)
{
    char target[PATH_MAX];
    ssize_t n = readlink(from, target, sizeof(target) - 1);
    json_auto_t *body = NULL;
    _cleanup_free_ char *old = NULL;
    int r;

    if (n < 0)
        return error_set(err, errno, "'%s': %s", from, errno_text(errno));
    target[n] = '\0';
    body = json_pack("{s:s, s:s}", "target", target, "path", to);
    if (!body)
        return error_set(err, EINVAL, "'%s': its target is not valid UTF-8", from);
    r = copy_call(c, "/symlink", body, err);
    if (r != -EEXIST)
        return r;
    error_clear(err);
    old = copy_path(c, "", to);
    r = client_call(c->cli, "DELETE", old, NULL, NULL, err);
    return r < 0 ? r : copy_call(c, "/symlink", body, err);
}

static int copy_entry(struct copy *c, const FTSENT *entry, const char *to, struct error *err)
{
    switch (entry->fts_info) {
    case FTS_D:
        return make_directory(c, to, entry->fts_statp->st_mode, err);
    case FTS_DP:
        return finish_directory(c, to, entry->fts_statp->st_mode, err);
    case FTS_F:
        return put_file(c, entry->fts_accpath, to, err);
    case FTS_SL:
    case FTS_SLNONE:
        return make_link(c, entry->fts_accpath, to, err);
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
        return error_set(err, entry->fts_errno, "'%s': %s", entry->fts_path,
                         errno_text(entry->fts_errno));
    case FTS_DC:
        return error_set(err, ELOOP, "'%s': a directory that contains itself", entry->fts_path);
    default:
        cli_note(c->cli, "'%s': neither file, directory nor link, ignoring", entry->fts_path);
        c->skipped++;
        return 0;
    }
}

static int copy_tree(struct copy *c, const char *from, const char *to, struct error *err)
{
    char *root = strdup(from), *const roots[] = {root, NULL};
    size_t root_size = strlen(from);
    FTS *walk = root ? fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, NULL) : NULL;
    int r = 0;

    if (!walk)
        r = error_set(err, errno, "'%s': %s", from, errno_text(errno));
    while (r >= 0) {
        _cleanup_free_ char *path = NULL;
        const FTSENT *entry;
        const char *below;

        errno = 0;
        entry = fts_read(walk);
        if (!entry) {
            if (errno != 0)
                r = error_set(err, errno, "'%s': %s", from, errno_text(errno));
            break;
        }
        below = entry->fts_path + MIN(root_size, (size_t)entry->fts_pathlen);
        while (*below == '/')
            below++;
        path = below[0] ? string_printf("%s/%s", strcmp(to, "/") == 0 ? "" : to, below)
                        : string_printf("%s", to);
        r = path ? copy_entry(c, entry, path, err) : error_set(err, ENOMEM, "out of memory");
    }
    if (walk)
        (void)fts_close(walk);
    free(root);
    return r;
}

int copy_in(struct copy *c, const char *from, const char *to, struct error *err)
{
    struct stat st;

    if (strcmp(from, "-") == 0)
        return put_fd(c, STDIN_FILENO, "stdin", to, 0, 0, err);
    if (stat(from, &st) < 0)
        return error_set(err, errno, "'%s': %s", from, errno_text(errno));
    if (!S_ISDIR(st.st_mode))
        return put_file(c, from, to, err);
    return copy_tree(c, from, to, err);
}
