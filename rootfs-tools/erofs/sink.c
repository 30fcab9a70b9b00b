#include "erofs/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/fd.h"

#define BUFFER_BYTES ((size_t)1024 * 1024)
#define DIRECT_BYTES ((size_t)256 * 1024) /* from this size on the kernel copies */
#define GAP_BYTES ((size_t)64 * 1024)     /* a larger gap is left to be a hole */

int sink_open(struct sink *s, const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    if (fd < 0)
        return -errno;
    *s = (struct sink){.fd = fd, .buffer = malloc(BUFFER_BYTES)};
    return s->buffer ? 0 : -ENOMEM;
}

void sink_done(struct sink *s)
{
    if (!s->buffer && s->fd == 0) /* never opened */
        return;
    s->fd = fd_close(s->fd);
    free(s->buffer);
    s->buffer = NULL;
}

static int flush(struct sink *s)
{
    size_t done = 0;

    while (done < s->used) {
        ssize_t n = pwrite(s->fd, s->buffer + done, s->used - done, (off_t)(s->start + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        done += (size_t)n;
    }
    s->start += s->used;
    s->used = 0;
    return 0;
}

int sink_at(struct sink *s, uint64_t offset)
{
    uint64_t here = s->start + s->used;
    int r = 0;

    if (offset < here)
        return -EIO;
    if (offset - here > GAP_BYTES || offset - s->start > BUFFER_BYTES) {
        r = flush(s);
        s->start = offset;
        return r;
    }
    memset(s->buffer + s->used, 0, (size_t)(offset - here));
    s->used += (size_t)(offset - here);
    return 0;
}

int sink_put(struct sink *s, const void *data, size_t size)
{
    const uint8_t *bytes = data;

    while (size > 0) {
        size_t n = BUFFER_BYTES - s->used;
        int r;

        n = n < size ? n : size;
        memcpy(s->buffer + s->used, bytes, n);
        s->used += n;
        bytes += n;
        size -= n;
        r = s->used == BUFFER_BYTES ? flush(s) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static int copy_small(struct sink *s, int fd, uint64_t from, uint64_t size)
{
    while (size > 0) {
        size_t room = BUFFER_BYTES - s->used;
        ssize_t n;

        if (room == 0) {
            int r = flush(s);

            if (r < 0)
                return r;
            continue;
        }
        n = pread(fd, s->buffer + s->used, room < size ? room : (size_t)size, (off_t)from);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO; /* the pack is shorter than its index says */
        s->used += (size_t)n;
        from += (uint64_t)n;
        size -= (uint64_t)n;
    }
    return 0;
}

/* The next run of data at or after `from`; false when there is only a hole up to `end`. */
static bool next_data(int fd, uint64_t from, uint64_t end, uint64_t *ret_from, uint64_t *ret_end)
{
    off_t data = lseek(fd, (off_t)from, SEEK_DATA), hole;

    if (data < 0 && errno == ENXIO)
        return false;
    if (data < 0) { /* a file system that does not know: all is data */
        *ret_from = from;
        *ret_end = end;
        return from < end;
    }
    if ((uint64_t)data >= end)
        return false;
    hole = lseek(fd, data, SEEK_HOLE);
    *ret_from = (uint64_t)data;
    *ret_end = hole < 0 || (uint64_t)hole > end ? end : (uint64_t)hole;
    return true;
}

static int copy_range(struct sink *s, int fd, uint64_t from, uint64_t to, uint64_t size)
{
    off_t in = (off_t)from, out = (off_t)to;

    while (size > 0) {
        ssize_t n = copy_file_range(fd, &in, s->fd, &out, (size_t)size, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            return -EIO;
        if (n < 0 &&
            (errno == EXDEV || errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)) {
            s->start = (uint64_t)out;
            return copy_small(s, fd, (uint64_t)in, size);
        }
        if (n < 0)
            return -errno;
        size -= (uint64_t)n;
    }
    s->start = (uint64_t)out;
    return 0;
}

int sink_copy(struct sink *s, int from_fd, uint64_t from, uint64_t size)
{
    uint64_t target = s->start + s->used, end = from + size, data, data_end;
    int r;

    if (size < DIRECT_BYTES)
        return copy_small(s, from_fd, from, size);
    for (uint64_t at = from; next_data(from_fd, at, end, &data, &data_end); at = data_end) {
        r = sink_at(s, target + (data - from));
        if (r == 0)
            r = flush(s);
        if (r == 0)
            r = copy_range(s, from_fd, data, target + (data - from), data_end - data);
        if (r < 0)
            return r;
    }
    return sink_at(s, target + size);
}

int sink_finish(struct sink *s)
{
    int r = flush(s);

    if (r < 0)
        return r;
    return ftruncate(s->fd, (off_t)s->start) < 0 ? -errno : 0;
}
