#include "guest/control.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "guest/cgroup.h"
#include "guest/event.h"
#include "guest/identity.h"
#include "guest/server.h"
#include "guest/spawn.h"

#define THAW_USEC (20 * USEC_PER_SEC)
#define FREEZE_USEC (10 * USEC_PER_SEC)
#define SYNC_USEC (120 * USEC_PER_SEC)
#define KILL_USEC (5 * USEC_PER_SEC)

void control_init(struct control *c)
{
    *c = (struct control){
        .deadline_usec = USEC_INFINITY, .pidfd = -EBADF, .result_fd = -EBADF, .events_fd = -EBADF};
}

static void drop_helper(struct server *s)
{
    struct control *c = &s->control;

    source_remove(&s->poller, &c->pid_source);
    c->pidfd = fd_close(c->pidfd);
    c->result_fd = fd_close(c->result_fd);
    c->pid = 0;
}

static void drop_events(struct server *s)
{
    source_remove(&s->poller, &s->control.events_source);
    s->control.events_fd = fd_close(s->control.events_fd);
}

static void control_idle(struct server *s)
{
    drop_helper(s);
    drop_events(s);
    s->control.step = CONTROL_IDLE;
    s->control.channel = 0;
    s->control.deadline_usec = USEC_INFINITY;
}

void control_done(struct server *s)
{
    if (s->control.pid > 0) {
        (void)kill(s->control.pid, SIGKILL);
        (void)waitpid(s->control.pid, NULL, 0);
    }
    control_idle(s);
}

static void control_fail(struct server *s, int errnum, const char *text)
{
    event_error(s, s->control.channel, HEARTH__V1__CODE__CODE_SYSTEM, errnum, "%s", text);
    control_idle(s);
}

static bool control_begin(struct server *s, uint32_t channel, enum control_step step,
                          uint64_t within_usec)
{
    struct control *c = &s->control;

    if (c->step != CONTROL_IDLE) {
        event_error(s, channel, HEARTH__V1__CODE__CODE_INVALID, EBUSY,
                    "another thaw, freeze or power-off is under way");
        return false;
    }
    c->step = step;
    c->channel = channel;
    c->deadline_usec = clock_now_usec() + within_usec;
    return true;
}

/* ---- steps that follow a helper's or a cgroup's news ---- */

static void thaw_finish(struct server *s)
{
    struct control *c = &s->control;
    int r = c->freezer ? cgroup_write(s->cgroup_fd, "cgroup.freeze", "0") : 0;

    if (r < 0) {
        control_fail(s, -r, "thaw: let the processes go");
        return;
    }
    if (c->frozen_usec != 0)
        process_shift_timers(s, clock_now_usec() - c->frozen_usec);
    c->frozen_usec = 0;
    c->freezer = false;
    s->thawed = true;
    event_done(s, c->channel);
    control_idle(s);
}

static void unfreeze(struct server *s)
{
    s->control.frozen_usec = 0;
    s->thawed = true;
    if (s->control.freezer)
        (void)cgroup_write(s->cgroup_fd, "cgroup.freeze", "0");
    s->control.freezer = false;
}

static void off_finish(struct server *s)
{
    event_done(s, s->control.channel);
    control_idle(s);
    s->stop = true;
    s->power_off = true;
}

static void helper_ended(struct server *s, int status)
{
    struct control *c = &s->control;
    bool ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    struct spawn_failure failure = {.message = "a helper of the guest failed"};

    if (!ok && c->result_fd >= 0)
        (void)!read(c->result_fd, &failure, sizeof(failure));
    failure.message[sizeof(failure.message) - 1] = '\0';
    drop_helper(s);
    switch (c->step) {
    case CONTROL_THAW:
        if (ok)
            thaw_finish(s);
        else
            control_fail(s, failure.errnum, failure.message);
        return;
    case CONTROL_SYNCING:
        if (ok) {
            event_done(s, c->channel);
            if (s->active && c->channel != 0) /* 0: the one who asked is gone */
                conn_stand_still(s->active);
            control_idle(s);
        } else {
            unfreeze(s);
            control_fail(s, EIO, "freeze: sync failed");
        }
        return;
    case CONTROL_OFF_SYNC:
        off_finish(s);
        return;
    case CONTROL_IDLE:
    case CONTROL_FREEZING:
    case CONTROL_TERM:
    case CONTROL_KILL:
        return;
    }
}

