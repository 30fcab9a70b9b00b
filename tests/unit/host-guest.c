#include "host-guest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/serve.h"
#include "harness/test.h"

static void on_broken(struct console *c, const struct error *reason, void *userdata)
{
    struct guest *g = userdata;

    (void)c;
    g->broken++;
    g->reason = *reason;
}

static void on_opened(struct console *c, const struct error *err, void *userdata)
{
    struct guest *g = userdata;

    (void)c;
    if (!err)
        g->opened++;
}

static void connect_console(struct guest *g)
{
    unsigned before = g->opened;

    ASSERT_OK(console_new(g->loop, "guest", on_broken, g, &g->console));
    ASSERT_OK(console_open_consume(g->console,
                                   g->listens ? guest_connect(g) : fcntl(g->fd, F_DUPFD_CLOEXEC, 3),
                                   clock_now_usec() + 20 * USEC_PER_SEC, on_opened, g));
    GUEST_WAIT(g, g->opened > before);
}

void guest_start(struct guest *g, bool thawed)
{
    int fds[2];

    *g = (struct guest){.fd = -EBADF};
    ASSERT_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
    g->pid = fork();
    ASSERT_OK(g->pid);
    if (g->pid == 0) {
        struct guest_options options = {.thawed_from_start = thawed, .fake_identity = true};

        close(fds[0]);
        _exit(guest_serve(fds[1], &options) < 0 ? 1 : 0);
    }
    close(fds[1]);
    g->fd = fds[0];
    ASSERT_OK(loop_new(&g->loop));
    connect_console(g);
}

int guest_connect(struct guest *g)
{
    struct sockaddr_un address;
    socklen_t size = sizeof(address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ASSERT_OK(fd);
    ASSERT_OK(getsockname(g->fd, (struct sockaddr *)&address, &size));
    ASSERT_OK(connect(fd, (struct sockaddr *)&address, size));
    return fd;
}

void guest_start_listening(struct guest *g)
{
    const struct sockaddr_un any = {.sun_family = AF_UNIX}; /* the kernel picks a name */

    *g = (struct guest){.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), .listens = true};
    ASSERT_OK(g->fd);
    ASSERT_OK(bind(g->fd, (const struct sockaddr *)&any, sizeof(any.sun_family)));
    ASSERT_OK(listen(g->fd, 8));
    g->pid = fork();
    ASSERT_OK(g->pid);
    if (g->pid == 0) {
        struct guest_options options = {.thawed_from_start = true, .fake_identity = true};

        _exit(guest_serve_listener(g->fd, &options) < 0 ? 1 : 0);
    }
    ASSERT_OK(loop_new(&g->loop));
    connect_console(g);
}

/* A server that listens does not end with a connection. */
static void power_off(struct guest *g)
{
    guest_reconnect(g);
    ASSERT_OK(console_power_off(g->console, 0, clock_now_usec() + 20 * USEC_PER_SEC, NULL, NULL));
    while (!g->broken)
        guest_turn(g);
}

void guest_reconnect(struct guest *g)
{
    g->console = console_free(g->console);
    connect_console(g);
}

void guest_stop(struct guest *g)
{
    int status;

    if (g->listens)
        power_off(g);
    g->console = console_free(g->console);
    g->loop = loop_free(g->loop);
    g->fd = fd_close(g->fd);
    ASSERT_EQ(waitpid(g->pid, &status, 0), g->pid);
    ASSERT_EQ(status, 0);
}

void guest_turn(struct guest *g)
{
    ASSERT_OK(loop_run_once(g->loop, 100 * USEC_PER_MSEC));
}
