#include "guest/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/strv.h"
#include "guest/cgroup.h"
#include "guest/clone.h"
#include "guest/confine.h"
#include "guest/event.h"
#include "guest/pty.h"
#include "guest/server.h"

static void spawn_done(struct spawn *sp)
{
    for (unsigned i = 0; i < PROCESS_STREAMS; i++)
        sp->fds[i] = fd_close(sp->fds[i]);
    sp->error_fd = fd_close(sp->error_fd);
    strv_free(sp->argv);
    strv_free(sp->env);
}
#define _cleanup_spawn_ _cleanup_(spawn_done)

static void spawn_init(struct spawn *sp, const struct server *s)
{
    const char *root = s->options.root;

    *sp = (struct spawn){.cwd = "", .user = "", .error_fd = -EBADF, .cgroup_fd = -EBADF};
    sp->root = root && strcmp(root, "/") != 0 ? root : NULL;
    sp->is_init = s->is_init;
    for (unsigned i = 0; i < PROCESS_STREAMS; i++)
        sp->fds[i] = -EBADF;
}

static int add_pipe(struct process *p, struct spawn *sp, unsigned number, bool to_guest,
                    uint32_t ring_max)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    if (to_guest) {
        sp->fds[number] = fds[0];
        return stream_start_input_consume(&p->streams[number], fds[1]);
    }
    sp->fds[number] = fds[1];
    return stream_start_output_consume(&p->streams[number], fds[0], ring_max);
}

static int add_terminal(struct process *p, struct spawn *sp, const Hearth__V1__Tty *tty,
                        uint32_t ring_max)
{
    _cleanup_close_ int master = -EBADF, slave = -EBADF;
    int input, r;

    r = pty_open(p->server->devpts_fd, tty->rows, tty->cols, &master, &slave);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < 3; i++) {
        sp->fds[i] = fcntl(slave, F_DUPFD_CLOEXEC, 0);
        if (sp->fds[i] < 0)
            return -errno;
    }
    input = fcntl(master, F_DUPFD_CLOEXEC, 0);
    if (input < 0)
        return -errno;
    p->tty = sp->tty = true;
    p->streams[0].tty = p->streams[1].tty = true;
    r = stream_start_input_consume(&p->streams[0], input);
    if (r < 0)
        return r;
    return stream_start_output_consume(&p->streams[1], TAKE_FD(master), ring_max);
}

static void on_pid(struct source *source, uint32_t events)
{
    (void)events;
    process_reap(container_of(source, struct process, pid_source));
}

static void on_error_pipe(struct source *source, uint32_t events)
{
    (void)events;
    process_spawned(container_of(source, struct process, error_source));
}

static void run_shared(void *argument)
{
    spawn_child(argument);
}

/*
 * fork(), into the cgroup at once where the kernel can. A program that nothing else runs beside
 * shares our memory until it is executed: it can wait for nobody then but the kernel's own file
 * systems, so we may stand still meanwhile. Not with limits, which could end the child at any
 * point of its work in our heap.
 */
static pid_t fork_into(struct spawn *sp, int cgroup_fd, bool alone)
{
    struct spawn shared = *sp; /* its own: the child moves descriptors in it */
    pid_t pid;

    if (cgroup_fd < 0)
        return fork();
    pid = alone && sp->argv ? clone_shared_into(cgroup_fd, run_shared, &shared)
                            : clone_into(cgroup_fd);
    if (pid == 0)
        spawn_child(sp);
    if (pid >= 0 || (errno != ENOSYS && errno != EINVAL && errno != E2BIG && errno != EOPNOTSUPP))
        return pid;
    sp->cgroup_fd = cgroup_fd;
    return fork();
}

