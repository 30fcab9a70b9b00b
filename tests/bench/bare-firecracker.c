/*
 * Bare clones of a template through Firecracker's API, for comparison: the same files, the same
 * console and command, the fewest calls that bring a guest back. Commands on stdin, one answer line
 * of JSON each:
 *
 *   ready          ends the clone before it, starts a process and copies the disk: Hearth has its
 *                  processes ahead too
 *   clone [track]  makes a clone of that process: microseconds from the first call to its
 *                  milestones, API calls and bytes. track: with a record of changed pages
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bare-console.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/spawn.h"
#include "base/strv.h"

#define START_USEC (20 * USEC_PER_SEC)
#define POLL_MSEC 2
#define CONNECT "CONNECT 1024\n"

struct bare {
    const char *firecracker, *template_dir, *image; /* weak */
    char *dir;                                      /* owned: of the VM, and its process's cwd */
    int pidfd;                                      /* owned */
    int api;                                        /* owned */
    size_t sent, received;                          /* bytes of API calls */
    unsigned calls;
};

static char *in_dir(const struct bare *b, const char *name)
{
    return string_printf("%s/%s", b->dir, name);
}

static void end(struct bare *b)
{
    siginfo_t info;

    if (b->pidfd >= 0) {
        (void)pidfd_send_signal(b->pidfd, SIGKILL, NULL, 0);
        (void)waitid(P_PIDFD, (id_t)b->pidfd, &info, WEXITED);
    }
    b->pidfd = fd_close(b->pidfd);
    b->api = fd_close(b->api);
    (void)dir_remove(b->dir, NULL);
}

static int put_files(struct bare *b, struct error *err)
{
    static const char *const names[] = {"memory", "state"};
    _cleanup_free_ char *disk = string_printf("%s/disk", b->template_dir), *to = in_dir(b, "disk"),
                        *image = in_dir(b, "image");
    int r = dir_create(b->dir, 0700, err);

    if (r >= 0)
        r = file_copy_sparse(disk, to, 0600, err);
    if (r >= 0 && symlink(b->image, image) < 0)
        r = error_set(err, errno, "'%s': %s", image, errno_text(errno));
    for (size_t i = 0; r >= 0 && i < ARRAY_SIZE(names); i++) {
        _cleanup_free_ char *from = string_printf("%s/%s", b->template_dir, names[i]),
                            *link_path = in_dir(b, names[i]);

        if (symlink(from, link_path) < 0)
            r = error_set(err, errno, "'%s': %s", link_path, errno_text(errno));
    }
    return r;
}

/* Ready when its API socket takes connections. */
static int start(struct bare *b, struct error *err)
{
    const char *const argv[] = {b->firecracker, "--api-sock", "api.sock", "--level", "Error", NULL};
    _cleanup_free_ char *socket = in_dir(b, "api.sock"), *log = in_dir(b, "log");
    _cleanup_close_ int log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    struct spawn_options options = {
        .argv = argv, .cwd = b->dir, .stdin_fd = -1, .stdout_fd = log_fd, .stderr_fd = log_fd};
    uint64_t deadline = clock_now_usec() + START_USEC;
    pid_t pid;
    int r = spawn(&options, &pid, &b->pidfd, err);

    while (r >= 0 && b->api < 0) {
        if (clock_now_usec() > deadline)
            return error_set(err, ETIMEDOUT, "Firecracker does not start");
        b->api = fd_connect_unix(socket);
        if (b->api < 0)
            (void)poll(NULL, 0, POLL_MSEC);
        else
            r = fd_set_nonblock(b->api, false);
    }
    return r;
}

