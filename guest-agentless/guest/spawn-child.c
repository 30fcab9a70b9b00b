#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "guest/cgroup.h"
#include "guest/confine.h"
#include "guest/ops.h"
#include "guest/spawn.h"
#include "guest/users.h"

/* Between fork and exec, in the child. */

#define ERROR_FD ((int)PROCESS_STREAMS) /* right above the streams */
#define HIGH_FD 64                      /* out of the way while descriptors find their places */
#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define NOFILE_SOFT 1024u
#define NOFILE_HARD 524288u

void spawn_fail(int error_fd, int code, int errnum, const char *format, ...)
{
    struct spawn_failure f = {.code = (uint32_t)code, .errnum = errnum};
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(f.message, sizeof(f.message), format, ap);
    va_end(ap);
    (void)!write(error_fd, &f, sizeof(f));
    _exit(127);
}

static void reset_signals(void)
{
    static const int signals[] = {SIGPIPE, SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGIO};
    sigset_t none;

    for (size_t i = 0; i < ARRAY_SIZE(signals); i++) {
        struct sigaction action = {.sa_handler = SIG_DFL};

        (void)sigaction(signals[i], &action, NULL);
    }
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Puts the child's ends at their numbers and closes everything else. */
static void place_fds(struct spawn *sp)
{
    int error_fd = fcntl(sp->error_fd, F_DUPFD_CLOEXEC, HIGH_FD);

    if (error_fd < 0)
        spawn_fail(sp->error_fd, HEARTH__V1__CODE__CODE_SYSTEM, errno, "descriptor: %s",
                   errno_text(errno));
    for (unsigned i = 0; i < PROCESS_STREAMS; i++) {
        if (sp->fds[i] < 0)
            continue;
        sp->fds[i] = fcntl(sp->fds[i], F_DUPFD_CLOEXEC, HIGH_FD);
        if (sp->fds[i] < 0)
            spawn_fail(error_fd, HEARTH__V1__CODE__CODE_SYSTEM, errno, "descriptor: %s",
                       errno_text(errno));
    }
    for (int i = 0; i < (int)PROCESS_STREAMS; i++) {
        if (sp->fds[i] >= 0)
            (void)dup2(sp->fds[i], i);
        else
            (void)close(i);
    }
    (void)dup3(error_fd, ERROR_FD, O_CLOEXEC);
    (void)syscall(SYS_close_range, (unsigned)ERROR_FD + 1, ~0U, 0);
    sp->error_fd = ERROR_FD;
}

static void enter_root(struct spawn *sp)
{
    if (sp->is_init) {
        struct rlimit limit = {.rlim_cur = NOFILE_SOFT, .rlim_max = NOFILE_HARD};

        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    (void)umask(022);
    if (sp->root && (chroot(sp->root) < 0 || chdir("/") < 0))
        spawn_fail(sp->error_fd, HEARTH__V1__CODE__CODE_SYSTEM, errno, "enter the root: %s",
                   errno_text(errno));
}

static void find_user(struct spawn *sp, struct user *user)
{
    struct users users;
    struct error err = {0};
    int r;

    if (users_load(&users) < 0)
        spawn_fail(sp->error_fd, HEARTH__V1__CODE__CODE_SYSTEM, ENOMEM, "out of memory");
    r = users_resolve(&users, sp->user, user, &err);
    if (r < 0)
        spawn_fail(sp->error_fd, HEARTH__V1__CODE__CODE_USER, -r, "%s", err.text);
    users_done(&users);
}

static void become_user(struct spawn *sp, const struct user *user)
{
    if (sp->tty)
        (void)!fchown(STDIN_FILENO, user->uid, (gid_t)-1);
    /* Without rights to change (tests as an ordinary user) only one's own identity will do. */
    if (geteuid() != 0 && user->uid == geteuid())
        return;
    if (geteuid() != 0 && sp->user[0] == '\0')
        return;
    if (setgroups(user->n_groups, user->groups) < 0 ||
        setresgid(user->gid, user->gid, user->gid) < 0 ||
        setresuid(user->uid, user->uid, user->uid) < 0)
        spawn_fail(sp->error_fd, HEARTH__V1__CODE__CODE_USER, errno, "become user '%s': %s",
                   user->name, errno_text(errno));
}

static void check_confined(const struct spawn *sp, int r, const struct error *err)
{
    if (r < 0)
        spawn_fail(sp->error_fd, HEARTH__V1__CODE__CODE_SYSTEM, -r, "%s", err->text);
}

static const char *env_get(char *const *env, const char *key)
{
    size_t size = strlen(key);

    for (; *env; env++) {
        if (strncmp(*env, key, size) == 0 && (*env)[size] == '=')
            return *env + size + 1;
    }
    return NULL;
}

static void env_default(char **env, const char *key, const char *value)
{
    size_t n = 0;

    if (env_get(env, key))
        return;
    while (env[n])
        n++;
    if (asprintf(&env[n], "%s=%s", key, value) < 0)
        env[n] = NULL;
    else
        env[n + 1] = NULL;
}

static void change_dir(const struct spawn *sp, const struct user *user)
{
    if (sp->cwd[0] == '\0') {
        if (chdir(user->home) < 0)
            (void)!chdir("/");
        return;
    }
    if (chdir(sp->cwd) < 0)
        spawn_fail(sp->error_fd, HEARTH__V1__CODE__CODE_CWD, errno,
                   "working directory '%.256s': %s", sp->cwd, errno_text(errno));
}

static _Noreturn void exec_failed(const struct spawn *sp, const char *path, int errnum)
{
    switch (errnum) {
    case E2BIG:
        spawn_fail(sp->error_fd, HEARTH__V1__CODE__CODE_ARGUMENTS_TOO_LONG, errnum,
                   "arguments and environment of '%.256s' are too long for the kernel", path);
    case ENOENT:
    case ENOTDIR:
        if (access(path, F_OK) == 0)
            spawn_fail(sp->error_fd, HEARTH__V1__CODE__CODE_COMMAND_NOT_FOUND, errnum,
                       "'%.256s' needs an interpreter or loader that the image does not have",
                       path);
        spawn_fail(sp->error_fd, HEARTH__V1__CODE__CODE_COMMAND_NOT_FOUND, errnum,
                   "no such program in the guest: '%.256s'", path);
    case EACCES:
    case EPERM:
    case ENOEXEC:
    case EISDIR:
    case ELIBBAD:
    case EINVAL:
    case ETXTBSY:
        spawn_fail(sp->error_fd, HEARTH__V1__CODE__CODE_COMMAND_NOT_EXECUTABLE, errnum,
                   "'%.256s' cannot be executed: %s", path, errno_text(errnum));
    default:
        spawn_fail(sp->error_fd, HEARTH__V1__CODE__CODE_SYSTEM, errnum, "execute '%.256s': %s",
                   path, errno_text(errnum));
    }
}

/* The search that execvp() does, in the process's own PATH. */
static _Noreturn void search_and_exec(const struct spawn *sp)
{
    const char *name = sp->argv[0], *path = env_get(sp->env, "PATH");
    size_t name_size = strlen(name);
    char full[4096];
    char found[sizeof(full)] = "";
    int errnum = ENOENT, e;

    for (const char *p = path ? path : DEFAULT_PATH; p;) {
        const char *colon = strchrnul(p, ':');
        size_t n = (size_t)(colon - p);

        if (n + name_size + 2 <= sizeof(full)) {
            memcpy(full, p, n);
            full[n] = '/';
            memcpy(full + n + 1, name, name_size + 1);
            /* Looking costs the kernel far less than trying: it prepares a new program first. */
            e = 0;
            if (access(n > 0 ? full : full + 1, F_OK) < 0)
                e = errno;
            if (e != ENOENT && e != ENOTDIR) {
                (void)execve(n > 0 ? full : full + 1, sp->argv, sp->env);
                e = errno;
            }
            if (e == E2BIG)
                exec_failed(sp, name, E2BIG);
            /* The first file that is there but cannot run explains more than "not found". */
            if (found[0] == '\0' && ((e != ENOENT && e != ENOTDIR) || access(full, F_OK) == 0)) {
                errnum = e;
                memcpy(found, full, sizeof(found));
            }
        }
        p = *colon ? colon + 1 : NULL;
    }
    exec_failed(sp, found[0] ? found : name, errnum);
}

_Noreturn void spawn_child(struct spawn *sp)
{
    struct error err = {0};
    struct user user;
    int r;

    reset_signals();
    (void)setsid();
    r = sp->cgroup_fd >= 0 ? cgroup_write(sp->cgroup_fd, "cgroup.procs", "0") : 0;
    if (r < 0)
        spawn_fail(sp->error_fd, HEARTH__V1__CODE__CODE_SYSTEM, -r, "enter the cgroup: %s",
                   errno_text(-r));
    place_fds(sp);
    if (sp->tty && ioctl(STDIN_FILENO, TIOCSCTTY, 0) < 0)
        spawn_fail(sp->error_fd, HEARTH__V1__CODE__CODE_SYSTEM, errno, "terminal: %s",
                   errno_text(errno));
    enter_root(sp);
    find_user(sp, &user);
    if (sp->confine)
        check_confined(sp, confine_enter(sp->confine, &user, &err), &err);
    become_user(sp, &user);
    if (sp->confine)
        check_confined(sp, confine_fill(sp->confine, &err), &err);
    if (!sp->argv) {
        (void)close(sp->error_fd);
        _exit(op_run(sp->request));
    }
    env_default(sp->env, "PATH", DEFAULT_PATH);
    env_default(sp->env, "HOME", user.home);
    env_default(sp->env, "USER", user.name);
    env_default(sp->env, "LOGNAME", user.name);
    if (sp->tty)
        env_default(sp->env, "TERM", "xterm-256color");
    change_dir(sp, &user);
    if (sp->no_new_privileges && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        spawn_fail(sp->error_fd, HEARTH__V1__CODE__CODE_SYSTEM, errno, "no new privileges: %s",
                   errno_text(errno));
    if (!strchr(sp->argv[0], '/'))
        search_and_exec(sp);
    (void)execve(sp->argv[0], sp->argv, sp->env);
    exec_failed(sp, sp->argv[0], errno);
}
