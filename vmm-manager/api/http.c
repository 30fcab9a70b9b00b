#include "api/http.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "api/half-close.h"
#include "api/request.h"
#include "base/clock.h"
#include "base/log.h"

/*
 * Theory of operation. MHD has no thread: its epoll descriptor is an io source of our loop and its
 * nearest time-out a timer; either one runs MHD_run(), which calls back into request.c (access,
 * completed), answer.c (content) and upgrade.c. Outside of these calls a connection either waits
 * for its client, in MHD, or is suspended and waits for us. request_wake() resumes it: MHD signals
 * its own eventfd, our loop sees it through the epoll descriptor, and MHD calls back again.
 */

/*
 * After a crowd the heap has holes of MHD's connections and of what they asked for, which free()
 * keeps. They are given back once it is quiet: it takes some milliseconds.
 */
#define TRIM_CROWD 64u /* connections that have gone */
#define TRIM_DELAY_USEC USEC_PER_SEC

static int on_trim(struct source *s, uint64_t now_usec, void *userdata)
{
    struct http_server *server = userdata;

    (void)s;
    (void)now_usec;
    server->trim = source_free(server->trim);
    server->most = http_server_connections(server);
    (void)malloc_trim(0);
    return 0;
}

static void server_count(struct http_server *server, unsigned connections)
{
    server->most = MAX(server->most, connections);
    if (server->trim || server->most - connections < TRIM_CROWD)
        return;
    if (loop_add_timer(server->loop, "http-trim", clock_now_usec() + TRIM_DELAY_USEC, on_trim,
                       server, &server->trim) < 0)
        log_warning("http: memory is not given back: out of memory, ignoring");
}

/*
 * A server at its limit of connections stops listening, and listens again only at the start of the
 * run after the one that closed a connection.
 */
static bool server_has_room_again(struct http_server *server)
{
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    bool was_full = server->full;

    if (info)
        server_count(server, info->num_connections);
    server->full = info && info->num_connections >= server->connections;
    return was_full && !server->full;
}

static int server_run(struct http_server *server)
{
    MHD_UNSIGNED_LONG_LONG msec;
    uint64_t at = USEC_INFINITY;

    if (MHD_run(server->daemon) != MHD_YES)
        log_warning("http: the server could not serve its connections, ignoring");
    if (server_has_room_again(server))
        at = 0;
    else if (MHD_get_timeout(server->daemon, &msec) == MHD_YES)
        at = clock_now_usec() + (uint64_t)msec * USEC_PER_MSEC;
    return source_set_time(server->timer, at);
}

void server_kick(struct http_server *server)
{
    if (server->timer)
        (void)source_set_time(server->timer, clock_now_usec());
}

static int on_io(struct source *s, int fd, uint32_t events, void *userdata)
{
    (void)s;
    (void)fd;
    (void)events;
    return server_run(userdata);
}

static int on_timer(struct source *s, uint64_t now_usec, void *userdata)
{
    (void)s;
    (void)now_usec;
    return server_run(userdata);
}

static void on_log(void *cls, const char *format, va_list args) _printf_(2, 0);
static void on_log(void *cls, const char *format, va_list args)
{
    char text[256];

    (void)cls;
    if (!log_enabled(LOG_LEVEL_DEBUG))
        return;
    (void)vsnprintf(text, sizeof(text), format, args);
    text[strcspn(text, "\n")] = '\0';
    log_debug("http: %s", text);
}

static void on_connection(void *cls, struct MHD_Connection *conn, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http_server *server = cls;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);

    (void)socket_context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED && info)
        half_close_watch(server->half, info->connect_fd);
}

static struct MHD_Daemon *daemon_start(struct http_server *server,
                                       const struct http_options *options)
{
    unsigned flags =
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_ALLOW_UPGRADE | MHD_USE_ERROR_LOG;

    struct MHD_OptionItem listening[] = {
        {MHD_OPTION_LISTEN_SOCKET, options->listen_fd, NULL},
        {MHD_OPTION_END, 0, NULL},
    };

    if (options->listen_fd < 0) {
        flags |= MHD_USE_NO_LISTEN_SOCKET;
        listening[0].option = MHD_OPTION_END;
    }
    return MHD_start_daemon(
        flags, /* port= */ 0, NULL, NULL, request_access, server, MHD_OPTION_EXTERNAL_LOGGER,
        on_log, NULL, MHD_OPTION_CONNECTION_LIMIT, server->connections,
        MHD_OPTION_CONNECTION_TIMEOUT, server->idle_sec, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HTTP_MEMORY_MAX, MHD_OPTION_URI_LOG_CALLBACK, request_new, server,
        MHD_OPTION_NOTIFY_COMPLETED, request_completed, server, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, server, MHD_OPTION_ARRAY, listening, MHD_OPTION_END);
}

