#include "cli/verbs.h"

#include <stdio.h>

#include "base/fd.h"
#include "cli/client.h"
#include "cli/daemon-start.h"

/* Asks a daemon that runs, and starts none for this. NULL when there is none. */
static json_t *daemon_version(struct cli *cli)
{
    json_t *answer = NULL;
    int fd = daemon_connect_running(NULL);

    if (fd < 0)
        return NULL;
    http_set_fd(&cli->http, fd);
    if (client_call(cli, "GET", "/v1/version", NULL, &answer, NULL) < 0)
        return NULL;
    return answer;
}

int verb_version(struct cli *cli, char **args, uint32_t count)
{
    json_auto_t *daemon = daemon_version(cli);
    json_auto_t *all = NULL;

    (void)args;
    (void)count;
    if (cli->options.json) {
        all = json_pack("{s:s, s:O?}", "version", HEARTH_VERSION, "daemon", daemon);
        return all && client_print_json(all) >= 0 ? EXIT_DONE : EXIT_FAILED;
    }
    (void)printf("hearth %s\n", HEARTH_VERSION);
    if (daemon)
        (void)printf("hearthd %s (pid %" JSON_INTEGER_FORMAT ", since %s)\n",
                     client_string(daemon, "version"),
                     json_integer_value(json_object_get(daemon, "pid")),
                     client_string(daemon, "started"));
    else
        (void)puts("hearthd does not run");
    return EXIT_DONE;
}
