#include "base/uring.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/error.h"
#include "base/log.h"
#include "base/macros.h"

/*
 * Theory of operation. A request is a slot of a fixed table; what the kernel carries as user_data
 * is the slot's number and its generation, never a pointer, so a completion that nobody waits for
 * any more finds a generation that does not match and is dropped.
 */
#define ENTRIES_MAX 4096u

struct request {
    uring_done_fn done; /* NULL: the slot is free */
    void *userdata;
    uint32_t generation;
    uint32_t next_free; /* index + 1; 0: none */
};

struct uring {
    struct io_uring ring;
    int event_fd;             /* owned */
    struct source *source;    /* owned */
    struct request *requests; /* owned */
    unsigned n_requests, in_flight;
    uint32_t first_free; /* index + 1; 0: none */
};

static void complete(struct uring *u, uint64_t user_data, int result)
{
    uint32_t index = (uint32_t)user_data, generation = (uint32_t)(user_data >> 32);
    struct request *request;
    uring_done_fn done;

    if (index >= u->n_requests)
        return;
    request = &u->requests[index];
    if (!request->done || request->generation != generation)
        return;
    done = request->done;
    request->done = NULL;
    request->generation++;
    request->next_free = u->first_free;
    u->first_free = index + 1;
    u->in_flight--;
    done(result, request->userdata);
}

static int on_event(struct source *s, int fd, uint32_t epoll_events, void *userdata)
{
    struct uring *u = userdata;
    struct io_uring_cqe *cqe;
    uint64_t count;

    (void)s;
    (void)epoll_events;
    (void)!read(fd, &count, sizeof(count));
    while (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        uint64_t user_data = io_uring_cqe_get_data64(cqe);
        int result = cqe->res;

        io_uring_cqe_seen(&u->ring, cqe);
        complete(u, user_data, result);
    }
    return 0;
}

int uring_new(struct loop *loop, unsigned entries, struct uring **ret)
{
    struct uring *u;
    int r;

    if (entries == 0 || entries > ENTRIES_MAX)
        return -EINVAL;
    u = calloc(1, sizeof(*u));
    if (!u)
        return -ENOMEM;
    r = io_uring_queue_init(entries, &u->ring, 0);
    if (r < 0) {
        free(u);
        return r;
    }
    u->n_requests = entries;
    u->requests = calloc(entries, sizeof(*u->requests));
    u->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = !u->requests ? -ENOMEM : u->event_fd < 0 ? -errno : 0;
    if (r >= 0)
        r = io_uring_register_eventfd(&u->ring, u->event_fd);
    if (r >= 0)
        r = loop_add_io(loop, "uring", u->event_fd, EPOLLIN, on_event, u, &u->source);
    if (r < 0) {
        (void)uring_free(u);
        return r;
    }
    for (uint32_t i = 0; i < entries; i++)
        u->requests[i].next_free = i + 1 < entries ? i + 2 : 0;
    u->first_free = 1;
    *ret = u;
    return 0;
}

struct uring *uring_free(struct uring *u)
{
    struct io_uring_cqe *cqe;

    if (!u)
        return NULL;
    u->source = source_free(u->source);
    while (u->in_flight > 0) {
        if (io_uring_wait_cqe(&u->ring, &cqe) < 0)
            continue;
        io_uring_cqe_seen(&u->ring, cqe);
        u->in_flight--;
    }
    io_uring_queue_exit(&u->ring);
    u->event_fd = fd_close(u->event_fd);
    free(u->requests);
    free(u);
    return NULL;
}

/* A slot and a submission entry for it, or NULL. */
static struct io_uring_sqe *begin(struct uring *u, uint32_t *ret_index)
{
    struct io_uring_sqe *sqe;

    if (u->first_free == 0)
        return NULL;
    sqe = io_uring_get_sqe(&u->ring);
    if (sqe)
        *ret_index = u->first_free - 1;
    return sqe;
}

static int submit(struct uring *u, struct io_uring_sqe *sqe, uint32_t index, uring_done_fn done,
                  void *userdata)
{
    struct request *request = &u->requests[index];
    int r;

    io_uring_sqe_set_data64(sqe, (uint64_t)request->generation << 32 | index);
    r = io_uring_submit(&u->ring);
    if (r < 0 && r != -EAGAIN && r != -EBUSY)
        log_debug("io_uring took no request: %s", errno_text(-r));
    if (r < 1) {
        /* The entry stays in the ring and goes with the next submission: it must not be mistaken.
         */
        io_uring_prep_nop(sqe);
        io_uring_sqe_set_data64(sqe, UINT64_MAX);
        return r < 0 ? r : -EAGAIN;
    }
    u->first_free = request->next_free;
    request->done = done;
    request->userdata = userdata;
    u->in_flight++;
    return 0;
}

int uring_read(struct uring *u, int fd, void *data, uint32_t size, uint64_t offset,
               uring_done_fn done, void *userdata)
{
    uint32_t index;
    struct io_uring_sqe *sqe = begin(u, &index);

    if (!sqe)
        return -EAGAIN;
    io_uring_prep_read(sqe, fd, data, size, offset);
    return submit(u, sqe, index, done, userdata);
}

int uring_write(struct uring *u, int fd, const void *data, uint32_t size, uint64_t offset,
                uring_done_fn done, void *userdata)
{
    uint32_t index;
    struct io_uring_sqe *sqe = begin(u, &index);

    if (!sqe)
        return -EAGAIN;
    io_uring_prep_write(sqe, fd, data, size, offset);
    return submit(u, sqe, index, done, userdata);
}
