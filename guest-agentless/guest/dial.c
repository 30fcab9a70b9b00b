#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"
#include "guest/ops.h"
#include "guest/reply.h"

#define COPY_SIZE (64u * 1024u)
#define TIMEOUT_DEFAULT_MSEC 10000u

static int connect_within(const struct sockaddr *address, socklen_t size, int timeout_msec)
{
    _cleanup_close_ int fd =
        socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct pollfd pollfd = {.fd = fd, .events = POLLOUT};
    int error = 0, one = 1, n;
    socklen_t error_size = sizeof(error);

    if (fd < 0)
        return -errno;
    if (connect(fd, address, size) < 0 && errno != EINPROGRESS)
        return -errno;
    do
        n = poll(&pollfd, 1, timeout_msec);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n < 0 ? -errno : -ETIMEDOUT;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size) < 0)
        return -errno;
    if (error != 0)
        return -error;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return TAKE_FD(fd);
}

static int dial_ipv4(const char *host, uint16_t port, int timeout_msec)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};

    if (inet_pton(AF_INET, host, &a.sin_addr) != 1)
        return -EINVAL;
    return connect_within((const struct sockaddr *)&a, sizeof(a), timeout_msec);
}

static int dial_ipv6(const char *host, uint16_t port, int timeout_msec)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(port)};

    if (inet_pton(AF_INET6, host, &a.sin6_addr) != 1)
        return -EINVAL;
    return connect_within((const struct sockaddr *)&a, sizeof(a), timeout_msec);
}

static int dial(const char *host, uint16_t port, int timeout_msec)
{
    int fd;

    if (host[0] == '\0' || strcmp(host, "localhost") == 0) {
        fd = dial_ipv4("127.0.0.1", port, timeout_msec);
        /* Some servers listen on the newer loopback only. */
        return fd == -ECONNREFUSED ? dial_ipv6("::1", port, timeout_msec) : fd;
    }
    fd = dial_ipv4(host, port, timeout_msec);
    return fd == -EINVAL ? dial_ipv6(host, port, timeout_msec) : fd;
}

/* One direction of the connection. */
struct flow {
    int from, to;
    uint8_t data[COPY_SIZE];
    size_t start, size;
    bool ended; /* nothing more comes from `from` */
};

/* Moves what can be moved; false when the flow is over. */
static bool flow_move(struct flow *f)
{
    ssize_t n;

    if (f->size == 0) {
        n = read(f->from, f->data, sizeof(f->data));
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (n <= 0)
            return false;
        f->start = 0;
        f->size = (size_t)n;
    }
    n = write(f->to, f->data + f->start, f->size);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    f->start += (size_t)n;
    f->size -= (size_t)n;
    return true;
}

static void flow_poll(const struct flow *f, struct pollfd *p)
{
    *p = (struct pollfd){.fd = -1};
    if (f->ended)
        return;
    p->fd = f->size > 0 ? f->to : f->from;
    p->events = f->size > 0 ? POLLOUT : POLLIN;
}

static void pump(int fd)
{
    static struct flow in, out;
    struct pollfd polls[2];

    in = (struct flow){.from = STDIN_FILENO, .to = fd};
    out = (struct flow){.from = fd, .to = STDOUT_FILENO};
    (void)fd_set_nonblock(STDIN_FILENO, true);
    (void)fd_set_nonblock(STDOUT_FILENO, true);
    /* The peer's end is the end: the host has no use for one half of a connection. */
    while (!out.ended) {
        flow_poll(&in, &polls[0]);
        flow_poll(&out, &polls[1]);
        if (poll(polls, 2, -1) < 0 && errno != EINTR)
            return;
        if (polls[0].revents && !flow_move(&in)) {
            in.ended = true;
            (void)shutdown(fd, SHUT_WR);
        }
        if (polls[1].revents && !flow_move(&out)) {
            out.ended = true;
            (void)close(STDOUT_FILENO);
        }
    }
}

int op_dial(const Hearth__V1__Dial *request)
{
    uint32_t timeout = request->timeout_msec ? request->timeout_msec : TIMEOUT_DEFAULT_MSEC;
    _cleanup_close_ int fd = -EBADF;

    if (request->port == 0 || request->port > UINT16_MAX)
        return reply_error(HEARTH__V1__CODE__CODE_INVALID, EINVAL, "port %u is not 1 to 65535",
                           request->port);
    fd = dial(request->host, (uint16_t)request->port, (int)MIN(timeout, 600000u));
    if (fd == -EINVAL)
        return reply_error(HEARTH__V1__CODE__CODE_INVALID, EINVAL,
                           "host '%.64s' is not an address or localhost", request->host);
    if (fd < 0)
        return reply_error(HEARTH__V1__CODE__CODE_SYSTEM, -fd, "connect to %.64s port %u: %s",
                           request->host[0] ? request->host : "127.0.0.1", request->port,
                           errno_text(-fd));
    reply_ready(0);
    pump(fd);
    return reply_ok();
}
