#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/strv.h"
#include "pager/base-stat.h"
#include "pager/serve.h"

/*
 * hearth-pager: the page server of one VM. Two processes: one serves; the other only waits for it,
 * and ends the VMM if the server dies of anything but the VMM's own end. So a guest is never left
 * waiting for memory that will not come, and neither of them needs the daemon.
 */
#define HANDOVER_USEC (10 * USEC_PER_SEC)

struct options {
    const char *socket, *snapshot, *store, *templates;
    const char *record, *stats, *log, *base_verified;
    uint64_t connect_usec;
    uid_t uid;
    gid_t gid;
    bool owner, detach, prefetch;
};

struct pager {
    struct options o;
    struct snapshot_store *store;
    struct snapshot *snap;
    struct memory *memory;
    char *working_set;
    int listen_fd;
    int vmm_pipe; /* tells the other process who the VMM is */
};

static const char usage[] =
    "hearth-pager --socket PATH --snapshot DIR --store ROOT --templates DIR [option]…\n"
    "Serves the memory of a snapshot to one VMM that connects to PATH (Firecracker's Uffd "
    "backend).\n"
    "  --record FILE           working set: used when it is there, else recorded "
    "(DIR/working-set)\n"
    "  --no-working-set        neither use nor record one\n"
    "  --stats FILE            counters, as JSON\n"
    "  --log FILE              where messages go once it runs (standard error)\n"
    "  --base-verified STAT    the template's memory was verified when stat() said this of it\n"
    "  --owner UID:GID         who may connect\n"
    "  --connect-timeout MS    for the VMM to connect (30000)\n"
    "  --detach                return when the socket listens, serve in the background\n";

static int parse_owner(const char *text, struct options *o)
{
    const char *colon = strchr(text, ':');
    _cleanup_free_ char *first = colon ? strndup(text, (size_t)(colon - text)) : NULL;
    uint64_t uid, gid;

    if (!first || parse_u64(first, 0, UINT32_MAX - 1, &uid) < 0 ||
        parse_u64(colon + 1, 0, UINT32_MAX - 1, &gid) < 0)
        return -EINVAL;
    o->uid = (uid_t)uid;
    o->gid = (gid_t)gid;
    o->owner = true;
    return 0;
}

enum {
    OPTION_SOCKET = 256,
    OPTION_SNAPSHOT,
    OPTION_STORE,
    OPTION_TEMPLATES,
    OPTION_RECORD,
    OPTION_NO_WORKING_SET,
    OPTION_STATS,
    OPTION_LOG,
    OPTION_BASE_VERIFIED,
    OPTION_OWNER,
    OPTION_CONNECT_TIMEOUT,
    OPTION_DETACH,
    OPTION_HELP,
};

static const struct option long_options[] = {
    {"socket", required_argument, NULL, OPTION_SOCKET},
    {"snapshot", required_argument, NULL, OPTION_SNAPSHOT},
    {"store", required_argument, NULL, OPTION_STORE},
    {"templates", required_argument, NULL, OPTION_TEMPLATES},
    {"record", required_argument, NULL, OPTION_RECORD},
    {"no-working-set", no_argument, NULL, OPTION_NO_WORKING_SET},
    {"stats", required_argument, NULL, OPTION_STATS},
    {"log", required_argument, NULL, OPTION_LOG},
    {"base-verified", required_argument, NULL, OPTION_BASE_VERIFIED},
    {"owner", required_argument, NULL, OPTION_OWNER},
    {"connect-timeout", required_argument, NULL, OPTION_CONNECT_TIMEOUT},
    {"detach", no_argument, NULL, OPTION_DETACH},
    {"help", no_argument, NULL, OPTION_HELP},
    {0},
};

