#include "cli/rex-relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/strv.h"
#include "cli/rex-head.h"

#define BUFFER_MAX ((size_t)128 * 1024) /* each way; a whole head fits */
#define BLOCK ((size_t)64 * 1024)
#define BACKLOG 64

/*
 * Theory of operation. A connection reads the head of its one request; then the daemon is
 * connected, and bytes go both ways: to the daemon the request's body and not a byte more, to the
 * client whatever comes. `up` and `down` hold what the other side has not taken; a full one stops
 * its reader. It is over when the daemon has said all, or the client is gone.
 */
struct relay_conn {
    struct rex_relay *relay; /* weak */
    struct relay_conn *prev, *next;
    int client_fd, daemon_fd;       /* owned */
    struct source *client, *daemon; /* owned */
    struct source *deadline;        /* owned: until the head is there */
    struct buf in;                  /* from the client, not looked at yet */
    struct buf up, down;
    struct http_body body;
    bool headed;      /* the head is passed on, or refused */
    bool daemon_over; /* all of the answer is in `down` */
};

struct rex_relay {
    struct loop *loop;            /* weak */
    char *sandbox, *token, *path; /* owned */
    int fd;                       /* owned */
    struct source *source;        /* owned */
    struct relay_conn *conns;     /* owned */
    unsigned n_conns;
};

static void conn_free(struct relay_conn *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        c->relay->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->relay->n_conns--;
    (void)source_free(c->client);
    (void)source_free(c->daemon);
    (void)source_free(c->deadline);
    (void)fd_close(c->client_fd);
    (void)fd_close(c->daemon_fd);
    buf_done(&c->in);
    buf_done(&c->up);
    buf_done(&c->down);
    free(c);
}

/* Reads what there is room for. 1: something came, 0: nothing now, negative: over. */
static int fill(int fd, struct buf *b)
{
    size_t room = MIN(BLOCK, buf_room(b));
    uint8_t *at;
    ssize_t n;

    if (room == 0)
        return 0;
    if (buf_reserve(b, room, &at) < 0)
        return -ENOMEM;
    n = recv(fd, at, room, 0);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    if (n == 0)
        return -EPIPE;
    buf_commit(b, (size_t)n);
    return 1;
}

/* Writes what is taken; negative: the other side is gone. */
static int drain(int fd, struct buf *b)
{
    while (b->size > 0) {
        ssize_t n = send(fd, buf_data(b), b->size, MSG_NOSIGNAL);

        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        buf_consume(b, (size_t)n);
    }
    return 0;
}

