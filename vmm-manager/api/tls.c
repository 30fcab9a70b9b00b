#include "api/tls.h"

#include <errno.h>
#include <gnutls/gnutls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"

/*
 * Theory of operation. A connection has two sockets and a piece in each direction. A piece is
 * filled only when it is empty and taken away only when it is written, so nothing grows, and
 * gnutls, which wants the same bytes again after "try again", gets them. After every event pump()
 * does what can be done and says which events it waits for. The end of either side ends both, once
 * what was under way to the client is out.
 */
#define PIECE_SIZE (16u * 1024u) /* what a TLS record holds */
#define HANDSHAKE_USEC (10 * USEC_PER_SEC)
#define ACCEPTS_PER_EVENT 32u
#define MOVES_PER_EVENT 16u
/* No version of TLS that has been given up. */
#define PRIORITIES "NORMAL:-VERS-TLS1.0:-VERS-TLS1.1"

struct piece {
    uint8_t data[PIECE_SIZE];
    size_t start, size;
};

struct tls_connection {
    struct tls_front *front;            /* weak */
    struct tls_connection *prev, *next; /* in front->connections */
    gnutls_session_t session;           /* owned */
    int net, plain;                     /* owned */
    struct source *net_io, *plain_io;   /* owned */
    struct source *deadline;            /* owned: of the hand-shake */
    uint32_t net_events, plain_events;
    struct piece in, out; /* to the server, to the client */
    bool ready;           /* hands are shaken */
    bool net_ended, plain_ended, broken;
    struct sockaddr_storage peer;
    socklen_t peer_size;
};

struct tls_front {
    struct loop *loop;      /* weak */
    int listen_fd;          /* the caller's */
    struct source *accepts; /* owned */
    struct tls_options options;
    gnutls_certificate_credentials_t credentials; /* owned */
    gnutls_priority_t priorities;                 /* owned */
    struct tls_connection *connections;           /* owned list */
    size_t n_connections;
};

/* ---- a connection ---- */

static void connection_free(struct tls_connection *c)
{
    struct tls_front *front = c->front;

    if (c->prev)
        c->prev->next = c->next;
    else
        front->connections = c->next;
    if (c->next)
        c->next->prev = c->prev;
    front->n_connections--;
    c->net_io = source_free(c->net_io);
    c->plain_io = source_free(c->plain_io);
    c->deadline = source_free(c->deadline);
    if (c->session)
        gnutls_deinit(c->session);
    c->net = fd_close(c->net);
    c->plain = fd_close(c->plain);
    free(c);
}

static bool again(ssize_t n)
{
    return n == GNUTLS_E_AGAIN || n == GNUTLS_E_INTERRUPTED;
}

/* Each of these moves one piece on; false: nothing to do for now. */
static bool read_net(struct tls_connection *c)
{
    ssize_t n;

    if (c->in.size > 0 || c->net_ended)
        return false;
    n = gnutls_record_recv(c->session, c->in.data, sizeof(c->in.data));
    if (n > 0) {
        c->in.start = 0;
        c->in.size = (size_t)n;
        return true;
    }
    if (n == 0 || n == GNUTLS_E_PREMATURE_TERMINATION)
        c->net_ended = true;
    else if (!again(n) && gnutls_error_is_fatal((int)n))
        c->broken = true;
    return n < 0 && !again(n) && !c->broken && !c->net_ended; /* a warning: once more */
}

static bool write_plain(struct tls_connection *c)
{
    ssize_t n;

    if (c->in.size == 0)
        return false;
    n = send(c->plain, c->in.data + c->in.start, c->in.size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            c->broken = true;
        return false;
    }
    c->in.start += (size_t)n;
    c->in.size -= (size_t)n;
    return true;
}

static bool read_plain(struct tls_connection *c)
{
    ssize_t n;

    if (c->out.size > 0 || c->plain_ended)
        return false;
    n = recv(c->plain, c->out.data, sizeof(c->out.data), MSG_DONTWAIT);
    if (n > 0) {
        c->out.start = 0;
        c->out.size = (size_t)n;
        return true;
    }
    if (n == 0 || (errno != EAGAIN && errno != EINTR))
        c->plain_ended = true;
    return false;
}