bool control_reap(struct server *s)
{
    int status;

    if (s->control.pid <= 0 || waitpid(s->control.pid, &status, WNOHANG) != s->control.pid)
        return false;
    helper_ended(s, status);
    return true;
}

static void on_helper(struct source *source, uint32_t events)
{
    struct control *c = container_of(source, struct control, pid_source);

    (void)events;
    (void)control_reap(container_of(c, struct server, control));
}

static const char *root_of(const struct server *s)
{
    return s->options.root ? s->options.root : "/";
}

/* Runs thaw (given, it came just now) or sync (NULL) in a child outside the users' cgroups. */
static int start_helper(struct server *s, const Hearth__V1__Thaw *thaw)
{
    uint64_t began_usec = clock_now_usec();
    struct control *c = &s->control;
    struct error err = {0};
    int fds[2], r;

    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    c->pid = fork();
    if (c->pid == 0) {
        if (thaw) {
            r = identity_apply(thaw, began_usec, root_of(s), &err);
            if (r < 0)
                spawn_fail(fds[1], HEARTH__V1__CODE__CODE_SYSTEM, -r, "%s", err.text);
        } else if (!s->options.fake_identity) {
            sync();
        }
        _exit(0);
    }
    r = c->pid < 0 ? -errno : 0;
    (void)fd_close(fds[1]);
    c->result_fd = fds[0];
    if (r < 0) {
        c->pid = 0;
        return r;
    }
    c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
    if (c->pidfd < 0)
        return -errno;
    return source_add(&s->poller, &c->pid_source, c->pidfd, EPOLLIN, on_helper);
}

/* Reading through the watched descriptor is what makes the next change an event. */
static bool events_say(struct control *c, const char *what)
{
    char text[256];
    ssize_t n = c->events_fd < 0 ? -1 : pread(c->events_fd, text, sizeof(text) - 1, 0);

    if (n < 0)
        return false;
    text[n] = '\0';
    return strstr(text, what) != NULL;
}

static void start_sync(struct server *s, enum control_step step)
{
    int r;

    s->control.step = step;
    s->control.deadline_usec = clock_now_usec() + SYNC_USEC;
    r = start_helper(s, NULL);
    if (r == 0)
        return;
    drop_helper(s);
    if (step == CONTROL_OFF_SYNC) {
        off_finish(s);
        return;
    }
    unfreeze(s);
    control_fail(s, -r, "freeze: start the sync");
}

static bool all_gone(struct server *s)
{
    if (s->control.events_fd >= 0)
        return events_say(&s->control, "populated 0");
    return process_count_alive(s) == 0;
}

static void start_kill(struct server *s)
{
    s->control.step = CONTROL_KILL;
    s->control.deadline_usec = clock_now_usec() + KILL_USEC;
    if (s->cgroup_fd < 0 || cgroup_write(s->cgroup_fd, "cgroup.kill", "1") < 0)
        process_kill_all(s, SIGKILL);
}

void control_run(struct server *s, uint64_t now_usec)
{
    struct control *c = &s->control;
    bool late = c->deadline_usec <= now_usec;

    switch (c->step) {
    case CONTROL_IDLE:
        break;
    case CONTROL_FREEZING:
        if (events_say(c, "frozen 1")) {
            drop_events(s);
            start_sync(s, CONTROL_SYNCING);
        } else if (late) {
            unfreeze(s);
            control_fail(s, ETIMEDOUT, "freeze: a process does not stop");
        }
        break;
    case CONTROL_TERM:
        if (!late && !all_gone(s))
            break;
        start_kill(s);
        late = false;
        /* Nothing may be left to kill, and then no event tells so. */
        __attribute__((fallthrough));
    case CONTROL_KILL:
        if (late || all_gone(s)) {
            drop_events(s);
            start_sync(s, CONTROL_OFF_SYNC);
        }
        break;
    case CONTROL_THAW:
    case CONTROL_SYNCING:
    case CONTROL_OFF_SYNC:
        if (late && c->pid > 0) {
            (void)kill(c->pid, SIGKILL);
            c->deadline_usec = USEC_INFINITY;
        }
        break;
    }
}