int http_server_new(struct loop *loop, const struct http_options *options, struct http_server **ret,
                    struct error *err)
{
    struct http_server *server = calloc(1, sizeof(*server));
    const union MHD_DaemonInfo *info;
    int r;

    if (!server)
        return error_set(err, ENOMEM, "http: out of memory");
    server->loop = loop;
    server->n_apis = MIN(options->n_apis, (size_t)HTTP_APIS_MAX);
    memcpy(server->apis, options->apis, server->n_apis * sizeof(server->apis[0]));
    server->authorize = options->authorize;
    server->seen = options->seen;
    server->userdata = options->userdata;
    server->cors = options->cors;
    server->listens = options->listen_fd >= 0;
    server->half_is_gone = options->half_is_gone;
    server->connections = options->connections ? options->connections : HTTP_CONNECTIONS_MAX;
    server->idle_sec = options->idle_sec ? options->idle_sec : HTTP_IDLE_SEC;
    r = half_close_new(loop, &server->half);
    if (r < 0) {
        error_fill(err, r, "http: watch for clients that go");
        goto fail;
    }
    server->daemon = daemon_start(server, options);
    if (!server->daemon) {
        r = error_set(err, EIO, "http: libmicrohttpd does not start");
        goto fail;
    }
    info = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info || info->epoll_fd < 0) {
        r = error_set(err, EIO, "http: libmicrohttpd was built without epoll");
        goto fail;
    }
    r = loop_add_io(loop, "http", info->epoll_fd, EPOLLIN, on_io, server, &server->io);
    if (r >= 0)
        r = loop_add_timer(loop, "http-timeout", clock_now_usec(), on_timer, server,
                           &server->timer);
    if (r < 0) {
        error_fill(err, r, "http: add to the event loop");
        goto fail;
    }
    *ret = server;
    return 0;
fail:
    http_server_free(server);
    return r;
}

int http_server_adopt(struct http_server *server, int fd, const void *address,
                      unsigned address_size)
{
    /* It closes what it cannot serve. */
    if (MHD_add_connection(server->daemon, fd, address, (socklen_t)address_size) != MHD_YES)
        return -EAGAIN;
    server_kick(server);
    return 0;
}

void http_server_drain(struct http_server *server)
{
    if (server->draining)
        return;
    server->draining = true;
    if (server->listens)
        (void)MHD_quiesce_daemon(server->daemon); /* the socket is not ours to close */
}

size_t http_server_busy(const struct http_server *server)
{
    size_t count = 0;

    for (const struct request *req = server->requests; req; req = req->next)
        count += req->phase != REQUEST_NEW && !req->out_streaming && !req->upgraded;
    return count;
}

unsigned http_server_connections(const struct http_server *server)
{
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);

    return info ? info->num_connections : 0;
}

struct http_server *http_server_free(struct http_server *server)
{
    if (!server)
        return NULL;
    server->stopping = true;
    while (server->upgrades) {
        struct upgrade *up = server->upgrades;
        /* over() closes it and so takes it off the list. */
        up->over(up->state, REQUEST_STOPPED);
    }
    for (struct request *req = server->requests; req; req = req->next) {
        request_finish(req, REQUEST_STOPPED);
        request_wake(req);
    }
    if (server->daemon) {
        /* MHD lets go of resumed and upgraded connections in
         * its next run only. */
        (void)MHD_run(server->daemon);
        server->io = source_free(server->io);
        server->timer = source_free(server->timer);
        server->trim = source_free(server->trim);
        MHD_stop_daemon(server->daemon);
    }
    server->half = half_close_free(server->half);
    free(server);
    return NULL;
}