/* 0, or -EINVAL: usage; 1: help was printed. */
static int set_option(struct options *o, int option, const char *value)
{
    uint64_t msec;

    switch (option) {
    case OPTION_SOCKET:
        o->socket = value;
        return 0;
    case OPTION_SNAPSHOT:
        o->snapshot = value;
        return 0;
    case OPTION_STORE:
        o->store = value;
        return 0;
    case OPTION_TEMPLATES:
        o->templates = value;
        return 0;
    case OPTION_RECORD:
        o->record = value;
        return 0;
    case OPTION_NO_WORKING_SET:
        o->prefetch = false;
        return 0;
    case OPTION_STATS:
        o->stats = value;
        return 0;
    case OPTION_LOG:
        o->log = value;
        return 0;
    case OPTION_BASE_VERIFIED:
        o->base_verified = value;
        return 0;
    case OPTION_OWNER:
        return parse_owner(value, o);
    case OPTION_CONNECT_TIMEOUT:
        if (parse_u64(value, 1, 3600 * 1000, &msec) < 0)
            return -EINVAL;
        o->connect_usec = msec * USEC_PER_MSEC;
        return 0;
    case OPTION_DETACH:
        o->detach = true;
        return 0;
    case OPTION_HELP:
        (void)fputs(usage, stdout);
        return 1;
    default:
        return -EINVAL;
    }
}

static int parse_options(struct options *o, int argc, char **argv)
{
    *o = (struct options){.connect_usec = 30 * USEC_PER_SEC, .prefetch = true};
    for (;;) {
        int option = getopt_long(argc, argv, "", long_options, NULL), r;

        if (option < 0)
            break;
        r = set_option(o, option, optarg);
        if (r != 0)
            return r;
    }
    if (optind != argc || !o->socket || !o->snapshot || !o->store || !o->templates)
        return -EINVAL;
    return 0;
}

/* ---- start ---- */

static int open_memory(struct pager *p, struct error *err)
{
    const char *slash = strrchr(p->o.snapshot, '/');
    int r = snapshot_store_open_read_only(p->o.store, p->o.templates, &p->store, err);

    if (r >= 0)
        r = snapshot_open(p->store, slash ? slash + 1 : p->o.snapshot, &p->snap, err);
    if (r >= 0)
        r = base_stat_check(p->snap, p->o.base_verified, err);
    if (r >= 0)
        r = memory_new(p->snap, &p->memory, err);
    if (r < 0)
        return r;
    p->working_set = p->o.record ? strdup(p->o.record)
                                 : string_printf("%s/" SNAPSHOT_WORKING_SET, snapshot_dir(p->snap));
    return p->working_set ? 0 : error_set(err, ENOMEM, "out of memory");
}

