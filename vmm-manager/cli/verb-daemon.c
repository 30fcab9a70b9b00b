#include "cli/verbs.h"

#include <poll.h>
#include <stdio.h>
#include <sys/pidfd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "cli/client.h"
#include "cli/daemon-start.h"

#define STOP_TIMEOUT_USEC (30 * USEC_PER_SEC)

static int get_version(struct cli *cli, bool start, json_t **ret, struct error *err)
{
    int fd = start ? daemon_connect(cli, err) : daemon_connect_running(err);

    if (fd < 0)
        return fd;
    http_set_fd(&cli->http, fd);
    return client_call(cli, "GET", "/v1/version", NULL, ret, err);
}

static int print_status(struct cli *cli, const json_t *version)
{
    if (cli->options.json)
        return client_print_json(version) < 0 ? EXIT_FAILED : EXIT_DONE;
    (void)printf("hearthd %s runs: pid %" JSON_INTEGER_FORMAT ", since %s, socket %s\n",
                 client_string(version, "version"),
                 json_integer_value(json_object_get(version, "pid")),
                 client_string(version, "started"), paths_socket());
    return EXIT_DONE;
}

int verb_daemon_status(struct cli *cli, char **args, uint32_t count)
{
    json_auto_t *version = NULL;
    struct error err = {0};

    (void)args;
    (void)count;
    if (get_version(cli, /* start= */ false, &version, &err) < 0)
        return cli_fail(cli, &err);
    return print_status(cli, version);
}

int verb_daemon_start(struct cli *cli, char **args, uint32_t count)
{
    json_auto_t *version = NULL;
    struct error err = {0};

    (void)args;
    (void)count;
    if (get_version(cli, /* start= */ true, &version, &err) < 0)
        return cli_fail(cli, &err);
    return cli->options.quiet ? EXIT_DONE : print_status(cli, version);
}

int verb_daemon_stop(struct cli *cli, char **args, uint32_t count)
{
    _cleanup_close_ int pidfd = -EBADF;
    json_auto_t *version = NULL;
    struct error err = {0};
    json_int_t pid;
    int r;

    (void)args;
    (void)count;
    r = get_version(cli, /* start= */ false, &version, &err);
    if (r == -ENOENT || r == -ECONNREFUSED) {
        cli_note(cli, "no daemon runs");
        return EXIT_DONE;
    }
    if (r < 0)
        return cli_fail(cli, &err);
    pid = json_integer_value(json_object_get(version, "pid"));
    if (pid > 1 && pid <= INT32_MAX)
        pidfd = pidfd_open((pid_t)pid, 0);
    if (client_call(cli, "POST", "/v1/shutdown", NULL, NULL, &err) < 0)
        return cli_fail(cli, &err);
    cli_progress_begin(cli, "waiting for hearthd to end");
    if (pidfd >= 0 &&
        wait_fd(&cli->wait, pidfd, POLLIN, wait_deadline(STOP_TIMEOUT_USEC)) == -ETIMEDOUT) {
        (void)error_set(&err, ETIMEDOUT, "hearthd (pid %" JSON_INTEGER_FORMAT ") does not end",
                        pid);
        return cli_fail(cli, &err);
    }
    cli_progress_end(cli);
    return EXIT_DONE;
}