/* The work is done by control_run(), which every turn of the loop calls. */
static void on_events(struct source *source, uint32_t events)
{
    (void)source;
    (void)events;
}

static int watch_events(struct server *s)
{
    struct control *c = &s->control;

    if (s->cgroup_fd < 0)
        return 0;
    c->events_fd = openat(s->cgroup_fd, "cgroup.events", O_RDONLY | O_CLOEXEC);
    if (c->events_fd < 0)
        return -errno;
    return source_add(&s->poller, &c->events_source, c->events_fd, EPOLLPRI, on_events);
}

/* ---- requests ---- */

void control_thaw(struct server *s, uint32_t channel, const Hearth__V1__Thaw *thaw)
{
    struct error err = {0};
    int r;

    if (identity_check(thaw, &err) < 0) {
        event_error(s, channel, HEARTH__V1__CODE__CODE_INVALID, EINVAL, "%s", err.text);
        return;
    }
    if (!control_begin(s, channel, CONTROL_THAW, THAW_USEC))
        return;
    if (s->options.fake_identity) {
        thaw_finish(s);
        return;
    }
    if (s->is_init && !s->control.freezer && process_none_left(s)) {
        r = identity_apply(thaw, clock_now_usec(), root_of(s), &err);
        if (r < 0)
            control_fail(s, -r, err.text);
        else
            thaw_finish(s);
        return;
    }
    r = start_helper(s, thaw);
    if (r < 0)
        control_fail(s, -r, "thaw: start the helper");
}

/* The next process's cgroup, made now and not by every clone. */
static void prepare_cgroup(struct server *s)
{
    int fd;

    if (s->cgroup_fd < 0 || s->spare_cgroup)
        return;
    fd = cgroup_create(s->cgroup_fd, s->last_cgroup + 1, &(struct cgroup_limits){0});
    if (fd < 0)
        return;
    (void)fd_close(fd);
    s->spare_cgroup = ++s->last_cgroup;
}

void control_freeze(struct server *s, uint32_t channel)
{
    struct control *c = &s->control;
    int r;

    if (!control_begin(s, channel, CONTROL_FREEZING, FREEZE_USEC))
        return;
    s->thawed = false;
    c->frozen_usec = clock_now_usec();
    if (s->cgroup_fd < 0 || process_none_left(s)) {
        prepare_cgroup(s);
        start_sync(s, CONTROL_SYNCING);
        return;
    }
    c->freezer = true;
    r = watch_events(s);
    if (r == 0)
        r = cgroup_write(s->cgroup_fd, "cgroup.freeze", "1");
    if (r < 0) {
        unfreeze(s);
        control_fail(s, -r, "freeze: no cgroup freezer");
    }
}

void control_power_off(struct server *s, uint32_t channel, uint32_t grace_msec)
{
    struct control *c = &s->control;

    /* It does not wait for a thaw or freeze, whose requester will see the guest go. */
    if (c->step == CONTROL_THAW || c->step == CONTROL_FREEZING || c->step == CONTROL_SYNCING)
        control_fail(s, ECANCELED, "the guest is told to power off");
    if (!control_begin(s, channel, CONTROL_TERM, grace_msec * USEC_PER_MSEC))
        return;
    if (watch_events(s) < 0)
        drop_events(s);
    if (s->cgroup_fd >= 0)
        (void)cgroup_write(s->cgroup_fd, "cgroup.freeze", "0");
    s->thawed = false;
    process_kill_all(s, SIGTERM);
}
