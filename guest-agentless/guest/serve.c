#include "guest/serve.h"

#include <errno.h>
#include <signal.h>

#include "base/fd.h"
#include "guest/listener.h"
#include "guest/server.h"

int guest_serve(int fd, const struct guest_options *options)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    struct conn conn = {.fd = -EBADF};
    struct conn *const conns[] = {&conn};
    struct server s;
    int r;

    (void)sigaction(SIGPIPE, &ignore, NULL);
    r = server_init(&s, options, /* is_init= */ false);
    if (r < 0)
        (void)fd_close(fd);
    else
        r = conn_open_consume(&conn, &s, fd, /* persistent= */ false);
    while (r == 0 && !conn.broken && !s.stop) {
        uint64_t next = server_turn(&s, conns, 1);

        if (!conn.broken && !s.stop)
            r = poller_run(&s.poller, next);
    }
    if (conn.server)
        conn_close(&conn);
    server_done(&s);
    return r;
}

int guest_serve_listener(int fd, const struct guest_options *options)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    struct listener listener;
    struct conn *const conns[] = {&listener.conns[0], &listener.conns[1]};
    struct server s;
    int r;

    (void)sigaction(SIGPIPE, &ignore, NULL);
    r = server_init(&s, options, /* is_init= */ false);
    listener_init(&listener, &s);
    if (r < 0)
        (void)fd_close(fd);
    else
        r = listener_open_consume(&listener, fd, /* host_only= */ false);
    while (r == 0 && !s.stop) {
        uint64_t next = server_turn(&s, conns, ARRAY_SIZE(conns));

        listener_tidy(&listener);
        if (!s.stop)
            r = poller_run(&s.poller, next);
    }
    server_flush(&s, conns, ARRAY_SIZE(conns));
    listener_done(&listener);
    server_done(&s);
    return r;
}
