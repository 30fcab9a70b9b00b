#include "guest/serve.h"

#include <errno.h>
#include <signal.h>

#include "base/fd.h"
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
