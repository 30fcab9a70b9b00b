#include "cli/verbs.h"

#include <stdio.h>

#include "cli/client.h"
#include "cli/remote.h"

int verb_work(struct cli *cli, const char *path, json_t *body, const char *what, const char *key,
              json_t **ret)
{
    struct error err = {0};
    int r;

    if (!path) {
        (void)error_set(&err, ENOMEM, "out of memory");
        return cli_fail(cli, &err);
    }
    cli_progress_begin(cli, what);
    r = client_work(cli, path, body, key, ret, &err);
    cli_progress_end(cli);
    return r < 0 ? remote_fail(cli, r, &err) : EXIT_DONE;
}

static int each(struct cli *cli, char **ids, uint32_t count, const char *pattern, const char *what)
{
    int status = EXIT_DONE;

    for (uint32_t i = 0; i < count; i++) {
        _cleanup_free_ char *path = client_path(pattern, ids[i]);
        json_auto_t *sandbox = NULL;
        int r = verb_work(cli, path, NULL, what, "sandbox", &sandbox);

        if (r != EXIT_DONE)
            status = r;
        else if (cli->options.json)
            r = client_print_json(sandbox);
        else if (!cli->options.quiet)
            (void)puts(ids[i]);
        if (r < 0)
            status = EXIT_FAILED;
    }
    return status;
}

int verb_hibernate(struct cli *cli, char **args, uint32_t count)
{
    return each(cli, args, count, "/v1/sandboxes/{}/hibernate", "hibernating");
}

int verb_resume(struct cli *cli, char **args, uint32_t count)
{
    return each(cli, args, count, "/v1/sandboxes/{}/resume", "resuming");
}
