#include "core/extent-copy.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/strv.h"

/*
 * Theory of operation. A few lanes, each with a buffer, take the next piece of data (found with
 * SEEK_DATA and SEEK_HOLE), read it, write it and come back for more. When no piece is left and all
 * lanes are idle the copy is over. The first error stops lanes from taking more.
 */
#define LANES 4u
#define PIECE_BYTES (256u * 1024u)

struct lane {
    struct extent_copy *copy; /* weak */
    uint8_t *buffer;          /* owned */
    uint64_t offset;
    uint32_t size, done; /* of the piece, and how much of it was read or written */
};

struct extent_copy {
    struct uring *uring; /* weak */
    char *to;            /* owned */
    int in, out;         /* owned */
    off_t size;
    off_t next, extent_end; /* where the next piece is looked for; end of the extent it is in */
    struct lane lanes[LANES];
    unsigned busy;
    bool complete;
    struct source *finish; /* owned */
    backend_done_fn done;
    void *userdata;
    struct error err;
};

struct extent_copy *extent_copy_free(struct extent_copy *copy)
{
    if (!copy)
        return NULL;
    (void)source_free(copy->finish);
    if (!copy->complete && copy->out >= 0)
        (void)unlink(copy->to);
    copy->in = fd_close(copy->in);
    copy->out = fd_close(copy->out);
    for (unsigned i = 0; i < LANES; i++)
        free(copy->lanes[i].buffer);
    free(copy->to);
    free(copy);
    return NULL;
}

static void copy_fail(struct extent_copy *copy, int errnum, const char *what)
{
    if (!copy->err.errnum)
        (void)error_set(&copy->err, errnum, "copy to '%s': %s: %s", copy->to, what,
                        errno_text(errnum));
}

static void copy_end(struct extent_copy *copy)
{
    copy->complete = copy->err.errnum == 0;
    if (!copy->complete)
        (void)unlink(copy->to);
    copy->done(copy->complete ? NULL : &copy->err, copy->userdata);
}

/* The next piece of data, or false at the end of the file. */
static bool next_piece(struct extent_copy *copy, uint64_t *ret_offset, uint32_t *ret_size)
{
    off_t start = copy->next;

    if (copy->err.errnum || start >= copy->size)
        return false;
    if (start >= copy->extent_end) {
        start = lseek(copy->in, start, SEEK_DATA);
        if (start < 0) {
            if (errno != ENXIO) /* ENXIO: a hole to the end */
                copy_fail(copy, errno, "look for data");
            copy->next = copy->size;
            return false;
        }
        copy->extent_end = lseek(copy->in, start, SEEK_HOLE);
        if (copy->extent_end < 0) {
            copy_fail(copy, errno, "look for a hole");
            return false;
        }
    }
    *ret_offset = (uint64_t)start;
    *ret_size = (uint32_t)MIN(copy->extent_end - start, (off_t)PIECE_BYTES);
    copy->next = start + *ret_size;
    return true;
}

static void lane_read(struct lane *lane);
static void lane_write(struct lane *lane);

static void lane_idle(struct lane *lane, int errnum, const char *what)
{
    struct extent_copy *copy = lane->copy;

    if (errnum)
        copy_fail(copy, errnum, what);
    copy->busy--;
    if (copy->busy == 0)
        copy_end(copy);
}

static void lane_take(struct lane *lane)
{
    if (!next_piece(lane->copy, &lane->offset, &lane->size)) {
        lane_idle(lane, 0, "");
        return;
    }
    lane->done = 0;
    lane_read(lane);
}

static void on_written(int result, void *userdata)
{
    struct lane *lane = userdata;

    if (result <= 0) {
        lane_idle(lane, result < 0 ? -result : EIO, "write");
        return;
    }
    lane->done += (uint32_t)result;
    if (lane->done < lane->size)
        lane_write(lane);
    else
        lane_take(lane);
}

static void lane_write(struct lane *lane)
{
    int r = uring_write(lane->copy->uring, lane->copy->out, lane->buffer + lane->done,
                        lane->size - lane->done, lane->offset + lane->done, on_written, lane);

    if (r < 0)
        lane_idle(lane, -r, "write");
}

static void on_read(int result, void *userdata)
{
    struct lane *lane = userdata;

    if (result <= 0) {
        lane_idle(lane, result < 0 ? -result : EIO, "read");
        return;
    }
    lane->done += (uint32_t)result;
    if (lane->done < lane->size) {
        lane_read(lane);
        return;
    }
    lane->done = 0;
    lane_write(lane);
}

static void lane_read(struct lane *lane)
{
    int r = uring_read(lane->copy->uring, lane->copy->in, lane->buffer + lane->done,
                       lane->size - lane->done, lane->offset + lane->done, on_read, lane);

    if (r < 0)
        lane_idle(lane, -r, "read");
}

/* The first step runs from the loop, so that `done` never comes from inside the start. */
static int on_start(struct source *s, void *userdata)
{
    struct extent_copy *copy = userdata;

    (void)s;
    copy->finish = source_free(copy->finish);
    if (copy->size == 0 || ioctl(copy->out, FICLONE, copy->in) == 0) {
        copy_end(copy);
        return 0;
    }
    if (ftruncate(copy->out, copy->size) < 0) {
        copy_fail(copy, errno, "set its size");
        copy_end(copy);
        return 0;
    }
    copy->busy = LANES;
    for (unsigned i = 0; i < LANES; i++)
        lane_take(&copy->lanes[i]);
    return 0;
}

static int copy_open(struct extent_copy *copy, const char *from, struct error *err)
{
    struct stat st;

    copy->in = open(from, O_RDONLY | O_CLOEXEC);
    if (copy->in < 0 || fstat(copy->in, &st) < 0)
        return error_set(err, errno, "open '%s': %s", from, errno_text(errno));
    copy->size = st.st_size;
    copy->out = open(copy->to, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (copy->out < 0)
        return error_set(err, errno, "create '%s': %s", copy->to, errno_text(errno));
    return 0;
}

int extent_copy_start(struct loop *loop, struct uring *uring, const char *from, const char *to,
                      backend_done_fn done, void *userdata, struct extent_copy **ret,
                      struct error *err)
{
    struct extent_copy *copy = calloc(1, sizeof(*copy));
    int r = -ENOMEM;

    if (!copy)
        return error_set(err, ENOMEM, "copy '%s': out of memory", from);
    copy->uring = uring;
    copy->in = copy->out = -EBADF;
    copy->done = done;
    copy->userdata = userdata;
    if (string_set(&copy->to, to) >= 0)
        r = 0;
    for (unsigned i = 0; i < LANES && r >= 0; i++) {
        copy->lanes[i].copy = copy;
        copy->lanes[i].buffer = malloc(PIECE_BYTES);
        if (!copy->lanes[i].buffer)
            r = -ENOMEM;
    }
    if (r >= 0)
        r = copy_open(copy, from, err);
    if (r >= 0)
        r = loop_add_defer(loop, "extent-copy", on_start, copy, &copy->finish);
    if (r < 0) {
        (void)extent_copy_free(copy);
        return error_fill(err, r, "copy '%s' to '%s'", from, to);
    }
    *ret = copy;
    return 0;
}
