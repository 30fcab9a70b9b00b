#include "core/guest-copy.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/strv.h"
#include "core/tree.h"
#include "host/files.h"

/*
 * Theory of operation. A worker looks what there is; then one entry after the other goes to the
 * guest, each with a request and its completion. Contents are read in small pieces on the loop:
 * local files, mostly just looked at for their digest.
 */
#define PIECE_BYTES (64u * 1024u)

struct scan_job {
    struct guest_copy *copy; /* weak, not for the worker; NULL: nobody waits any more */
    char *from;              /* owned */
    struct tree tree;
    struct error err;
};

struct guest_copy {
    struct console *console; /* weak */
    struct scan_job *scan;   /* weak: owned by the worker, while it runs */
    char *to;                /* owned */
    struct tree tree;
    size_t next;
    struct file_call *call;    /* owned */
    struct transfer *transfer; /* owned */
    int fd;                    /* owned: of the file that is under way */
    uint64_t done_bytes, total_bytes;
    struct guest_copy_callbacks cb;
    void *userdata;
};

static void copy_next(struct guest_copy *copy);

struct guest_copy *guest_copy_free(struct guest_copy *copy)
{
    if (!copy)
        return NULL;
    if (copy->scan)
        copy->scan->copy = NULL;
    (void)file_call_free(copy->call);
    (void)transfer_free(copy->transfer);
    (void)fd_close(copy->fd);
    tree_done(&copy->tree);
    free(copy->to);
    free(copy);
    return NULL;
}

static const struct tree_entry *current(const struct guest_copy *copy)
{
    return &copy->tree.entries[copy->next];
}

static void fail(struct guest_copy *copy, const struct error *err)
{
    struct error why = *err;

    error_wrap(&why, "copy '%s%s%s'", copy->tree.root, current(copy)->path[0] ? "/" : "",
               current(copy)->path);
    copy->cb.on_done(&why, copy->userdata);
}

static void entry_done(struct guest_copy *copy, const struct error *err)
{
    copy->fd = fd_close(copy->fd);
    if (err) {
        fail(copy, err);
        return;
    }
    copy->next++;
    copy_next(copy);
}

/* ---- files ---- */

static void pump(struct guest_copy *copy)
{
    char piece[PIECE_BYTES];
    size_t room;

    while ((room = transfer_writable(copy->transfer)) > 0) {
        ssize_t n = read(copy->fd, piece, MIN(room, sizeof(piece)));

        if (n > 0 && transfer_write(copy->transfer, piece, (size_t)n) >= 0) {
            copy->done_bytes += (uint64_t)n;
            copy->cb.on_progress(copy->done_bytes, copy->total_bytes, copy->userdata);
            continue;
        }
        if (n < 0) {
            struct error err = {0};

            (void)error_set(&err, errno, "read: %s", errno_text(errno));
            copy->transfer = transfer_free(copy->transfer);
            entry_done(copy, &err);
        } else {
            (void)transfer_finish(copy->transfer);
        }
        return;
    }
}

static void on_write_ready(struct transfer *t, uint64_t size, void *userdata)
{
    (void)t;
    (void)size;
    pump(userdata);
}

static void on_writable(struct transfer *t, void *userdata)
{
    (void)t;
    pump(userdata);
}

static void on_written(struct transfer *t, const struct error *err, void *userdata)
{
    struct guest_copy *copy = userdata;
    struct error why = {0};

    (void)t;
    if (err)
        error_copy(&why, err);
    copy->transfer = transfer_free(copy->transfer);
    entry_done(copy, err ? &why : NULL);
}

static int start_file(struct guest_copy *copy, const char *to, struct error *err)
{
    static const struct transfer_callbacks callbacks = {
        .on_ready = on_write_ready,
        .on_writable = on_writable,
        .on_done = on_written,
    };
    const struct file_write_options options = {.mode = current(copy)->mode & 07777,
                                               .parents = true};

    copy->fd = tree_open(&copy->tree, current(copy), err);
    if (copy->fd < 0)
        return copy->fd;
    return file_write_start(copy->console, NULL, to, &options, &callbacks, copy, &copy->transfer,
                            err);
}