static int listen_on(struct pager *p, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = p->o.socket;
    mode_t mask;
    int r;

    if (strlen(path) >= sizeof(address.sun_path))
        return error_set(err, ENAMETOOLONG, "socket '%s': longer than 107 bytes", path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    p->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->listen_fd < 0)
        return error_set(err, errno, "socket: %s", errno_text(errno));
    mask = umask(0177);
    r = bind(p->listen_fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
    (void)umask(mask);
    if (r >= 0 && p->o.owner && lchown(path, p->o.uid, p->o.gid) < 0)
        r = -errno;
    if (r >= 0 && listen(p->listen_fd, 1) < 0)
        r = -errno;
    return r < 0 ? error_set(err, -r, "socket '%s': %s", path, errno_text(-r)) : 0;
}

/* ---- serve ---- */

static int accept_vmm(struct pager *p, int *ret_fd, pid_t *ret_pid, struct error *err)
{
    uint64_t deadline = clock_now_usec() + p->o.connect_usec;
    struct ucred peer;
    socklen_t size = sizeof(peer);
    _cleanup_close_ int fd = -EBADF;

    while (fd < 0) {
        struct pollfd waited = {.fd = p->listen_fd, .events = POLLIN};
        uint64_t now = clock_now_usec();

        if (now >= deadline)
            return error_set(err, ETIMEDOUT, "no VMM connected within %llu ms",
                             (unsigned long long)(p->o.connect_usec / USEC_PER_MSEC));
        (void)poll(&waited, 1, (int)((deadline - now) / USEC_PER_MSEC + 1));
        fd = accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            return error_set(err, errno, "accept: %s", errno_text(errno));
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || peer.pid <= 0)
        return error_set(err, ESRCH, "who connected is not known");
    *ret_fd = TAKE_FD(fd);
    *ret_pid = peer.pid;
    return 0;
}

static int run_server(struct pager *p, struct error *err)
{
    _cleanup_close_ int connection = -EBADF, pidfd = -EBADF;
    struct guest guest;
    struct handover at;
    pid_t pid;
    int uffd, r = accept_vmm(p, &connection, &pid, err);

    if (r < 0)
        return r;
    p->listen_fd = fd_close(p->listen_fd);
    (void)unlink(p->o.socket); /* one VMM, once */
    pidfd = pidfd_open(pid, 0);
    if (pidfd < 0)
        return error_set(err, errno, "the VMM, process %d: %s", (int)pid, errno_text(errno));
    (void)!write(p->vmm_pipe, &pid, sizeof(pid));
    r = handover_receive(connection, memory_pages(p->memory) * (uint64_t)HANDOVER_PAGE,
                         HANDOVER_USEC, &at, &uffd, err);
    if (r < 0)
        return r;
    r = guest_init(&guest, &at, uffd, memory_pages(p->memory));
    if (r < 0)
        return error_set(err, -r, "guest: %s", errno_text(-r));
    r = serve(&(struct serve){.memory = p->memory,
                              .guest = &guest,
                              .pidfd = pidfd,
                              .seal = p->snap->layers[0].manifest.seal,
                              .working_set = p->working_set,
                              .stats_file = p->o.stats,
                              .prefetch = p->o.prefetch},
              err);
    if (r < 0) {
        log_error("VMM %d is killed: %s", (int)pid, err->text);
        (void)pidfd_send_signal(pidfd, SIGKILL, NULL, 0);
    }
    guest_done(&guest);
    return r;
}

/* Waits for the server, and ends the VMM when it died. */
static int supervise(struct pager *p)
{
    int fds[2], status = 0;
    _cleanup_close_ int told = -EBADF, vmm = -EBADF;
    pid_t server, pid = 0;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return log_error_errno(-errno, "Pipe");
    told = fds[0];
    p->vmm_pipe = fds[1];
    server = fork();
    if (server < 0)
        return log_error_errno(-errno, "Fork");
    if (server == 0) {
        struct error err = {0};
        int r = run_server(p, &err);

        if (r < 0)
            log_error("Snapshot '%s': %s", p->o.snapshot, err.text);
        (void)unlink(p->o.socket);
        _exit(r < 0 ? 1 : 0);
    }
    p->vmm_pipe = fd_close(p->vmm_pipe);
    p->listen_fd = fd_close(p->listen_fd);
    if (read(told, &pid, sizeof(pid)) == (ssize_t)sizeof(pid))
        vmm = pidfd_open(pid, 0);
    while (waitpid(server, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (vmm >= 0) {
        if (WIFSIGNALED(status))
            log_error("The page server of '%s' died of signal %d, VMM %d is killed", p->o.snapshot,
                      WTERMSIG(status), (int)pid);
        (void)pidfd_send_signal(vmm, SIGKILL, NULL, 0);
    }
    (void)unlink(p->o.socket);
    return -EIO;
}

static int go_background(const struct options *o, struct error *err)
{
    _cleanup_close_ int in = open("/dev/null", O_RDWR | O_CLOEXEC), out = -EBADF;
    pid_t pid;

    out = open(o->log ? o->log : "/dev/null",
               O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (in < 0 || out < 0)
        return error_set(err, errno, "open '%s': %s", o->log ? o->log : "/dev/null",
                         errno_text(errno));
    if (o->detach) {
        pid = fork();
        if (pid < 0)
            return error_set(err, errno, "fork: %s", errno_text(errno));
        if (pid > 0)
            _exit(0);
        (void)setsid();
    }
    if (o->detach || o->log) {
        (void)dup2(in, STDIN_FILENO);
        (void)dup2(out, STDOUT_FILENO);
        (void)dup2(out, STDERR_FILENO);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct pager p = {.listen_fd = -EBADF, .vmm_pipe = -EBADF};
    struct error err = {0};
    int r = parse_options(&p.o, argc, argv);

    if (r > 0)
        return 0;
    if (r < 0) {
        (void)fputs(usage, stderr);
        return 2;
    }
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    (void)sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    r = open_memory(&p, &err);
    if (r >= 0)
        r = listen_on(&p, &err);
    if (r >= 0)
        r = go_background(&p.o, &err);
    if (r < 0)
        (void)fprintf(stderr, "hearth-pager: %s\n", err.text);
    else
        r = supervise(&p);
    p.memory = memory_free(p.memory);
    p.snap = snapshot_close(p.snap);
    p.store = snapshot_store_close(p.store);
    free(p.working_set);
    p.listen_fd = fd_close(p.listen_fd);
    return r < 0 ? 1 : 0;
}