static bool write_net(struct tls_connection *c)
{
    ssize_t n;

    if (c->out.size == 0)
        return false;
    n = gnutls_record_send(c->session, c->out.data + c->out.start, c->out.size);
    if (n < 0) {
        if (!again(n))
            c->broken = true;
        return false;
    }
    c->out.start += (size_t)n;
    c->out.size -= (size_t)n;
    return true;
}

static void shake_hands(struct tls_connection *c)
{
    int r = gnutls_handshake(c->session);

    if (r == GNUTLS_E_SUCCESS) {
        c->ready = true;
        c->deadline = source_free(c->deadline);
    } else if (!again(r) && gnutls_error_is_fatal(r)) {
        log_debug("tls: hand-shake: %s", gnutls_strerror(r));
        c->broken = true;
    }
}

static void set_events(struct source *io, uint32_t *have, uint32_t want)
{
    if (*have == want)
        return;
    *have = want;
    (void)source_set_io_events(io, want);
}

/* What can be done, then what to wait for. May free the connection. */
static void pump(struct tls_connection *c)
{
    bool moved = true;

    if (!c->ready)
        shake_hands(c);
    for (unsigned i = 0; c->ready && moved && !c->broken && i < MOVES_PER_EVENT; i++) {
        moved = read_net(c);
        moved = write_plain(c) || moved;
        moved = read_plain(c) || moved;
        moved = write_net(c) || moved;
    }
    if (c->plain_ended && c->out.size == 0 && !c->broken) {
        (void)gnutls_bye(c->session, GNUTLS_SHUT_WR);
        c->broken = true;
    }
    if (c->broken || (c->net_ended && c->in.size == 0)) {
        connection_free(c);
        return;
    }
    /* Turns for others, but records that gnutls has already read wake nobody: go on with these. */
    bool writes = c->out.size > 0 || moved || gnutls_record_check_pending(c->session) > 0 ||
                  (!c->ready && gnutls_record_get_direction(c->session) == 1);
    set_events(c->net_io, &c->net_events,
               (c->in.size == 0 ? EPOLLIN : 0) | (writes ? EPOLLOUT : 0));
    set_events(c->plain_io, &c->plain_events,
               (c->ready && c->out.size == 0 ? EPOLLIN : 0) | (c->in.size > 0 ? EPOLLOUT : 0));
}

/* The server has closed its end: its last words, as far as the client takes them at once. */
static void connection_flush(struct tls_connection *c)
{
    bool moved = c->ready && !c->broken;

    for (unsigned i = 0; moved && !c->broken && i < MOVES_PER_EVENT; i++) {
        moved = read_plain(c);
        moved = write_net(c) || moved;
    }
    if (c->ready && !c->broken && c->out.size == 0)
        (void)gnutls_bye(c->session, GNUTLS_SHUT_WR);
}

static int on_io(struct source *s, int fd, uint32_t events, void *userdata)
{
    struct tls_connection *c = userdata;

    (void)s;
    if (fd == c->net && (events & (EPOLLHUP | EPOLLERR)))
        c->broken = true;
    pump(c);
    return 0;
}

static int on_deadline(struct source *s, uint64_t now_usec, void *userdata)
{
    (void)s;
    (void)now_usec;
    connection_free(userdata);
    return 0;
}

/* ---- accepting ---- */

static int connection_start(struct tls_connection *c)
{
    struct tls_front *front = c->front;
    int pair[2], r;

    if (gnutls_init(&c->session, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL) < 0 ||
        gnutls_priority_set(c->session, front->priorities) < 0 ||
        gnutls_credentials_set(c->session, GNUTLS_CRD_CERTIFICATE, front->credentials) < 0)
        return -ENOMEM;
    gnutls_transport_set_int(c->session, c->net);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return -errno;
    c->plain = pair[0];
    c->net_events = EPOLLIN;
    r = loop_add_io(front->loop, "tls", c->net, c->net_events, on_io, c, &c->net_io);
    if (r >= 0)
        r = loop_add_io(front->loop, "tls-plain", c->plain, 0, on_io, c, &c->plain_io);
    if (r >= 0)
        r = loop_add_timer(front->loop, "tls-handshake", clock_now_usec() + HANDSHAKE_USEC,
                           on_deadline, c, &c->deadline);
    if (r < 0) {
        (void)fd_close(pair[1]);
        return r;
    }
    return front->options.adopt(pair[1], &c->peer, c->peer_size, front->options.userdata);
}

