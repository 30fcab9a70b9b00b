#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/console.h"
#include "guest/modules.h"
#include "guest/mount.h"
#include "guest/reap.h"
#include "guest/rootfs.h"
#include "guest/server.h"
#include "guest/transport.h"

/*
 * hearth-init, PID 1 of the guest. Boots (modules, drives, root, transport), then serves for ever.
 * What it cannot do at boot is one line on the console, "hearth-init: fatal: REASON", and the guest
 * powers off, so that the host sees an end and a reason instead of silence.
 */

#define MODULES_DIR "/modules"
#define CMDLINE_MAX 4096u
#define PORT_USEC (20 * USEC_PER_SEC)
#define OWN_FILES 65536u

/* Machines without a power switch (no ACPI) end by a reset instead. */
static bool off_by_reset(void)
{
    _cleanup_close_ int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
    char text[CMDLINE_MAX] = "";
    ssize_t n = fd < 0 ? 0 : fd_read_full(fd, text, sizeof(text) - 1);

    text[n > 0 ? n : 0] = '\0';
    return strstr(text, "hearth.off=reset") != NULL;
}

static _Noreturn void turn_off(void)
{
    (void)reboot(off_by_reset() ? RB_AUTOBOOT : RB_POWER_OFF);
    for (;;)
        (void)pause();
}

static _Noreturn void die(const struct error *err)
{
    console_say("fatal: %s", err->text);
    console_drain();
    sync();
    turn_off();
}

static void loopback_up(void)
{
    _cleanup_close_ int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {.ifr_name = "lo"};

    if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &request) < 0)
        return;
    request.ifr_flags = (short)(request.ifr_flags | IFF_UP);
    (void)ioctl(fd, SIOCSIFFLAGS, &request);
}

/* For want of memory the kernel never kills PID 1. */
static void protect_self(void)
{
    struct rlimit limit = {.rlim_cur = OWN_FILES, .rlim_max = 524288};
    struct sigaction ignore = {.sa_handler = SIG_IGN};

    (void)setrlimit(RLIMIT_NOFILE, &limit);
    (void)sigaction(SIGPIPE, &ignore, NULL);
}

/* In a child, because it enters the root. */
static int prepare_rootfs(struct error *err)
{
    struct error reason = {0};
    int fds[2], status;
    ssize_t n;
    pid_t pid;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return error_set(err, errno, "pipe: %s", errno_text(errno));
    pid = fork();
    if (pid < 0)
        return error_set(err, errno, "fork: %s", errno_text(errno));
    if (pid == 0) {
        int r = rootfs_prepare(NEWROOT, &reason);

        if (r < 0)
            (void)!write(fds[1], &reason, sizeof(reason));
        _exit(r < 0 ? 1 : 0);
    }
    (void)fd_close(fds[1]);
    n = fd_read_full(fds[0], &reason, sizeof(reason));
    (void)fd_close(fds[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (n == (ssize_t)sizeof(reason)) {
        error_copy(err, &reason);
        return -reason.errnum;
    }
    return status == 0 ? 0 : error_set(err, EIO, "preparing the root failed");
}

static int boot(struct server *s, struct reaper *reaper, struct transport *t, struct error *err)
{
    static const struct guest_options options = {
        .root = NEWROOT, .cgroup_dir = CGROUP_DIR, .new_layer = mount_new_layer};
    int r;

    r = mount_own(err);
    if (r < 0)
        return r;
    protect_self();
    r = modules_load(MODULES_DIR, err);
    if (r == 0)
        r = mount_root(err);
    if (r == 0)
        r = mount_inside(err);
    if (r == 0)
        r = prepare_rootfs(err);
    if (r < 0)
        return r;
    loopback_up();
    r = server_init(s, &options, /* is_init= */ true);
    if (r < 0)
        return error_set(err, -r, "start the server: %s", errno_text(-r));
    s->devpts_fd = open(NEWROOT "/dev/pts", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->devpts_fd < 0)
        return error_set(err, errno, "open " NEWROOT "/dev/pts: %s", errno_text(errno));
    r = reaper_init(reaper, s);
    if (r < 0)
        return error_set(err, -r, "signals: %s", errno_text(-r));
    r = transport_open(t, s, clock_now_usec() + PORT_USEC);
    if (r < 0)
        return error_set(err, -r, "no way to the host: neither a port '%s' nor a vsock device",
                         "hearth.console");
    return 0;
}

static void serve(struct server *s, struct transport *t)
{
    while (!s->stop) {
        uint64_t next = server_turn(s, t->conns, ARRAY_SIZE(t->conns));

        transport_tidy(t);
        if (!s->stop && poller_run(&s->poller, next) < 0)
            console_say("epoll failed");
    }
    /* The answer to PowerOff should still get out. */
    server_flush(s, t->conns, ARRAY_SIZE(t->conns));
}

int main(void)
{
    static struct server server;
    static struct reaper reaper;
    static struct transport transport;
    struct error err = {0};

    if (getpid() != 1) {
        (void)!write(STDERR_FILENO, "hearth-init is PID 1 of a guest\n", 32);
        return 2;
    }
    if (boot(&server, &reaper, &transport, &err) < 0)
        die(&err);
    serve(&server, &transport);
    (void)kill(-1, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0)
        ;
    mount_undo();
    turn_off();
}