static int start_child(struct process *p, struct spawn *sp, int cgroup_fd, bool alone)
{
    struct poller *poller = &p->server->poller;
    int error_pipe[2], r;

    if (pipe2(error_pipe, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    p->error_fd = error_pipe[0];
    sp->error_fd = error_pipe[1];
    r = source_add(poller, &p->error_source, p->error_fd, EPOLLIN, on_error_pipe);
    if (r < 0)
        return r;
    p->started_usec = clock_now_usec();
    p->started_wall_usec = clock_wall_usec();
    p->pid = fork_into(sp, cgroup_fd, alone);
    if (p->pid < 0)
        return -errno;
    if (p->pid == 0)
        spawn_child(sp);
    p->pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    r = p->pidfd < 0 ? -errno : source_add(poller, &p->pid_source, p->pidfd, EPOLLIN, on_pid);
    if (r < 0) {
        (void)kill(p->pid, SIGKILL);
        return r;
    }
    return 0;
}

static void set_windows(struct process *p, Hearth__V1__StreamLimit *const *windows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t number = windows[i]->stream;

        if (number < PROCESS_STREAMS && p->streams[number].present && !p->streams[number].to_guest)
            stream_set_window(&p->streams[number], windows[i]->offset);
    }
}

/* NUL-terminated copies; `spare` free slots follow the terminating NULL. */
static int copy_strings(const ProtobufCBinaryData *data, size_t n, size_t spare, char ***ret)
{
    char **v;

    if (n > SPAWN_ARGS_MAX)
        return -E2BIG;
    v = calloc(n + spare + 1, sizeof(*v));
    if (!v)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        if (data[i].len > 0 && memchr(data[i].data, '\0', data[i].len)) {
            strv_free(v);
            return -EINVAL;
        }
        v[i] = strndup(data[i].len > 0 ? (const char *)data[i].data : "", data[i].len);
        if (!v[i]) {
            strv_free(v);
            return -ENOMEM;
        }
    }
    *ret = v;
    return 0;
}

/* What List shows: the first bytes of argv. */
static char **cut_argv(char *const *argv)
{
    size_t left = PROCESS_ARGV_SHOWN;
    char **v = NULL;

    for (; *argv && left > 0; argv++) {
        char shown[PROCESS_ARGV_SHOWN + 1];
        size_t n = MIN(strlen(*argv), left);

        memcpy(shown, *argv, n);
        shown[n] = '\0';
        if (strv_append(&v, shown) < 0)
            break;
        left -= MIN(n + 16, left); /* and no thousands of empty ones */
    }
    return v;
}

static int prepare_arguments(const Hearth__V1__Exec *exec, struct spawn *sp, char **ret_cwd,
                             struct error *err)
{
    int r;

    if (exec->n_argv == 0 || exec->argv[0].len == 0)
        return error_set(err, EINVAL, "no command");
    r = copy_strings(exec->argv, exec->n_argv, 0, &sp->argv);
    if (r < 0)
        return error_set(err, -r, r == -EINVAL ? "an argument holds a NUL byte" : "arguments");
    r = copy_strings(exec->env, exec->n_env, SPAWN_ENV_ADDED, &sp->env);
    if (r < 0)
        return error_set(err, -r,
                         r == -EINVAL ? "the environment holds a NUL byte" : "environment");
    for (size_t i = 0; sp->env[i]; i++) {
        const char *equals = strchr(sp->env[i], '=');

        if (!equals || equals == sp->env[i])
            return error_set(err, EINVAL, "environment entry '%.64s' is not KEY=VALUE", sp->env[i]);
    }
    if (exec->cwd.len > 0 && memchr(exec->cwd.data, '\0', exec->cwd.len))
        return error_set(err, EINVAL, "the working directory holds a NUL byte");
    *ret_cwd = strndup(exec->cwd.len > 0 ? (const char *)exec->cwd.data : "", exec->cwd.len);
    if (!*ret_cwd)
        return error_set(err, ENOMEM, "out of memory");
    sp->cwd = *ret_cwd;
    sp->user = exec->user;
    return 0;
}