static void connection_new(struct tls_front *front, int net, const struct sockaddr_storage *peer,
                           socklen_t peer_size)
{
    struct tls_connection *c = malloc(sizeof(*c)); /* its pieces need no zeroes */

    if (!c) {
        (void)fd_close(net);
        return;
    }
    memset(c, 0, offsetof(struct tls_connection, in));
    c->in.start = c->in.size = c->out.start = c->out.size = 0;
    c->ready = c->net_ended = c->plain_ended = c->broken = false;
    c->front = front;
    c->net = net;
    c->plain = -EBADF;
    c->peer = *peer;
    c->peer_size = peer_size;
    c->next = front->connections;
    if (c->next)
        c->next->prev = c;
    front->connections = c;
    front->n_connections++;
    int r = connection_start(c);
    if (r < 0) {
        log_debug("tls: a connection could not be served: %s", errno_text(-r));
        connection_free(c);
    }
}

static int on_accept(struct source *s, int fd, uint32_t events, void *userdata)
{
    struct tls_front *front = userdata;

    (void)s;
    (void)events;
    for (unsigned i = 0; i < ACCEPTS_PER_EVENT; i++) {
        struct sockaddr_storage peer = {0};
        socklen_t size = sizeof(peer);
        int net = accept4(fd, (struct sockaddr *)&peer, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (net < 0)
            break;
        if (front->n_connections >= TLS_CONNECTIONS_MAX)
            (void)fd_close(net);
        else
            connection_new(front, net, &peer, size);
    }
    return 0;
}

/* ---- life ---- */

static int load_credentials(struct tls_front *front, const struct tls_options *options,
                            struct error *err)
{
    const gnutls_datum_t cert = {(unsigned char *)(uintptr_t)options->cert,
                                 (unsigned)strlen(options->cert)};
    const gnutls_datum_t key = {(unsigned char *)(uintptr_t)options->key,
                                (unsigned)strlen(options->key)};
    int r = gnutls_certificate_allocate_credentials(&front->credentials);

    if (r >= 0)
        r = gnutls_certificate_set_x509_key_mem(front->credentials, &cert, &key,
                                                GNUTLS_X509_FMT_PEM);
    if (r >= 0)
        r = gnutls_priority_init(&front->priorities, PRIORITIES, NULL);
    return r < 0 ? error_set(err, EINVAL, "TLS: certificate and key: %s", gnutls_strerror(r)) : 0;
}

int tls_front_new(struct loop *loop, const struct tls_options *options, struct tls_front **ret,
                  struct error *err)
{
    struct tls_front *front = calloc(1, sizeof(*front));
    int r;

    if (!front)
        return error_set(err, ENOMEM, "TLS: out of memory");
    front->loop = loop;
    front->listen_fd = options->listen_fd;
    front->options = *options;
    r = load_credentials(front, options, err);
    front->options.cert = front->options.key = NULL;
    if (r >= 0) {
        r = loop_add_io(loop, "tls-accept", front->listen_fd, EPOLLIN, on_accept, front,
                        &front->accepts);
        if (r < 0)
            (void)error_set(err, -r, "TLS: %s", errno_text(-r));
    }
    if (r < 0) {
        (void)tls_front_free(front);
        return r;
    }
    *ret = front;
    return 0;
}

void tls_front_drain(struct tls_front *front)
{
    front->accepts = source_free(front->accepts);
}

struct tls_front *tls_front_free(struct tls_front *front)
{
    if (!front)
        return NULL;
    front->accepts = source_free(front->accepts);
    while (front->connections) {
        connection_flush(front->connections);
        connection_free(front->connections);
    }
    if (front->priorities)
        gnutls_priority_deinit(front->priorities);
    if (front->credentials)
        gnutls_certificate_free_credentials(front->credentials);
    free(front);
    return NULL;
}