static void refuse(struct relay_conn *c, const char *status, const char *detail)
{
    c->headed = c->daemon_over = true;
    c->body.state = HTTP_BODY_END;
    buf_clear(&c->down);
    (void)buf_printf(&c->down,
                     "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                     "Connection: close\r\n\r\n{\"detail\":\"%s\"}",
                     status, strlen(detail) + strlen("{\"detail\":\"\"}"), detail);
}

static int on_event(struct source *s, int fd, uint32_t events, void *userdata);

static void connect_daemon(struct relay_conn *c)
{
    int fd = fd_connect_unix(c->relay->path);

    if (fd < 0 ||
        loop_add_io(c->relay->loop, "rex-daemon", fd, EPOLLIN, on_event, c, &c->daemon) < 0) {
        (void)fd_close(fd);
        refuse(c, "503 Service Unavailable", "the daemon does not answer");
        return;
    }
    c->daemon_fd = fd;
}

static void take_head(struct relay_conn *c)
{
    struct rex_head head;
    struct error err = {0};
    ssize_t n = rex_head_rewrite(buf_string(&c->in), c->in.size, c->relay->sandbox, c->relay->token,
                                 &c->up, &head, &err);

    if (n == 0)
        return;
    c->deadline = source_free(c->deadline);
    c->headed = true;
    if (n < 0) {
        refuse(c, "400 Bad Request", "not a request of HTTP/1.1");
    } else if (!head.token_is_right) { /* as SWE-ReX's own server does */
        refuse(c, head.has_token ? "401 Unauthorized" : "403 Forbidden",
               head.has_token ? "Invalid API Key" : "Not authenticated");
    } else {
        buf_consume(&c->in, (size_t)n);
        http_body_init(&c->body, &head.body);
        connect_daemon(c);
    }
}

/* Of what came, the request's body goes on, as it was sent. */
static void take_body(struct relay_conn *c)
{
    struct error err = {0};

    while (c->in.size > 0 && c->body.state != HTTP_BODY_END && buf_room(&c->up) > 0) {
        size_t used, size;
        const uint8_t *payload;
        int r = http_body_next(&c->body, buf_data(&c->in), MIN(c->in.size, buf_room(&c->up)), &used,
                               &payload, &size, &err);

        if (r < 0) {
            refuse(c, "400 Bad Request", "the request's body is malformed");
            return;
        }
        if (used == 0)
            return;
        (void)buf_append(&c->up, buf_data(&c->in), used);
        buf_consume(&c->in, used);
    }
    if (c->body.state == HTTP_BODY_END)
        buf_clear(&c->in);
}

/* Moves what can be moved; false: it is over. */
static bool conn_turn(struct relay_conn *c)
{
    if (!c->headed)
        take_head(c);
    if (c->headed)
        take_body(c);
    if (c->daemon_fd >= 0 && drain(c->daemon_fd, &c->up) < 0)
        buf_clear(&c->up); /* it has answered already, or will not */
    if (drain(c->client_fd, &c->down) < 0)
        return false;
    return !c->daemon_over || c->down.size > 0;
}

static int on_event(struct source *s, int fd, uint32_t events, void *userdata)
{
    struct relay_conn *c = userdata;
    int r;

    (void)s;
    if (fd == c->client_fd && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) {
        r = fill(fd, &c->in);
        if (r < 0) { /* a client of SWE-ReX never closes one half */
            conn_free(c);
            return 0;
        }
    }
    if (fd == c->daemon_fd && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) {
        r = fill(fd, &c->down);
        if (r < 0)
            c->daemon_over = true;
    }
    if (!conn_turn(c)) {
        conn_free(c);
        return 0;
    }
    if (c->daemon && c->daemon_over) {
        c->daemon = source_free(c->daemon);
        c->daemon_fd = fd_close(c->daemon_fd);
    }
    (void)source_set_io_events(c->client, (buf_room(&c->in) > 0 ? EPOLLIN : 0u) |
                                              (c->down.size > 0 ? EPOLLOUT : 0u));
    if (c->daemon)
        (void)source_set_io_events(c->daemon, (buf_room(&c->down) > 0 ? EPOLLIN : 0u) |
                                                  (c->up.size > 0 ? EPOLLOUT : 0u));
    return 0;
}

static int on_deadline(struct source *s, uint64_t now_usec, void *userdata)
{
    (void)s;
    (void)now_usec;
    conn_free(userdata);
    return 0;
}

static int conn_new(struct rex_relay *relay, int fd_consume)
{
    struct relay_conn *c = calloc(1, sizeof(*c));
    int on = 1, r;

    if (!c) {
        (void)fd_close(fd_consume);
        return -ENOMEM;
    }
    c->relay = relay;
    c->client_fd = fd_consume;
    c->daemon_fd = -EBADF;
    buf_init(&c->in, BUFFER_MAX);
    buf_init(&c->up, BUFFER_MAX);
    buf_init(&c->down, BUFFER_MAX);
    c->next = relay->conns;
    if (c->next)
        c->next->prev = c;
    relay->conns = c;
    relay->n_conns++;
    (void)setsockopt(c->client_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    r = loop_add_io(relay->loop, "rex-client", c->client_fd, EPOLLIN, on_event, c, &c->client);
    if (r >= 0)
        r = loop_add_timer(relay->loop, "rex-head", clock_now_usec() + REX_HEAD_USEC, on_deadline,
                           c, &c->deadline);
    if (r < 0)
        conn_free(c);
    return r;
}

static int on_accept(struct source *s, int fd, uint32_t events, void *userdata)
{
    struct rex_relay *relay = userdata;
    int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    (void)s;
    (void)events;
    if (client < 0)
        return 0;
    if (relay->n_conns >= REX_CONNECTIONS_MAX)
        (void)close(client);
    else
        (void)conn_new(relay, client);
    return 0;
}

static int relay_listen(struct rex_relay *relay, const struct rex_relay_options *options,
                        struct error *err)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(options->port)};
    int on = 1;

    if (inet_pton(AF_INET, options->address, &address.sin_addr) != 1)
        return error_set(err, EINVAL, "'%s' is no IPv4 address", options->address);
    relay->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (relay->fd < 0)
        return error_set(err, errno, "socket: %s", errno_text(errno));
    (void)setsockopt(relay->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(relay->fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
        listen(relay->fd, BACKLOG) < 0)
        return error_set(err, errno, "listen on %s:%u: %s", options->address, options->port,
                         errno_text(errno));
    return 0;
}

int rex_relay_new(const struct rex_relay_options *options, struct rex_relay **ret,
                  struct error *err)
{
    struct rex_relay *relay = calloc(1, sizeof(*relay));
    int r;

    if (!relay)
        return error_set(err, ENOMEM, "out of memory");
    relay->loop = options->loop;
    relay->fd = -EBADF;
    relay->sandbox = strdup(options->sandbox);
    relay->token = strdup(options->token);
    relay->path = strdup(options->socket_path);
    r = relay->sandbox && relay->token && relay->path ? 0 : error_set(err, ENOMEM, "out of memory");
    if (r >= 0)
        r = relay_listen(relay, options, err);
    if (r >= 0) {
        r = loop_add_io(relay->loop, "rex-listen", relay->fd, EPOLLIN, on_accept, relay,
                        &relay->source);
        if (r < 0)
            (void)error_set(err, -r, "listen: %s", errno_text(-r));
    }
    if (r < 0) {
        (void)rex_relay_free(relay);
        return r;
    }
    *ret = relay;
    return 0;
}

struct rex_relay *rex_relay_free(struct rex_relay *relay)
{
    if (!relay)
        return NULL;
    while (relay->conns)
        conn_free(relay->conns);
    (void)source_free(relay->source);
    (void)fd_close(relay->fd);
    free(relay->sandbox);
    free(relay->token);
    free(relay->path);
    free(relay);
    return NULL;
}

uint16_t rex_relay_port(const struct rex_relay *relay)
{
    struct sockaddr_in address = {0};
    socklen_t size = sizeof(address);

    if (getsockname(relay->fd, (struct sockaddr *)&address, &size) < 0)
        return 0;
    return ntohs(address.sin_port);
}