static int check_streams(const Hearth__V1__Exec *exec, struct error *err)
{
    unsigned seen = 0;

    if (strlen(exec->label) > PROCESS_LABEL_MAX)
        return error_set(err, EINVAL, "label is longer than %u bytes", PROCESS_LABEL_MAX);
    if (exec->ring_size > SPAWN_RING_MAX)
        return error_set(err, EINVAL, "ring of %u bytes is larger than %u", exec->ring_size,
                         SPAWN_RING_MAX);
    for (size_t i = 0; i < exec->n_streams; i++) {
        const Hearth__V1__StreamSpec *spec = exec->streams[i];

        if (spec->fd < 3 || spec->fd >= PROCESS_STREAMS)
            return error_set(err, EINVAL, "stream %u is not between 3 and %u", spec->fd,
                             PROCESS_STREAMS - 1);
        if (seen & 1u << spec->fd)
            return error_set(err, EINVAL, "stream %u is given twice", spec->fd);
        if (spec->to_guest && spec->marked)
            return error_set(err, EINVAL, "stream %u cannot be marked and to the guest", spec->fd);
        seen |= 1u << spec->fd;
    }
    return 0;
}

static int add_streams(struct process *p, struct spawn *sp, const Hearth__V1__Exec *exec)
{
    uint32_t ring = exec->ring_size ? exec->ring_size : SPAWN_RING_DEFAULT;
    int r = 0;

    if (exec->tty) {
        r = add_terminal(p, sp, exec->tty, ring);
    } else {
        if (exec->close_stdin) {
            sp->fds[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
            r = sp->fds[0] < 0 ? -errno : 0;
        } else {
            r = add_pipe(p, sp, 0, true, 0);
        }
        if (r == 0)
            r = add_pipe(p, sp, 1, false, ring);
        if (r == 0)
            r = add_pipe(p, sp, 2, false, ring);
    }
    for (size_t i = 0; r == 0 && i < exec->n_streams; i++) {
        const Hearth__V1__StreamSpec *spec = exec->streams[i];

        r = add_pipe(p, sp, spec->fd, spec->to_guest, ring);
        p->streams[spec->fd].marked = spec->marked;
    }
    return r;
}

static int enter_table(struct server *s, uint32_t channel, struct process **ret, struct error *err)
{
    struct process *p;

    if (process_find_channel(s, channel))
        return error_set(err, EINVAL, "channel %u is in use", channel);
    process_evict(s);
    if (process_count_alive(s) >= PROCESSES_MAX)
        return error_set(err, EAGAIN, "%u processes are running already", PROCESSES_MAX);
    p = process_new(s);
    if (!p)
        return error_set(err, ENOMEM, "out of memory");
    p->channel = channel;
    *ret = p;
    return 0;
}

static void reject(struct server *s, uint32_t channel, struct process *p, int r,
                   const struct error *err)
{
    int code = HEARTH__V1__CODE__CODE_SYSTEM;

    if (p)
        process_free(p);
    if (r == -EINVAL)
        code = HEARTH__V1__CODE__CODE_INVALID;
    else if (r == -EAGAIN || r == -EMFILE || r == -ENFILE)
        code = HEARTH__V1__CODE__CODE_LIMIT;
    else if (r == -E2BIG)
        code = HEARTH__V1__CODE__CODE_ARGUMENTS_TOO_LONG;
    event_error(s, channel, code, -r, "%s", err->text);
}

static int exec_start(struct process *p, struct spawn *sp, const Hearth__V1__Exec *exec,
                      struct error *err)
{
    struct server *s = p->server;
    struct cgroup_limits limits = {0};
    bool alone;
    int r;

    p->label = strdup(exec->label);
    p->argv = cut_argv(sp->argv);
    p->drop_when_full = exec->drop_when_full;
    p->kill_grace_msec = exec->kill_grace_msec;
    r = add_streams(p, sp, exec);
    if (r < 0)
        return error_set(err, -r, "pipes or terminal: %s", errno_text(-r));
    set_windows(p, exec->windows, exec->n_windows);
    if (exec->limits) {
        limits.memory_bytes = exec->limits->memory_bytes;
        limits.pids = exec->limits->pids;
    }
    alone = process_is_alone(p) && limits.memory_bytes == 0 && limits.pids == 0 && !sp->confine;
    if (s->cgroup_fd >= 0) {
        p->cgroup = s->spare_cgroup ? s->spare_cgroup : ++s->last_cgroup;
        s->spare_cgroup = 0;
        p->cgroup_fd = cgroup_create(s->cgroup_fd, p->cgroup, &limits);
        if (p->cgroup_fd < 0)
            return error_set(err, -p->cgroup_fd, "cgroup: %s", errno_text(-p->cgroup_fd));
        p->cgroup_left = true;
    }
    r = start_child(p, sp, p->cgroup_fd, alone);
    if (r < 0)
        return error_set(err, -r, "start '%.128s': %s", sp->argv[0], errno_text(-r));
    if (exec->timeout_msec > 0)
        p->deadline_usec = p->started_usec + exec->timeout_msec * USEC_PER_MSEC;
    return 0;
}

void spawn_exec(struct server *s, uint32_t channel, const Hearth__V1__Exec *exec)
{
    _cleanup_spawn_ struct spawn sp;
    _cleanup_free_ char *cwd = NULL;
    struct process *p = NULL;
    struct error err = {0};
    int r;

    spawn_init(&sp, s);
    r = prepare_arguments(exec, &sp, &cwd, &err);
    if (r == 0)
        r = check_streams(exec, &err);
    if (r == 0 && exec->confine)
        r = confine_check(exec->confine, &err);
    sp.confine = exec->confine;
    sp.no_new_privileges = exec->no_new_privileges;
    if (r == 0)
        r = enter_table(s, channel, &p, &err);
    if (r == 0)
        r = exec_start(p, &sp, exec, &err);
    if (r < 0)
        reject(s, channel, p, r, &err);
}

#define OP_RING (256u * 1024u)

/* Content streams only where the operation has content: a grant for any other confuses the host. */
static int add_op_streams(struct process *p, struct spawn *sp, const Hearth__V1__Request *request)
{
    bool dial = request->op_case == HEARTH__V1__REQUEST__OP_DIAL;
    int r = 0;

    if (dial || request->file->op_case == HEARTH__V1__FILE_OP__OP_WRITE) {
        r = add_pipe(p, sp, 0, true, 0);
    } else {
        sp->fds[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        r = sp->fds[0] < 0 ? -errno : 0;
    }
    if (r == 0 && (dial || request->file->op_case == HEARTH__V1__FILE_OP__OP_READ ||
                   request->file->op_case == HEARTH__V1__FILE_OP__OP_LAYER))
        r = add_pipe(p, sp, 1, false, OP_RING);
    if (r == 0)
        r = add_pipe(p, sp, 3, false, OP_RING);
    return r;
}

void spawn_op(struct server *s, uint32_t channel, const Hearth__V1__Request *request)
{
    _cleanup_spawn_ struct spawn sp;
    struct process *p = NULL;
    struct error err = {0};
    int r;

    spawn_init(&sp, s);
    sp.request = request;
    if (request->op_case == HEARTH__V1__REQUEST__OP_FILE)
        sp.user = request->file->user;
    if (request->op_case == HEARTH__V1__REQUEST__OP_FILE &&
        request->file->op_case == HEARTH__V1__FILE_OP__OP_LAYER) {
        sp.user = "";
        sp.root = NULL; /* layers lie beside the root */
    }
    r = enter_table(s, channel, &p, &err);
    if (r < 0) {
        reject(s, channel, p, r, &err);
        return;
    }
    p->op = true;
    r = add_op_streams(p, &sp, request);
    if (r == 0)
        r = start_child(p, &sp, s->ops_fd, /* alone= */ false);
    if (r < 0) {
        (void)error_set(&err, -r, "start the operation: %s", errno_text(-r));
        reject(s, channel, p, r, &err);
    }
}
