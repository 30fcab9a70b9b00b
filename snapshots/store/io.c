#include "store/io.h"

#include <errno.h>
#include <liburing.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

struct request {
    int fd;
    bool write;
    char *data;
    uint32_t size, done;
    uint64_t offset, tag;
    int result;
    bool busy, finished;
};

struct io {
    struct io_uring ring;
    bool plain;               /* no io_uring: requests are done as they are started */
    struct request *requests; /* owned */
    unsigned depth, in_flight;
};

int io_new(unsigned depth, struct io **ret)
{
    struct io *io;

    if (depth == 0 || depth > IO_DEPTH_MAX)
        return -EINVAL;
    io = calloc(1, sizeof(*io));
    if (!io)
        return -ENOMEM;
    io->depth = depth;
    io->requests = calloc(depth, sizeof(*io->requests));
    if (!io->requests) {
        free(io);
        return -ENOMEM;
    }
    io->plain = io_uring_queue_init(depth, &io->ring, 0) < 0;
    *ret = io;
    return 0;
}

struct io *io_free(struct io *io)
{
    uint64_t tag;
    int result;

    if (!io)
        return NULL;
    while (io->in_flight > 0)
        (void)io_wait(io, &tag, &result);
    if (!io->plain)
        io_uring_queue_exit(&io->ring);
    free(io->requests);
    free(io);
    return NULL;
}

unsigned io_in_flight(const struct io *io)
{
    return io->in_flight;
}

static void run_plain(struct request *q)
{
    while (q->done < q->size) {
        off_t at = (off_t)(q->offset + q->done);
        ssize_t n = q->write ? pwrite(q->fd, q->data + q->done, q->size - q->done, at)
                             : pread(q->fd, q->data + q->done, q->size - q->done, at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            q->result = -errno;
            q->finished = true;
            return;
        }
        if (n == 0)
            break;
        q->done += (uint32_t)n;
    }
    q->result = q->write && q->done < q->size ? -EIO : (int)q->done;
    q->finished = true;
}

static int submit(struct io *io, struct request *q)
{
    struct io_uring_sqe *sqe;
    int r;

    if (io->plain) {
        run_plain(q);
        return 0;
    }
    sqe = io_uring_get_sqe(&io->ring);
    if (!sqe)
        return -EAGAIN;
    if (q->write)
        io_uring_prep_write(sqe, q->fd, q->data + q->done, q->size - q->done, q->offset + q->done);
    else
        io_uring_prep_read(sqe, q->fd, q->data + q->done, q->size - q->done, q->offset + q->done);
    io_uring_sqe_set_data64(sqe, (uint64_t)(q - io->requests));
    do
        r = io_uring_submit(&io->ring);
    while (r == -EINTR || r == -EAGAIN || r == -EBUSY);
    return r < 0 ? r : 0;
}

static int start(struct io *io, const struct request *wanted)
{
    struct request *q = NULL;
    int r;

    if (wanted->size == 0)
        return -EINVAL;
    for (unsigned i = 0; i < io->depth && !q; i++)
        if (!io->requests[i].busy)
            q = &io->requests[i];
    if (!q)
        return -EAGAIN;
    *q = *wanted;
    r = submit(io, q);
    if (r < 0)
        return r;
    q->busy = true;
    io->in_flight++;
    return 0;
}

int io_read(struct io *io, int fd, void *data, uint32_t size, uint64_t offset, uint64_t tag)
{
    struct request q = {.fd = fd, .data = data, .size = size, .offset = offset, .tag = tag};

    return start(io, &q);
}

int io_write(struct io *io, int fd, const void *data, uint32_t size, uint64_t offset, uint64_t tag)
{
    struct request q = {.fd = fd, .write = true, .size = size, .offset = offset, .tag = tag};
    union {
        const void *from;
        char *to;
    } bytes = {.from = data}; /* one struct serves both directions */

    q.data = bytes.to;
    return start(io, &q);
}

/* What the kernel said of a request: finished, or the rest is asked for. */
static void advance(struct io *io, struct request *q, int result)
{
    if (result == -EINTR || result == -EAGAIN) {
        result = 0;
    } else if (result < 0) {
        q->result = result;
        q->finished = true;
        return;
    } else if (result == 0) {
        q->result = q->write ? -EIO : (int)q->done;
        q->finished = true;
        return;
    }
    q->done += (uint32_t)result;
    if (q->done == q->size) {
        q->result = (int)q->done;
        q->finished = true;
        return;
    }
    result = submit(io, q);
    if (result < 0) {
        q->result = result;
        q->finished = true;
    }
}

static struct request *finished(struct io *io)
{
    for (unsigned i = 0; i < io->depth; i++)
        if (io->requests[i].busy && io->requests[i].finished)
            return &io->requests[i];
    return NULL;
}

int io_wait(struct io *io, uint64_t *ret_tag, int *ret_result)
{
    struct request *q;

    if (io->in_flight == 0)
        return -ENOENT;
    for (;;) {
        struct io_uring_cqe *cqe;
        uint64_t index;
        int result;

        q = finished(io);
        if (q)
            break;
        if (io_uring_wait_cqe(&io->ring, &cqe) < 0)
            continue;
        index = io_uring_cqe_get_data64(cqe);
        result = cqe->res;
        io_uring_cqe_seen(&io->ring, cqe);
        if (index < io->depth)
            advance(io, &io->requests[index], result);
    }
    *ret_tag = q->tag;
    *ret_result = q->result;
    q->busy = false;
    q->finished = false;
    io->in_flight--;
    return 0;
}