/* ---- the others ---- */

static void on_called(const struct error *err, void *userdata)
{
    struct guest_copy *copy = userdata;
    struct error why = {0};

    if (err)
        error_copy(&why, err);
    copy->call = file_call_free(copy->call);
    entry_done(copy, err ? &why : NULL);
}

/* What was in the link's place is gone, or was not there. */
static void on_cleared(const struct error *err, void *userdata)
{
    struct guest_copy *copy = userdata;
    const struct tree_entry *entry = current(copy);
    _cleanup_free_ char *to =
        string_printf("%s%s%s", copy->to, entry->path[0] ? "/" : "", entry->path);
    struct error why = {0};

    (void)err;
    copy->call = file_call_free(copy->call);
    if (!to)
        (void)error_set(&why, ENOMEM, "out of memory");
    if (!to || file_symlink(copy->console, NULL, entry->target, to, on_called, copy, &copy->call,
                            &why) < 0)
        entry_done(copy, &why);
}

static void copy_next(struct guest_copy *copy)
{
    const struct tree_entry *entry;
    _cleanup_free_ char *to = NULL;
    struct error err = {0};
    int r;

    if (copy->next >= copy->tree.n) {
        copy->cb.on_done(NULL, copy->userdata);
        return;
    }
    entry = current(copy);
    to = string_printf("%s%s%s", copy->to, entry->path[0] ? "/" : "", entry->path);
    if (!to)
        r = error_set(&err, ENOMEM, "out of memory");
    else if (S_ISDIR(entry->mode))
        r = file_mkdir(copy->console, NULL, to, /* parents= */ true, entry->mode & 07777, on_called,
                       copy, &copy->call, &err);
    else if (S_ISLNK(entry->mode))
        r = file_remove(copy->console, NULL, to, /* recursive= */ false, on_cleared, copy,
                        &copy->call, &err);
    else
        r = start_file(copy, to, &err);
    if (r < 0)
        entry_done(copy, &err);
}

/* ---- scan ---- */

static void scan_run(void *userdata)
{
    struct scan_job *job = userdata;

    (void)tree_scan(job->from, &job->tree, &job->err);
}

static void scan_done(void *userdata, int cancelled)
{
    struct scan_job *job = userdata;
    struct guest_copy *copy = job->copy;

    if (copy && !cancelled) {
        copy->scan = NULL;
        copy->tree = job->tree;
        job->tree = (struct tree){0};
        for (size_t i = 0; i < copy->tree.n; i++)
            copy->total_bytes += copy->tree.entries[i].size_bytes;
        if (job->err.errnum)
            copy->cb.on_done(&job->err, copy->userdata);
        else
            copy_next(copy);
    }
    tree_done(&job->tree);
    free(job->from);
    free(job);
}

int guest_copy_new(struct console *console, struct workers *workers, const char *from,
                   const char *to, const struct guest_copy_callbacks *cb, void *userdata,
                   struct guest_copy **ret, struct error *err)
{
    struct guest_copy *copy = calloc(1, sizeof(*copy));
    struct scan_job *job = calloc(1, sizeof(*job));
    int r = -ENOMEM;

    if (copy && job) {
        copy->console = console;
        copy->fd = -EBADF;
        copy->cb = *cb;
        copy->userdata = userdata;
        copy->scan = job;
        job->copy = copy;
        if (string_set(&copy->to, to) >= 0 && string_set(&job->from, from) >= 0)
            r = workers_submit(workers, scan_run, scan_done, job);
    }
    if (r < 0) {
        if (copy) {
            copy->scan = NULL;
            (void)guest_copy_free(copy);
        }
        if (job)
            free(job->from);
        free(job);
        return error_set(err, -r, "copy '%s': %s", from, errno_text(-r));
    }
    *ret = copy;
    return 0;
}
