#include "api/front/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/strv.h"

#define LISTEN_BACKLOG 512
#define PEER_SILENT_MSEC 60000 /* without an acknowledgement of what was sent */

/* ---- Unix ---- */

/*
 * Bound beside and renamed: whoever connects finds the old socket or the new one, never none, and
 * the mode is right from the first moment.
 */
int unix_listen(const char *path, struct unix_listener *ret, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    _cleanup_free_ char *beside = string_printf("%s.new", path);
    _cleanup_close_ int fd = -EBADF;
    struct stat st;

    if (!beside)
        return error_set(err, ENOMEM, "socket '%s': out of memory", path);
    if (strlen(beside) >= sizeof(address.sun_path))
        return error_set(err, ENAMETOOLONG, "socket '%s': the path has more than %zu bytes", path,
                         sizeof(address.sun_path) - sizeof(".new"));
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", beside);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set(err, errno, "socket '%s': %s", path, errno_text(errno));
    (void)unlink(beside);
    /* On Linux the mode of the descriptor is the mode that bind() gives the file. */
    if (fchmod(fd, 0600) < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return error_set(err, errno, "socket '%s': bind: %s", beside, errno_text(errno));
    if (chmod(beside, 0600) < 0 || listen(fd, LISTEN_BACKLOG) < 0 || stat(beside, &st) < 0 ||
        rename(beside, path) < 0) {
        int r = error_set(err, errno, "socket '%s': %s", path, errno_text(errno));
        (void)unlink(beside);
        return r;
    }
    *ret = (struct unix_listener){TAKE_FD(fd), st.st_dev, st.st_ino};
    return 0;
}

void unix_listener_close(struct unix_listener *listener, const char *path)
{
    struct stat st;

    if (listener->fd < 0)
        return;
    /* A daemon that took over has its own socket there by now. */
    if (stat(path, &st) == 0 && st.st_dev == listener->dev && st.st_ino == listener->ino)
        (void)unlink(path);
    listener->fd = fd_close(listener->fd);
}

/* ---- TCP ---- */

static int split_address(const char *where, char *host, size_t host_size, char *port,
                         size_t port_size, struct error *err)
{
    const char *colon = strrchr(where, ':');
    size_t length = colon ? (size_t)(colon - where) : 0;
    const char *start = where;
    uint64_t number;

    if (length >= 2 && where[0] == '[' && where[length - 1] == ']') {
        start++;
        length -= 2;
    } else if (colon && memchr(where, ':', length)) {
        length = 0; /* an IPv6 address without brackets: where does it end? */
    }
    if (length == 0 || length >= host_size || parse_u64(colon + 1, 0, 65535, &number) < 0)
        return error_set(err, EINVAL,
                         "listen on '%.64s': expected HOST:PORT such as 127.0.0.1:7070 or [::1]:0",
                         where);
    (void)snprintf(host, host_size, "%.*s", (int)length, start);
    (void)snprintf(port, port_size, "%llu", (unsigned long long)number);
    return 0;
}

/* What an accepted connection inherits. */
static void set_options(int fd)
{
    const int on = 1, silent = PEER_SILENT_MSEC;

    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent, sizeof(silent));
}

static int bound_address(int fd, char address[static TCP_ADDRESS_SIZE])
{
    struct sockaddr_storage own;
    socklen_t size = sizeof(own);
    char host[64], port[8];

    if (getsockname(fd, (struct sockaddr *)&own, &size) < 0)
        return -errno;
    if (getnameinfo((struct sockaddr *)&own, size, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return -EINVAL;
    (void)snprintf(address, TCP_ADDRESS_SIZE, own.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host,
                   port);
    return 0;
}

int tcp_listen(const char *where, int *ret_fd, char address[static TCP_ADDRESS_SIZE],
               struct error *err)
{
    const struct addrinfo hints = {
        .ai_flags = AI_NUMERICSERV | AI_PASSIVE,
        .ai_socktype = SOCK_STREAM,
    };
    _cleanup_close_ int fd = -EBADF;
    struct addrinfo *found;
    char host[64], port[8];
    int r = split_address(where, host, sizeof(host), port, sizeof(port), err);

    if (r < 0)
        return r;
    int rc = getaddrinfo(host, port, &hints, &found);
    if (rc != 0)
        return error_set(err, EINVAL, "listen on '%s': %s", where, gai_strerror(rc));
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        set_options(fd);
    if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, LISTEN_BACKLOG) < 0)
        r = error_set(err, errno, "listen on '%s': %s", where, errno_text(errno));
    freeaddrinfo(found);
    if (r >= 0) {
        r = bound_address(fd, address);
        if (r < 0)
            (void)error_set(err, -r, "listen on '%s': its address: %s", where, errno_text(-r));
    }
    if (r < 0)
        return r;
    *ret_fd = TAKE_FD(fd);
    return 0;
}

bool tcp_address_is_local(const char *address)
{
    return string_starts_with(address, "127.") || string_starts_with(address, "[::1]:");
}
