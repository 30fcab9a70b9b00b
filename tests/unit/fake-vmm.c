#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "guest/serve.h"

/*
 * A stand-in for a VMM, for tests of the core: a process that holds a real guest server and bridges
 * it to a Unix socket the way QEMU bridges a virtio-serial port. The guest never sees connections
 * come and go, so it lives on when a daemon dies. `mode` makes it misbehave:
 *
 *   normal   serves; SIGUSR1 makes it babble bytes that are no frames, SIGUSR2 drop the connection
 *   vsock    the guest itself takes connections, as on Firecracker, and sees them end
 *   mute     accepts and never answers
 *   panic    ends at the first connection, with a panic in its log
 *
 * fake-vmm SOCKET LOG MODE
 */
static volatile sig_atomic_t asked; /* the signal that came last */

static void on_signal(int signo)
{
    asked = signo;
}

static int serve_guest(void)
{
    int ends[2];
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0) {
        const struct guest_options options = {.fake_identity = true};

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(ends[0]);
        _exit(guest_serve(ends[1], &options) < 0 ? 1 : 0);
    }
    (void)close(ends[1]);
    return ends[0];
}

static int listen_on(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || strlen(path) >= sizeof(address.sun_path))
        return -EINVAL;
    memcpy(address.sun_path, path, strlen(path) + 1);
    (void)unlink(path);
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 8) < 0)
        return -errno;
    return fd;
}

/* Copies what one side has to the other; 0 at its end. */
static ssize_t shovel(int from, int to)
{
    char bytes[65536];
    ssize_t n = read(from, bytes, sizeof(bytes));

    if (n > 0 && fd_write_full(to, bytes, (size_t)n) < 0)
        return 0;
    return n;
}

/* One connection; false when the guest is gone. */
static bool bridge(int connection, int guest)
{
    struct pollfd fds[] = {{.fd = connection, .events = POLLIN}, {.fd = guest, .events = POLLIN}};

    sigset_t unblocked;
    static const char rubbish[] = "this is not a frame, nor is it going to be one, ever";

    (void)sigemptyset(&unblocked);
    for (;;) {
        int n = ppoll(fds, 2, NULL, &unblocked), signo = asked;

        asked = 0;
        if (signo == SIGUSR1)
            (void)fd_write_full(connection, rubbish, sizeof(rubbish));
        if (signo == SIGUSR2)
            return true;
        if (n < 0)
            continue;
        if (fds[1].revents && shovel(guest, connection) <= 0)
            return fds[1].revents & POLLIN && !(fds[1].revents & POLLHUP);
        if (fds[0].revents && shovel(connection, guest) <= 0)
            return true;
    }
}

int main(int argc, char **argv)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN}, note = {.sa_handler = on_signal};
    sigset_t blocked;
    int listener, guest, log;

    if (argc != 4)
        return 2;
    (void)sigaction(SIGPIPE, &ignore, NULL);
    (void)sigaction(SIGUSR1, &note, NULL);
    (void)sigaction(SIGUSR2, &note, NULL);
    (void)sigemptyset(&blocked); /* seen by ppoll() only, so that none is lost before it waits */
    (void)sigaddset(&blocked, SIGUSR1);
    (void)sigaddset(&blocked, SIGUSR2);
    (void)sigprocmask(SIG_BLOCK, &blocked, NULL);
    log = open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    (void)dprintf(log, "[    0.000000] fake guest, mode %s\n", argv[3]);
    if (strcmp(argv[3], "vsock") == 0) {
        const struct guest_options options = {.fake_identity = true};

        listener = listen_on(argv[1]);
        return listener < 0 || guest_serve_listener(listener, &options) < 0 ? 1 : 0;
    }
    guest = serve_guest();
    listener = listen_on(argv[1]);
    if (guest < 0 || listener < 0)
        return 1;
    for (;;) {
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

        if (connection < 0)
            continue;
        if (strcmp(argv[3], "panic") == 0) {
            (void)dprintf(log, "[    1.0] Kernel panic - not syncing: test\n");
            return 1;
        }
        if (strcmp(argv[3], "mute") == 0) {
            char byte;

            while (read(connection, &byte, 1) > 0)
                continue;
        } else if (!bridge(connection, guest)) {
            (void)dprintf(log, "[    9.0] reboot: Power down\n");
            return 0;
        }
        (void)close(connection);
    }
}