static int call(struct bare *b, const char *path, const char *body, struct error *err)
{
    _cleanup_free_ char *text =
        string_printf("PUT %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      "Content-Length: %zu\r\n\r\n%s",
                      path, strlen(body), body);
    char answer[4096];
    ssize_t n;
    int r = fd_write_full(b->api, text, strlen(text));

    n = r < 0 ? r : read(b->api, answer, sizeof(answer) - 1);
    if (n <= 0)
        return error_set(err, EIO, "PUT %s: no answer", path);
    answer[n] = '\0';
    b->calls++;
    b->sent += strlen(text);
    b->received += (size_t)n;
    return strncmp(answer, "HTTP/1.1 204", 12) == 0
               ? 0
               : error_set(err, EIO, "PUT %s: %.300s", path, answer);
}

static int open_console(struct bare *b, struct error *err)
{
    _cleanup_free_ char *path = in_dir(b, "console.sock");
    _cleanup_close_ int fd = fd_connect_unix(path);
    int r = fd < 0 ? fd : fd_set_nonblock(fd, false);

    if (r >= 0)
        r = fd_write_full(fd, CONNECT, strlen(CONNECT));
    if (r < 0)
        return error_set(err, -r, "'%s': %s", path, errno_text(-r));
    r = bare_console_hello(fd, err);
    return r < 0 ? r : TAKE_FD(fd);
}

static int make_ready(struct bare *b, struct error *err)
{
    int r;

    end(b);
    b->calls = 0;
    b->sent = b->received = 0;
    r = put_files(b, err);
    if (r >= 0)
        r = start(b, err);
    if (r >= 0)
        (void)printf("{}\n");
    return r;
}

static int clone_one(struct bare *b, bool track, struct error *err)
{
    static const char *const argv[] = {"/bin/echo", "x", NULL};
    _cleanup_close_ int console = -EBADF;
    uint64_t from, loaded, replied, thawed, output;
    int r;

    if (b->api < 0)
        return error_set(err, EINVAL, "no process is ready");
    from = clock_now_usec();
    r = call(b, "/snapshot/load",
             track ? "{\"snapshot_path\":\"state\",\"mem_backend\":{\"backend_type\":\"File\","
                     "\"backend_path\":\"memory\"},\"track_dirty_pages\":true,"
                     "\"resume_vm\":true}"
                   : "{\"snapshot_path\":\"state\",\"mem_backend\":{\"backend_type\":\"File\","
                     "\"backend_path\":\"memory\"},\"resume_vm\":true}",
             err);
    loaded = clock_now_usec() - from;
    if (r >= 0)
        r = console = open_console(b, err);
    replied = clock_now_usec() - from;
    if (r >= 0)
        r = bare_console_thaw(console, err);
    thawed = clock_now_usec() - from;
    if (r >= 0)
        r = bare_console_exec(console, argv, err);
    output = clock_now_usec() - from;
    if (r >= 0)
        (void)printf("{\"loaded\": %llu, \"replied\": %llu, \"thawed\": %llu, \"output\": %llu, "
                     "\"calls\": %u, \"sent\": %zu, \"received\": %zu}\n",
                     (unsigned long long)loaded, (unsigned long long)replied,
                     (unsigned long long)thawed, (unsigned long long)output, b->calls, b->sent,
                     b->received);
    return r;
}

int main(int argc, char **argv)
{
    struct bare b = {.pidfd = -EBADF, .api = -EBADF};
    struct error err = {0};
    char line[64];
    int r = 0;

    if (argc != 5) {
        (void)fprintf(stderr, "usage: bare-firecracker FIRECRACKER DIR TEMPLATE-DIR IMAGE\n");
        return 2;
    }
    b.firecracker = argv[1];
    b.dir = string_printf("%s/vm", argv[2]);
    b.template_dir = argv[3];
    b.image = argv[4];
    while (r >= 0 && fgets(line, sizeof(line), stdin)) {
        r = strcmp(line, "ready\n") == 0 ? make_ready(&b, &err)
                                         : clone_one(&b, strcmp(line, "clone track\n") == 0, &err);
        (void)fflush(stdout);
    }
    end(&b);
    free(b.dir);
    if (r < 0)
        (void)fprintf(stderr, "bare-firecracker: %s\n", err.text);
    return r < 0;
}
